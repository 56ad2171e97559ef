from vision.loading.files import frames_of as frames_of
from vision.loading.files import opened as opened
