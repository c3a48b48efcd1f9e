"""Reports on runs: curves, tables, and whether a gain is one."""
