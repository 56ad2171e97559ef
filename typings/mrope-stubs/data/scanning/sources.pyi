from data.scanning.sources import parts_of as parts_of
