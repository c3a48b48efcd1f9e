"""A tiny model learns to look closer: a board of cards, a tool that zooms, from nothing, on a CPU."""
