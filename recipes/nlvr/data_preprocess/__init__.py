"""Making the rows of nlvr."""
