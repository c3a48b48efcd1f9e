"""Geometry problems with a figure each, for any vision-language model."""
