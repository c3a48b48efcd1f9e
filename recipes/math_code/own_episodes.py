"""Demonstrations sampled from a model: its own episodes on training problems that were right (rejection sampling).

    python recipes/math_code/sample_demonstrations.py --out runs/math_code_data/sampled.jsonl model.path=MODEL
    agent-r1 train recipes/math_code model.path=MODEL 'sft.data=[runs/math_code_data/sampled.jsonl]'

The model solves training problems with the tool, several times each. An episode is kept when its answer is right, its
last program ran without an error and printed that answer, and no turn was malformed; of each problem at most
`--keep` episodes are kept, the shortest first. Held-out problems are never sampled.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_r1.config import load_config
from agent_r1.console import RunConsole
from agent_r1.data import write_rows
from agent_r1.errors import ConfigError
from agent_r1.registry import load_module, recipe_folder
from agent_r1.training import check_model, ensure_model, load_components, prepare_plan
from agent_r1.types import Group, SamplingParams, Task, Trajectory

RECIPE = Path(__file__).resolve().parent

# A plain import would not find it when this file is run as a script.
with recipe_folder(RECIPE):
    grader = load_module("grader")

Row = dict[str, Any]


async def kept_rows(groups: Sequence[Group], keep: int) -> list[Row]:
    """The demonstrations among the episodes of some groups."""
    rows = []
    for group in groups:
        right = [trajectory for trajectory in group.trajectories if await is_demonstration(group.task, trajectory)]
        shortest = sorted(right, key=lambda trajectory: trajectory.num_action_tokens)
        unique = {_conversation_key(trajectory): trajectory for trajectory in reversed(shortest)}
        rows += [row_of(trajectory) for trajectory in list(reversed(unique.values()))[:keep]]
    return rows


async def is_demonstration(task: Task, trajectory: Trajectory) -> bool:
    """Whether an episode is right because its last program printed the answer."""
    if trajectory.is_failure or trajectory.success < 1 or not trajectory.num_tool_calls:
        return False
    if any(step.action.parse_error is not None for step in trajectory.steps):
        return False
    printed = [str(message["content"]) for message in _messages(trajectory) if message["role"] == "tool"]
    lines = [line for line in printed[-1].splitlines() if line.strip()] if printed else []
    values = [lines[-1].strip(), lines[-1].split()[-1]] if lines else []
    found = [await grader.Grader.here().is_right(str(task.ground_truth), value.strip("[]")) for value in values]
    return any(found)


def row_of(trajectory: Trajectory) -> Row:
    """The episode as a row for the warm start."""
    return {
        "messages": [dict(message) for message in _messages(trajectory)],
        "tools": [dict(schema) for schema in trajectory.steps[-1].observation.tools],
    }


def _messages(trajectory: Trajectory) -> list[Any]:
    last = trajectory.steps[-1]
    return [*(last.observation.messages or ()), last.action.as_message()]


def _conversation_key(trajectory: Trajectory) -> str:
    return repr([message["content"] for message in _messages(trajectory) if message["role"] == "assistant"])


def sample(arguments: argparse.Namespace) -> None:
    """Sample episodes and write those that are kept."""
    overrides = [*arguments.overrides, "sft.folder=null"]
    config = load_config(RECIPE, overrides)
    if config.model.tool_format != "code_blocks" or config.env.get("name") != "tool":
        raise ConfigError("demonstrations are sampled in the form of rollouts: leave env and model.tool_format alone")
    console = RunConsole()
    plan = ensure_model(prepare_plan(config), console)
    components = load_components(plan, check_model(plan), announce=console.info)
    tasks = list(plan.train_tasks)
    random.Random(config.trainer.seed).shuffle(tasks)
    sampling = SamplingParams(max_tokens=config.rollout.max_tokens, temperature=arguments.temperature)

    async def run() -> tuple[list[Group], list[Row]]:
        chosen = tasks[: arguments.tasks]
        with console.progress("sampling", len(chosen) * arguments.samples) as bar:
            async with components.opened():
                groups = await components.rollout.run(
                    chosen,
                    group_size=arguments.samples,
                    sampling=sampling,
                    seed=config.trainer.seed,
                    on_finished=lambda trajectory: bar.advance(),
                )
                return groups, await kept_rows(groups, arguments.keep)

    groups, rows = asyncio.run(run())
    episodes = [trajectory for group in groups for trajectory in group.trajectories]
    right = sum(trajectory.success for trajectory in episodes)
    called = sum(trajectory.num_tool_calls > 0 for trajectory in episodes)
    print(
        f"{len(episodes)} episodes of {len(groups)} problems: {called} ran a program, {right:.0f} were right, "
        f"{len(rows)} are kept"
    )
    if not rows:
        raise ConfigError("no episode can be kept: give a larger model, or more --tasks and --samples")
    write_rows(arguments.out, rows)


def main(given: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the file to write, .jsonl")
    parser.add_argument("--tasks", type=int, default=512, help="training problems (512)")
    parser.add_argument("--samples", type=int, default=4, help="episodes per problem (4)")
    parser.add_argument("--keep", type=int, default=2, help="episodes kept per problem (2)")
    parser.add_argument("--temperature", type=float, default=0.8, help="sampling temperature (0.8)")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes to base.yaml, such as model.path=")
    arguments = parser.parse_args(given)
    try:
        with recipe_folder(RECIPE):
            sample(arguments)
    except ConfigError as error:
        parser.exit(1, f"error: {error}\n")


if __name__ == "__main__":
    main()
