"""Models: loading and exporting them, adapters, precision, and the parts of a decoder that engine and learner share."""
