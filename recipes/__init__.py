"""Tasks to train on. Each folder is a recipe: `agent-r1 train recipes/<name>`."""
