"""Spatial probes: ask any model where things are, mark its answers, and keep every sample."""
