"""Running Python programs that nobody has read."""
