"""`agent-r1 serve-engine`: a vLLM or SGLang server that `engine=vllm` or `engine=sglang` can use."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from agent_r1.cli.errors import readable_errors
from agent_r1.errors import ConfigError, did_you_mean

Model = Annotated[str, typer.Argument(metavar="MODEL", help="The model to start with: a Hugging Face folder or id.")]
Arguments = Annotated[
    list[str] | None, typer.Argument(help="Further arguments of the server, after --: -- --tensor-parallel-size 2")
]
Kind = Annotated[str, typer.Option(help="vllm or sglang.")]
Python = Annotated[
    str | None,
    typer.Option(
        help="The Python in whose environment the server is installed; by default the one that runs this command."
    ),
]
Host = Annotated[str, typer.Option(help="The address to listen on.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")]
ContextLength = Annotated[int | None, typer.Option(min=2, help="Maximum tokens of prompt and completion together.")]
Dtype = Annotated[str | None, typer.Option(help="Type of the server's weights: float32 or bfloat16.")]
Devices = Annotated[str | None, typer.Option(help="GPUs of the server (CUDA_VISIBLE_DEVICES), for example 0,1.")]
Variables = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME=VALUE", help="A further environment variable of the server; may be repeated."),
]
TrustedNetwork = Annotated[
    bool,
    typer.Option(
        "--trusted-network",
        help="Allow another address than this machine's own. Whoever reaches the port can replace the weights: these "
        "calls have no key.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the command and stop.")]


def serve_engine(
    model: Model,
    arguments: Arguments = None,
    kind: Kind = "vllm",
    python: Python = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    context_length: ContextLength = None,
    dtype: Dtype = None,
    devices: Devices = None,
    env: Variables = None,
    trusted_network: TrustedNetwork = False,
    dry_run: DryRun = False,
) -> None:
    """Start a vLLM or SGLang server that a run can sample from, in an environment of its own.

    The server runs until Ctrl-C. It loads the weights of whatever run uses it; MODEL only says which architecture.

    Examples:

      agent-r1 serve-engine runs/quickstart_warm_start/hf --python vllm-env/bin/python --port 8000
      agent-r1 serve-engine Qwen/Qwen3-0.6B --python vllm-env/bin/python --devices 1 -- --max-num-seqs 512
      agent-r1 train quickstart engine=vllm engine.servers.urls=[http://127.0.0.1:8000]
    """
    from agent_r1.engines.http import KINDS, find_python, server_command
    from agent_r1.web import is_loopback

    with readable_errors():
        if kind not in KINDS:
            raise ConfigError(f"--kind {kind} is not known. {did_you_mean(kind, KINDS)}")
        if not is_loopback(host) and not trusted_network:
            raise ConfigError(
                f"--host {host} can be reached from other machines, and whoever reaches it can replace the weights: "
                "these calls have no key. Add --trusted-network on a network of your own"
            )
        interpreter = find_python(python)
        command = server_command(
            kind,
            model,
            python=interpreter,
            host=host,
            port=port,
            context_length=context_length,
            dtype=dtype,
            devices=devices,
            arguments=arguments or (),
            variables=env or (),
        )
        typer.echo(command)
        if not dry_run:
            sys.stdout.flush()
            os.execve(interpreter, command.arguments, command.environment)
