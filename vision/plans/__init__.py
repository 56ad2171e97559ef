"""What will become of pictures and clips, told from their sizes alone."""
