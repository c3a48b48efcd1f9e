"""Environments on a server: `agent-r1 env serve` and its client `RemoteEnv`."""
