from vision.pages import fresh as fresh
