"""Making the data of hotpotqa."""
