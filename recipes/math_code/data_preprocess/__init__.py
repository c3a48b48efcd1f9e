"""Making the data of math_code."""
