"""Commands for more than one process."""
