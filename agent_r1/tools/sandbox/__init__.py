"""A sandbox for Python programs that nobody has reviewed."""
