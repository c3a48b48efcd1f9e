"""A recipe inside verl: its flow, environment, tools and reward play one episode with verl's servers.

verl makes a loop per episode. What they share (the configuration, the renderer, the processes behind tools) is loaded
once per process.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from agent_r1.chat import ChatRenderer, generation_stop_ids
from agent_r1.config import Config, from_yaml, load_config
from agent_r1.data import task_from_row
from agent_r1.engines import Engine
from agent_r1.errors import ConfigError, DataError, no_exit
from agent_r1.gateway import Gateway
from agent_r1.integrations.verl.settings import check_rewards, image_problem
from agent_r1.registry import recipe_folder
from agent_r1.rewards import ProcessBalance, RewardShaping
from agent_r1.tools import ToolRunner
from agent_r1.training import RunPlan, check_config, make_rollout, tool_policies
from agent_r1.types import SamplingParams, Task, Trajectory, media_in

RECIPE_VARIABLE = "AGENT_R1_VERL_RECIPE"
"""The environment variable that names the recipe of a process of verl."""
TASK_COLUMN = "agent_r1_task"
"""The column of verl's rows that has the whole row of ours, as JSON text."""

_MEDIA_COLUMNS = ("multi_modal_data", "images", "videos", "audios")
_NO_MEDIA = "the agent loop agent_r1 carries text alone in verl: leave such rows out, or train with agent-r1 train"


def read_recipe(path: str | Path) -> Config:
    """The configuration of a recipe: its folder or name, or the YAML file that `python -m agent_r1.integrations.verl`
    wrote."""
    file = Path(path)
    if file.suffix not in (".yaml", ".yml"):
        return load_config(path)
    if not file.is_file():
        raise ConfigError(
            f"there is no recipe {file}; python -m agent_r1.integrations.verl RECIPE --out FOLDER writes it"
        )
    return from_yaml(file.read_text())


@contextmanager
def open_recipe(config: Config) -> Iterator[None]:
    """Within this block, names of the recipe's own modules are found."""
    if config.recipe is not None and not Path(config.recipe).is_dir():
        raise ConfigError(
            f"the recipe's folder {config.recipe} is not on this machine; put it there (every node needs it), or write "
            "the recipe again with python -m agent_r1.integrations.verl"
        )
    with no_exit("the code of the recipe"), recipe_folder(None if config.recipe is None else Path(config.recipe)):
        yield


def task_of_row(row: Mapping[str, Any], default_agent: str = "env_loop") -> Task:
    """The task of a row that verl read: from the column that our command writes, else from verl's own columns, in which
    `raw_prompt` has the messages and `extra_info.flow` may name a flow. Raises `DataError` for a row with images."""
    media = [column for column in _MEDIA_COLUMNS if row.get(column) is not None and len(row[column])]
    if media:
        raise DataError(f"a row of verl has the column '{media[0]}'; {_NO_MEDIA}")
    text = row.get(TASK_COLUMN)
    if text is not None:
        try:
            columns_of_task = json.loads(text)
        except (TypeError, ValueError) as error:
            raise DataError(f"the column {TASK_COLUMN} must hold JSON text, found {text!r:.80}: {error}") from error
        if not isinstance(columns_of_task, dict):
            raise DataError(f"the column {TASK_COLUMN} must hold JSON text of an object, found {text!r:.80}")
        return _make_task(columns_of_task, "verl", default_agent)
    extra = row.get("extra_info") or {}
    columns: dict[str, Any] = {
        key: row[key] for key in ("reward_model", "env_kwargs", "data_source", "task_id") if row.get(key) is not None
    }
    prompt = row.get("raw_prompt")
    columns |= {"prompt": None if prompt is None else [dict(message) for message in prompt], "extra_info": dict(extra)}
    return _make_task(columns, str(extra.get("index", "verl")), str(extra.get("flow", default_agent)))


def _make_task(row: Mapping[str, Any], task_id: str, agent: str) -> Task:
    prompt = row.get("prompt")
    if isinstance(prompt, list | tuple) and media_in(prompt):
        raise DataError(f"a prompt of verl's rows has {' and '.join(media_in(prompt))} content; {_NO_MEDIA}")
    try:
        return task_from_row(row, task_id, agent)
    except ValueError as error:
        raise DataError(f"a row of verl is no task: {error}") from error


class VerlRecipe:
    """A recipe that plays episodes with engines of verl."""

    def __init__(self, config: Config) -> None:
        check_rewards(config)
        with open_recipe(config):
            algorithm, reward = check_config(config)
        self.config = config
        self._plan = RunPlan(config=config, algorithm=algorithm, reward=reward, train_tasks=[], eval_tasks=[])
        self._tools = ToolRunner(tool_policies(config), seed=config.trainer.seed)
        self._gateway = Gateway(config.agent)
        self._renderers: dict[int, tuple[Any, ChatRenderer]] = {}
        self._shaping = _shaping(config)

    def renderer(self, tokenizer: Any, model_path: str) -> ChatRenderer:
        """The renderer of verl's tokenizer, whose chat template verl's configuration may have replaced."""
        entry = self._renderers.get(id(tokenizer))
        if entry is None:
            problem = image_problem(model_path)
            if problem is not None:
                raise ConfigError(f"the agent loop agent_r1 cannot be used: {problem}")
            renderer = ChatRenderer(tokenizer, self.config.model.tool_format, stop_ids=generation_stop_ids(model_path))
            entry = self._renderers[id(tokenizer)] = (tokenizer, renderer)
        return entry[1]

    async def play(
        self, task: Task, *, engine: Engine, renderer: ChatRenderer, sampling_params: Mapping[str, Any], seed: int
    ) -> Trajectory:
        """One scored episode, retried as the recipe says. Raises `RolloutsFailingError` when every attempt failed."""
        sampling = SamplingParams(
            max_tokens=self.config.rollout.max_tokens,
            temperature=float(sampling_params.get("temperature", 1.0)),
            top_p=float(sampling_params.get("top_p", 1.0)),
            top_k=max(0, int(sampling_params.get("top_k", 0))),
        )
        with open_recipe(self.config):
            rollout = make_rollout(self._plan, renderer, engine, self._tools, self._gateway)
            (group,) = await rollout.run([task], group_size=1, sampling=sampling, seed=seed)
        return group.trajectories[0]

    def rewards_of(self, trajectory: Trajectory) -> tuple[float, ...]:
        """The reward of each step, as a run would shape it, with the outcome on the last."""
        return self._shaping.plain_rewards(trajectory)


def _shaping(config: Config) -> RewardShaping:
    process = config.algorithm.process
    return RewardShaping(
        process=ProcessBalance(weight=config.reward.process_weight, bound=process.bound),
        max_tokens=config.rollout.max_tokens,
        overlong_fraction=config.algorithm.overlong_fraction,
    )


@cache
def load_recipe(path: str) -> VerlRecipe:
    """The recipe at `path`, loaded once per process."""
    return VerlRecipe(read_recipe(path))
