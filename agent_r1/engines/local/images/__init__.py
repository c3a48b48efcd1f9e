"""Images in the engine: where they are in a prompt and in a step, and their embeddings."""
