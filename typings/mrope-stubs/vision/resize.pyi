from vision.resize import Filter as Filter
from vision.resize import interleaved as interleaved
