from vision.loading.decoded import Decoded as Decoded
from vision.loading.decoded import turned as turned
