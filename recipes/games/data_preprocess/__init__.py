"""Making the data of games."""
