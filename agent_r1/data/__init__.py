"""Rows of files as tasks, demonstrations, and the public files recipes are made from."""
