"""Training: rows, scoring, learner, trainer loop, checkpoints, whole runs."""
