"""What benchmark scripts share: models, prompts, workloads, FLOP counts, GSM8K steps, runs of a recipe."""
