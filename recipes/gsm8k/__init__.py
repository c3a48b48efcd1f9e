"""GSM8K in one step: reason, then give the number after `####`."""
