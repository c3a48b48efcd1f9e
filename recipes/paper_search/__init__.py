"""Finding the papers that a text cites: a model learns to search a collection and to follow its citations."""
