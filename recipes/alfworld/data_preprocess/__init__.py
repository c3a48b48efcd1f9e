"""Making the data of alfworld."""
