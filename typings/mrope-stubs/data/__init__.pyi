from data import *
