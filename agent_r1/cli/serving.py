"""`agent-r1 serve`: a model or the agent of a run behind the OpenAI API."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from agent_r1.cli.environments import AllowHost, finite, look_in_current_folder
from agent_r1.cli.errors import readable_errors

_KEY_VARIABLE = "AGENT_R1_SERVE_KEY"

ModelOrRun = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|RUN",
        help="A run's folder (runs/quickstart); or a model: a Hugging Face folder or id, or a GGUF file.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Any number of key=value, for example engine.kv_memory=200000 model.dtype=bfloat16."),
]
Recipe = Annotated[
    str | None,
    typer.Option(help="A recipe folder: tools and limits of the agent mode, for a model or instead of a run's own."),
]
Step = Annotated[int | None, typer.Option(min=1, help="Load the run's checkpoint of this step.")]
Name = Annotated[str | None, typer.Option(help="The model's name in the API; by default that of the run or model.")]
Host = Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 is every network.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")]
KeyEnv = Annotated[
    str | None, typer.Option(metavar="NAME", help="The environment variable with the key that clients must send.")
]
Key = Annotated[
    str | None,
    typer.Option(
        envvar=_KEY_VARIABLE,
        help="The key itself. Without one a key is made and printed, unless only this machine can reach the address. "
        "Prefer a variable: others on this machine can read the options of a command.",
    ),
]
MaxTokens = Annotated[int | None, typer.Option(min=1, help="Maximum tokens per completion; default: the context.")]
MaxPromptTokens = Annotated[int | None, typer.Option(min=1, help="Maximum tokens per prompt; default: the context.")]
MaxRunning = Annotated[int, typer.Option(min=1, help="Completions that are sampled at once.")]
MaxWaiting = Annotated[int, typer.Option(min=0, help="Completions that may wait; further requests get status 429.")]
RequestSeconds = Annotated[float, typer.Option(min=0.1, callback=finite, help="Deadline of a request.")]
BodyMb = Annotated[float, typer.Option(min=0.001, callback=finite, help="Maximum size of a request, in megabytes.")]
ShutdownSeconds = Annotated[int, typer.Option(min=0, help="How long running requests may take to finish at the end.")]


def serve(
    model_or_run: ModelOrRun,
    overrides: Overrides = None,
    recipe: Recipe = None,
    step: Step = None,
    name: Name = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    key_env: KeyEnv = None,
    key: Key = None,
    allow_host: AllowHost = None,
    max_tokens: MaxTokens = None,
    max_prompt_tokens: MaxPromptTokens = None,
    max_running: MaxRunning = 64,
    max_waiting: MaxWaiting = 256,
    request_seconds: RequestSeconds = 600.0,
    body_mb: BodyMb = 8.0,
    shutdown_seconds: ShutdownSeconds = 30,
) -> None:
    """Serve a model or a trained agent over the OpenAI API.

    /v1/chat/completions and /v1/completions answer any OpenAI client: streams, tools, log-probs, token ids. /v1/agent
    runs the tools of the run's recipe here and streams the whole trajectory. Ctrl-C finishes running requests.

    Examples:

      agent-r1 serve runs/quickstart
      agent-r1 serve Qwen/Qwen3-0.6B --port 8000 model.dtype=bfloat16
      agent-r1 serve MODEL --recipe gsm8k_tool --host 0.0.0.0 --key-env MY_KEY
    """
    look_in_current_folder()
    with readable_errors():
        from agent_r1.web import key_from_env, listen, make_access, serve_forever

        api_key = key if key_env is None else key_from_env(key_env)
        access = make_access(host, key=api_key, allowed=allow_host or ())
        with closing(listen(host, port)) as listener:  # before anything is loaded: a taken port is told at once
            from agent_r1.inference import load_agent
            from agent_r1.serving import ModelServer, ServingLimits, create_app

            limits = ServingLimits(
                max_tokens=max_tokens,
                max_prompt_tokens=max_prompt_tokens,
                max_running=max_running,
                max_waiting=max_waiting,
                request_seconds=request_seconds,
                body_mb=body_mb,
            )
            settings = [f"rollout.concurrency={max_running}", *(overrides or ())]
            agent = load_agent(model_or_run, recipe=recipe, overrides=settings, step=step, say=typer.echo)
            server = ModelServer(agent, limits=limits, name=name)

            def announce(address: str) -> None:
                typer.echo(f"serving {server.name} at {address}/v1")
                if access.token is not None and not api_key:
                    typer.echo(f"clients need the key {access.token}")

            serve_forever(create_app(server, access), listener, announce, shutdown_seconds=shutdown_seconds)
