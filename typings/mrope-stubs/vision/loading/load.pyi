from vision.loading.load import _straight as _straight
