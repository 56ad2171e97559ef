from vision.places.draw import HEAT as HEAT
from vision.places.draw import INKS as INKS
from vision.places.draw import TINT as TINT
