"""Integrations: parts of this library inside other frameworks. Nothing here is imported by the rest of the library."""
