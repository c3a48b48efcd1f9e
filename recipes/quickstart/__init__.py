"""A tiny model learns to use two tools, from nothing, on a CPU."""
