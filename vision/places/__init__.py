"""The way back: from tokens to pixels, and from boxes to what the model writes."""
