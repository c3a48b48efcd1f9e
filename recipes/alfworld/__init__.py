"""alfworld: household tasks in text, in a plain-Python twin of ALFWorld."""
