from vision.cutting.resize import Filter as Filter
from vision.cutting.resize import interleaved as interleaved
