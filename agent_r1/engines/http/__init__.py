"""Engines behind HTTP: vLLM and SGLang servers, several of them, with weights that follow the policy.

`client` talks, `vllm` and `sglang` know one kind of server each, `server` is one server and its weights, `probe` checks
that it really has them, `pool` gives requests to servers and brings lost ones back, `engine` is the `Engine`.
"""

from agent_r1.engines.http.commands import KINDS, ServerCommand, find_python, server_command

__all__ = ["KINDS", "ServerCommand", "find_python", "server_command"]
