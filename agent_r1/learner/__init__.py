"""The learner: experience to credit to updates."""
