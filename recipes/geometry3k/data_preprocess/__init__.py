"""Making the rows of geometry3k."""
