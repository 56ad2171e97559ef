"""Pixels to patches and back."""
