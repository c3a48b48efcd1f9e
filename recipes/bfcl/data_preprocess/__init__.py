"""Making the data of bfcl."""
