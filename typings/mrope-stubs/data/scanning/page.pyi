from data.scanning.page import histograms as histograms
