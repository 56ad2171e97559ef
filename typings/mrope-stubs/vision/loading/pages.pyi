from vision.loading.pages import fresh as fresh
