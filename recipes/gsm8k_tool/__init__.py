"""GSM8K with a calculator: several steps, each of which may call it, then the number after `####`."""
