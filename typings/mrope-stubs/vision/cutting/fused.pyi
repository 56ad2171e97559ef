from vision.cutting.fused import DTYPES as DTYPES
from vision.cutting.fused import fill_ as fill_
from vision.cutting.fused import unfit as unfit
