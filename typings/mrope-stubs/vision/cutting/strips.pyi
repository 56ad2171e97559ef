from vision.cutting.strips import strips as strips
