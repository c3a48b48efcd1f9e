"""Competition mathematics with Python: a model writes short programs, reads their output and boxes its answer."""
