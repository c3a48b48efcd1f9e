"""`python -m agent_r1.integrations.verl RECIPE --out FOLDER`: write what verl needs to train a recipe."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from agent_r1.console import RunConsole
from agent_r1.errors import AgentR1Error
from agent_r1.integrations.verl.export import export_recipe


def main() -> int:
    """Write the folder; 1 with one line when that is not possible."""
    parser = argparse.ArgumentParser(
        prog="python -m agent_r1.integrations.verl",
        description="Write a folder from which verl trains a recipe: configuration, rows and launch.sh.",
    )
    parser.add_argument("recipe", help="a recipe folder, or the name of one that comes with the package")
    parser.add_argument("overrides", nargs="*", help="changes of its configuration, such as rollout.group_size=4")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs of the machine (trainer.n_gpus_per_node); default 1")
    arguments = parser.parse_intermixed_args()
    console = RunConsole()
    if arguments.gpus < 1:
        parser.error(f"--gpus {arguments.gpus}: verl's trainer needs at least one GPU")
    try:
        settings = export_recipe(
            arguments.recipe, arguments.out, overrides=arguments.overrides, gpus=arguments.gpus, console=console
        )
    except AgentR1Error as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for note in settings.notes:
        console.info(f"differs: {note}")
    console.info(f"written to {arguments.out}; train with: {arguments.out}/launch.sh")
    return 0


if __name__ == "__main__":
    sys.exit(main())
