"""Warns before a run starts when the disk has too little space for what it will write."""

from __future__ import annotations

from agent_r1.config import Config
from agent_r1.files import free_bytes, size_in_words
from agent_r1.learner import Learner
from agent_r1.runs import RunFolder, list_checkpoints


def disk_space_warning(config: Config, learner: Learner, folder: RunFolder) -> str | None:
    """The warning for a run without enough disk space; None where there is enough.

    With keep_checkpoints=2 there are three while the third is written, then two and the exported model. A resumed run
    already has some of them. With keep_checkpoints=0 there is only the model.
    """
    settings = config.trainer
    saved_steps = [step for step, _ in list_checkpoints(folder.checkpoints)]
    to_come = range(max(saved_steps, default=0) + 1, settings.steps + 1)
    num_saves = sum(step % settings.save_every == 0 or step == settings.steps for step in to_come)
    at_once = settings.keep_checkpoints + 1 if settings.keep_checkpoints else 0
    num_more = max(0, min(at_once - len(saved_steps), num_saves))
    checkpoint, model = learner.checkpoint_bytes(), learner.model_bytes()
    needed, free = num_more * checkpoint + model, free_bytes(folder.path)
    if needed <= free:
        return None
    if not settings.keep_checkpoints:
        return (
            f"the run will need {size_in_words(needed)} in {folder.path} for its model and {size_in_words(free)} are "
            "free there. The model may be missing at the end: make room"
        )
    return (
        f"the run will need {size_in_words(needed)} in {folder.path} ({num_more} x {size_in_words(checkpoint)} for "
        f"checkpoints, {size_in_words(model)} for the model) and {size_in_words(free)} are free there. Checkpoints "
        f"that do not fit will be missing: keep fewer (trainer.keep_checkpoints is {settings.keep_checkpoints}), write "
        f"fewer (trainer.save_every is {settings.save_every}), or make room"
    )
