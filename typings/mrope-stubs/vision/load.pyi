from vision.load import _straight as _straight
