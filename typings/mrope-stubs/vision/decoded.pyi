from vision.decoded import Decoded as Decoded
from vision.decoded import turned as turned
