"""Questions that take two look-ups: a model learns to search a collection of Wikipedia passages and to answer."""
