from vision.files import frames_of as frames_of
from vision.files import opened as opened
