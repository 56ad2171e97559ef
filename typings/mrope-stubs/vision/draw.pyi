from vision.draw import HEAT as HEAT
from vision.draw import INKS as INKS
from vision.draw import TINT as TINT
