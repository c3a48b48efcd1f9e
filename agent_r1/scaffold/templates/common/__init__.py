"""my_task: a recipe for `agent-r1 train`; README.md says what to change first."""
