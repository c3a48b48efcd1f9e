"""Environments on a server: `agent-r1 env serve` and its client `RemoteEnv`.

The server needs the extra `serve`, so it is imported where it is used: `from agent_r1.envs.remote.server import serve`.
"""
