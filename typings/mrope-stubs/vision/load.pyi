from vision.load import _jpeg as _jpeg
from vision.load import _turned as _turned
