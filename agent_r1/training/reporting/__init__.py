"""What a run reports: the log of its steps, their times, its summary, and the profile of a step."""
