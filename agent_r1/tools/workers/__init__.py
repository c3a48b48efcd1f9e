"""Calls in processes that can be killed, and in threads beside the event loop."""
