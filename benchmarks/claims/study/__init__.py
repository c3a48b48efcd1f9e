"""The study of docs/what_works.md: its plan, its results on disk, and the runs (`benchmarks/claims/what_works.py`)."""
