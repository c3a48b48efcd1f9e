"""The version: stated here, read by the package, its metadata and the environment service."""

__version__ = "0.1.0"
