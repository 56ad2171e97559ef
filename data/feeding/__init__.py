"""Data sets on their way into a model: rows and samplers by tokens, augmentation with labels, exported shards."""
