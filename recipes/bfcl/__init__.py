"""BFCL: how well a model calls functions, before and after training on something else."""
