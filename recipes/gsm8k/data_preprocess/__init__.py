"""Making the rows of gsm8k."""
