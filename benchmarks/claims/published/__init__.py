"""The runs of docs/results.md: their plan (`benchmarks/claims/results.py` makes them)."""
