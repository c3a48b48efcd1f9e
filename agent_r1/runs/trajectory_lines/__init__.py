"""What one recorded line holds: observations as differences, and its trajectory, each value of which is checked."""
