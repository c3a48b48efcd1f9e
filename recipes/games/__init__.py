"""Games: TextCraft, and lines for Gymnasium, BabyAI and reasoning-gym."""
