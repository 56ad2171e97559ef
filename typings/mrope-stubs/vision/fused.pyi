from vision.fused import DTYPES as DTYPES
from vision.fused import fill_ as fill_
from vision.fused import unfit as unfit
