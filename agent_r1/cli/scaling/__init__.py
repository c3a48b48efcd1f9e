"""Commands for more than one process: servers, planning."""
