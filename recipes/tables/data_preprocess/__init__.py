"""Making the data of tables."""
