"""`agent-r1 export`: a run's model as a Hugging Face folder with a model card."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from agent_r1.cli.errors import readable_errors


class LoraForm(StrEnum):
    """What becomes of LoRA adapters."""

    MERGED = "merged"
    APART = "apart"


ModelOrRun = Annotated[
    str,
    typer.Argument(
        metavar="RUN|MODEL",
        help="A run's folder (runs/quickstart); or a model: a Hugging Face folder or id, or a GGUF file.",
    ),
]
Out = Annotated[Path, typer.Option(help="The folder to write.", metavar="FOLDER")]
Lora = Annotated[
    LoraForm,
    typer.Option(help="merged: adapters are added to the weights. apart: a PEFT folder with the adapters alone."),
]
Step = Annotated[
    int | None,
    typer.Option(min=1, help="The checkpoint of this step; by default the final model, else the newest checkpoint."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace a model that is in the folder.")]
Licence = Annotated[
    str | None,
    typer.Option("--license", help="The licence for the model card, such as apache-2.0.", metavar="ID"),
]


def export(
    model_or_run: ModelOrRun,
    out: Out,
    lora: Lora = LoraForm.MERGED,
    step: Step = None,
    force: Force = False,
    licence: Licence = None,
) -> None:
    """Write a model for others: a folder that transformers and vLLM load, with a model card.

    The card (README.md) says what the model was trained on and how, its figures before and after with the command that
    gives them, and how to load it. The licence of the base model is for you to state. The folder is written completely
    or not at all.

    Examples:

      agent-r1 export runs/quickstart --out shopper
      agent-r1 export runs/quickstart --step 10 --out shopper_step10
      agent-r1 export runs/my_lora_run --lora apart --out adapters
    """
    with readable_errors():
        from agent_r1.inference import export_agent

        done = export_agent(model_or_run, out, lora=lora.value, step=step, force=force, licence=licence, say=typer.echo)
        made_from = "" if done.step is None else f" (checkpoint of step {done.step})"
        typer.echo(f"model: {done.folder}{made_from}")
        if done.note is not None:
            typer.echo(done.note)
        if licence is None:
            typer.echo(f"Before you publish it, state its licence in {done.folder / 'README.md'}.")
