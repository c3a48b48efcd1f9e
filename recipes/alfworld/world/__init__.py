"""The household: scenes read from PDDL, goals, games, and the original engine."""
