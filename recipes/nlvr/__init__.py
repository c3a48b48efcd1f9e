"""Is a sentence true of a picture? Real pictures and sentences, a tool that crops, a model from scratch."""
