"""What a run reports: the log of its steps, its summary, and the profile of a step."""
