"""`evaluate` a model, or both models of a finished run with `evaluate_run`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agent_r1.api.arguments import Recipe, Reward, ToolLike, folder_of, resolve
from agent_r1.config import Overrides, override_texts
from agent_r1.console import RunConsole
from agent_r1.data import Rows
from agent_r1.engines import takes_messages
from agent_r1.envs import AgentEnv
from agent_r1.errors import UnknownNameError, did_you_mean, no_exit
from agent_r1.event_loop import callable_in_event_loop
from agent_r1.registry import recipe_folder
from agent_r1.runs import EvaluationPair, Gain, RunFolder, paired_gain

if TYPE_CHECKING:
    from agent_r1.evaluation import Evaluation

SPLITS = ("validation", "test", "train")
"""Where the tasks of an evaluation come from."""

BASELINES = {"react": ("model.tool_format=react",)}
"""Ways to run an untrained model, as overrides."""


@callable_in_event_loop
def evaluate(
    config_or_recipe: Recipe = None,
    *,
    model: str | Path | None = None,
    data: Rows | None = None,
    eval_data: Rows | None = None,
    tools: Sequence[ToolLike] | None = None,
    env: type[AgentEnv] | str | None = None,
    reward: Reward | None = None,
    overrides: Overrides = (),
    baseline: str | None = None,
    quiet: bool = False,
) -> Evaluation:
    """Evaluate a model on the held-out rows (the training rows when there are none).

    Args:
        config_or_recipe: As for `train`.
        model: The model to evaluate, as it is; without one, the model that the recipe's training starts from. With
            `engine=openai`, its name at the server; without one, the first that the server lists.
        data: As for `train`.
        eval_data: As for `train`.
        tools: As for `train`.
        env: As for `train`.
        reward: As for `train`.
        overrides: As for `train`, for example `["eval.samples=4"]`.
        baseline: `react`: the untrained model, without the recipe's warm start, in the ReAct text format.
        quiet: Print nothing.
    """
    from agent_r1.training import eval_run

    if baseline is not None and baseline not in BASELINES:
        raise UnknownNameError(f"unknown baseline '{baseline}'. {did_you_mean(baseline, BASELINES)}")
    texts = override_texts(overrides)
    keys = {text.partition("=")[0] for text in texts}
    is_named = model is not None or ("model.path" in keys and "sft.folder" not in keys)
    as_it_is = ["sft.folder=null"] if baseline is not None or is_named else []
    config = resolve(
        config_or_recipe,
        model=model,
        data=data,
        eval_data=eval_data,
        tools=tools,
        env=env,
        reward=reward,
        overrides=[*texts, *BASELINES.get(baseline or "", ()), *as_it_is],
    )
    if model is not None and takes_messages(config):
        config.engine.servers.model = str(model)
    with no_exit("the code of the recipe"), recipe_folder(folder_of(config)):
        return eval_run(config, RunConsole(quiet=quiet))


def evaluate_run(
    run: str | Path, *, split: str = "test", overrides: Overrides = (), again: bool = False, quiet: bool = False
) -> Gain:
    """Evaluate a finished run on the rows of a split, before and after its training, and compare task by task.

    Both evaluations are recorded in the run's folder (`evaluations/`), where `agent-r1 table` finds them.

    Args:
        run: The folder of the run.
        split: `test` for published figures, `validation`, or `train`.
        overrides: Changes of how episodes are made, for example `["rollout.max_steps=8"]`. They are recorded with the
            evaluation, which then has a row of its own in `agent-r1 table`.
        again: Evaluate again what is recorded already.
        quiet: Print nothing.
    """
    before, after = evaluations_of(run, split=split, overrides=overrides, again=again, quiet=quiet)
    return paired_gain([(before.by_task(), after.by_task())])


@callable_in_event_loop
def evaluations_of(
    run: str | Path, *, split: str, overrides: Overrides = (), again: bool = False, quiet: bool = False
) -> EvaluationPair:
    """The evaluations of a run before and after its training, with the arguments of `evaluate_run`."""
    from agent_r1.training import eval_trained

    if split not in SPLITS:
        raise UnknownNameError(f"unknown split '{split}'. {did_you_mean(split, SPLITS)}")
    folder, texts = RunFolder(Path(run)), override_texts(overrides)
    with no_exit("the code of the recipe"), recipe_folder(folder_of(folder.read_config())):
        return eval_trained(folder, split, RunConsole(quiet=quiet), overrides=texts, again=again)
