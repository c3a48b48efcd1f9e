"""JSON: strict reading and writing, and records as JSON and back."""
