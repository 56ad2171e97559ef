from vision.strips import strips as strips
