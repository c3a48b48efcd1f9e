"""A sandbox for unreviewed Python programs."""
