"""`agent-r1 plan`: what a recorded run would do on other hardware and with other settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_r1.cli.errors import readable_errors
from agent_r1.cli.recipes import JsonFile, Overrides, Recipe, split_arguments
from agent_r1.codec import write_json
from agent_r1.errors import ConfigError

if TYPE_CHECKING:
    from agent_r1.planning import Plan


def plan(
    recipe: Recipe,
    overrides: Overrides = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Devices to divide; every way to do so is simulated.")
    ] = None,
    engines: Annotated[int | None, typer.Option(min=1, max=1024, help="Devices for engines; with --learners.")] = None,
    learners: Annotated[int | None, typer.Option(min=1, max=1024, help="Devices for learners; with --engines.")] = None,
    staleness: Annotated[int | None, typer.Option(min=0, help="Short for rollout.max_staleness=NUMBER.")] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="The recorded run; by default the folder that the recipe names, runs/<name>.", metavar="RUN"),
    ] = None,
    tools: Annotated[float, typer.Option(min=0.0, help="Tools and rewards take this many times as long.")] = 1.0,
    efficiency: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="What each further learner adds, in learners.")
    ] = 0.9,
    recorded_engines: Annotated[int, typer.Option(min=1, help="Engines that the recorded run had.")] = 1,
    recorded_learners: Annotated[int, typer.Option(min=1, help="Learners that the recorded run had.")] = 1,
    json: JsonFile = None,
    figure: Annotated[
        Path | None, typer.Option("--plot", help="Draw the plan (.png, .svg, .pdf; extra `plot`).", metavar="FILE")
    ] = None,
) -> None:
    """Simulate a recorded run on other hardware or with other settings: step time, bottleneck, what would help.

    The plan is made from what a run has recorded: the lengths of its episodes, the times of tools, model calls and
    updates. Changed settings are given as key=value: rollout.concurrency, rollout.groups_per_step, rollout.group_size
    and rollout.max_staleness. Nothing is trained.

    Examples:

      agent-r1 train quickstart trainer.steps=6            # a record
      agent-r1 plan quickstart --gpus 8
      agent-r1 plan quickstart --gpus 8 --staleness 1 --json plan.json --plot plan.png
      agent-r1 plan quickstart --engines 6 --learners 2 rollout.concurrency=1024
      agent-r1 plan quickstart --run runs/my_run --tools 3 rollout.group_size=16
    """
    folder, changes = split_arguments(recipe, overrides)
    with readable_errors():
        if (engines is None) != (learners is None):
            raise ConfigError("--engines and --learners belong together: give both, or --gpus to try every split")
        if engines is not None and gpus is not None:
            raise ConfigError("--gpus tries every split of the devices; with it leave out --engines and --learners")
        if staleness is not None:
            changes = [*changes, f"rollout.max_staleness={staleness}"]
        hardware = {"engines": engines or 1, "learners": learners or 1, "shared": engines is None}
        before = {"engines": recorded_engines, "learners": recorded_learners}
        result = _make(folder, changes, run, {**hardware, "efficiency": efficiency}, before, devices=gpus, tools=tools)
        _write(result, json, figure)


def _make(
    recipe: str | None,
    changes: list[str],
    run: Path | None,
    hardware: dict[str, Any],
    before: dict[str, int],
    **settings: Any,
) -> Plan:
    """Plan for some hardware, from a run that had other hardware before."""
    from agent_r1.config import load_config
    from agent_r1.planning import make_plan, read_recorded_run, setup_of
    from agent_r1.runs import RunFolder

    config = load_config(recipe, changes)
    is_shared = before["engines"] == before["learners"]
    recorded = read_recorded_run(run or RunFolder.of(config).path, **before, shared=is_shared)
    return make_plan(recorded, setup_of(config, **hardware), **settings)


def _write(made: Plan, json: Path | None, figure: Path | None) -> None:
    """Print the plan, and write it where files are given."""
    from agent_r1.console import RunConsole
    from agent_r1.files import write_atomically
    from agent_r1.planning import draw_plan, plan_as_json, print_plan
    from agent_r1.runs import save_figure

    print_plan(made, RunConsole())
    if json is not None:
        write_atomically(json, write_json(plan_as_json(made), indent=2) + "\n")
    if figure is not None:
        save_figure(draw_plan(made), figure)
