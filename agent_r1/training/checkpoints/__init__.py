"""Checkpoints of a run: saving, resuming, and the one of the last finished step."""
