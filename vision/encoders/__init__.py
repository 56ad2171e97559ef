"""Vision encoders over packed patches of any size."""
