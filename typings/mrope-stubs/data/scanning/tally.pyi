from data.scanning.tally import PERCENTS as PERCENTS
from data.scanning.tally import LimitTally as LimitTally
from data.scanning.tally import tally as tally
