"""TextCraft: recipes, the state of a game, goals and an expert."""
