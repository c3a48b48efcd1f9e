"""Samples as micro-batches: padded rows, or token tries in which shared prefixes are computed once."""
