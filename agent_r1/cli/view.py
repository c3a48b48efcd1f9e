"""`agent-r1 view`: a local web page on runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from agent_r1.cli.errors import readable_errors

Runs = Annotated[
    list[Path] | None,
    typer.Argument(help="Run folders, or folders with runs in them. Without any: --folder.", metavar="RUN"),
]
Folder = Annotated[Path, typer.Option(help="The folder whose runs are shown when none is named.")]
Host = Annotated[str, typer.Option(help="The address to listen on; any but this machine's own needs a key.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")]
KeyEnv = Annotated[
    str,
    typer.Option(
        help="The environment variable with the key that browsers must give. Without one a key is made and printed, "
        "unless only this machine can reach the address.",
        metavar="VARIABLE",
    ),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(help="A name by which browsers call this server, besides localhost, its own name and addresses."),
]
Browser = Annotated[
    bool, typer.Option("--browser/--no-browser", help="Open the page in a browser, where there is a display.")
]
Export = Annotated[
    Path | None, typer.Option(help="Write the page with its data to one file instead of serving it.", metavar="FILE")
]
Trajectories = Annotated[
    int, typer.Option(min=0, max=5000, help="With --export: how many trajectories per run are in the file.")
]


def _has_display() -> bool:
    """Whether a browser would open in a window: on a server it would take over the terminal, or do nothing."""
    if sys.platform in ("win32", "darwin"):
        return "SSH_CONNECTION" not in os.environ
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def view(
    runs: Runs = None,
    folder: Folder = Path("runs"),
    host: Host = "127.0.0.1",
    port: Port = 8710,
    key_env: KeyEnv = "AGENT_R1_VIEW_KEY",
    allow_host: AllowHost = None,
    browser: Browser = True,
    export: Export = None,
    trajectories: Trajectories = 200,
) -> None:
    """Look at runs in a browser: curves, configurations, trajectories token by token (extra `view`).

    Works while a run is being written, and offline. Nothing is changed; the index of the trajectories is a file in the
    run's folder (view_index.sqlite), or in the cache folder where that cannot be written. Ctrl-C ends it.

    Examples:

      agent-r1 view
      agent-r1 view runs/grpo runs/ppo --port 9000
      agent-r1 view runs/grpo --export grpo.html --trajectories 500
    """
    with readable_errors():
        from agent_r1.view import Catalog, ViewApi, check_folders

        api = ViewApi(Catalog(check_folders(runs or [], folder)))
        if export is not None:
            from agent_r1.view import export as exports

            result, left_out = exports.write_page(api, export, max_trajectories=trajectories)
            for problem in left_out:
                typer.echo(f"warning: {problem}", err=True)
            typer.echo(f"wrote {result}")
            return
        from agent_r1.view import server
        from agent_r1.web import listen, make_access, serve_forever

        access = make_access(host, key=os.environ.get(key_env), allowed=allow_host or (), own_pages=True)

        def announce(url: str) -> None:
            address = server.browser_address(url, access)
            count = len(api.catalog.runs())
            typer.echo(f"{count} {'run' if count == 1 else 'runs'} at {address} (Ctrl-C ends it)")
            if browser and _has_display():
                typer.launch(address)

        serve_forever(server.create_app(api, access), listen(host, port), announce)
