"""Claims of the documentation, each made again by one script: presets, faults, agreement with verl."""
