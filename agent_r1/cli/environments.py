"""`agent-r1 env serve`: an environment as an HTTP service."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from agent_r1.cli.errors import readable_errors


def look_in_current_folder() -> None:
    """Let modules of the current folder be found, after all others: the console script does not look there by itself,
    and a run that a program started has no recipe folder."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def finite(number: float) -> float:
    """Refuse NaN and infinity, which click's ranges let through."""
    if not math.isfinite(number):
        raise typer.BadParameter(f"{number} is not a finite number")
    return number


Environment = Annotated[
    str,
    typer.Argument(
        metavar="MODULE[:ATTRIBUTE]",
        help="The module that defines the environment; with several environments in it, also which one. The attribute "
        "may be a function that makes one.",
    ),
]
Host = Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 is every network.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")]
MaxEpisodes = Annotated[int, typer.Option(min=1, help="Maximum episodes open at once; further ones wait.")]
IdleSeconds = Annotated[
    float, typer.Option(min=0.1, callback=finite, help="An episode that is not used for this long is closed.")
]
CallSeconds = Annotated[
    float,
    typer.Option(min=0.1, callback=finite, help="The deadline of one reset or step; then the episode is closed."),
]
GoneSeconds = Annotated[
    float,
    typer.Option(min=0.1, callback=finite, help="A call whose client has disconnected is cancelled after this long."),
]
BodyMb = Annotated[float, typer.Option(min=0.001, callback=finite, help="Maximum size of a request, in megabytes.")]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="AGENT_R1_ENV_TOKEN",
        help="What clients must send. Without one a token is made and printed, unless only this machine can reach the "
        "address. Prefer the variable: others on this machine can read the options of a command.",
    ),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(help="A name by which clients call this server, besides localhost, its own name and addresses."),
]


def serve(
    environment: Environment,
    host: Host = "127.0.0.1",
    port: Port = 8700,
    max_episodes: MaxEpisodes = 256,
    idle_seconds: IdleSeconds = 600.0,
    call_seconds: CallSeconds = 300.0,
    gone_seconds: GoneSeconds = 30.0,
    body_mb: BodyMb = 32.0,
    token: Token = None,
    allow_host: AllowHost = None,
) -> None:
    """Serve an environment over HTTP, for runs on other machines or in another Python.

    Everyone who has the token can run the environment, and without TLS others on the network can read the token: keep
    the address inside your network. Ctrl-C closes all episodes.

    Examples:

      agent-r1 env serve my_envs:Maze --port 8700
      agent-r1 train RECIPE env=remote env.url=http://127.0.0.1:8700
    """
    sys.path.insert(0, "")  # the console script does not look in the current folder by itself
    with readable_errors():
        from agent_r1.envs.remote import server as service
        from agent_r1.registry import recipe_folder

        access = service.make_access(host, token=token, allowed=allow_host or ())
        limits = service.ServiceLimits(
            max_episodes=max_episodes,
            idle_seconds=idle_seconds,
            call_seconds=call_seconds,
            gone_seconds=gone_seconds,
            body_mb=body_mb,
        )

        def announce(address: str) -> None:
            typer.echo(f"serving {environment} at {address}")
            if access.token is not None and not token:
                typer.echo(f"clients need AGENT_R1_ENV_TOKEN={access.token} (or env.token)")

        with recipe_folder(Path.cwd()):  # its files may import each other, as in a run
            served = service.EnvService(service.find_factory(environment), name=environment, limits=limits)
            service.serve(served, host, port, announce, access=access)
