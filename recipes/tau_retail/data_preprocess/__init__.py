"""Makes the data of tau_retail."""
