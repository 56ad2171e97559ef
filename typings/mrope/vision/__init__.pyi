from vision import *
