"""What a name stands for: runs, checkpoints, models, and everything that is neither."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_r1.cli.app import app
from agent_r1.config import from_yaml, load_config, to_yaml
from agent_r1.errors import CheckpointError, ConfigError, DataError
from agent_r1.inference import ChatSession, find_source, load_agent
from agent_r1.training.model_check import check_model_exists
from agent_r1.training.plan import check_config
from agent_r1.types import SamplingParams

LORA = ("model.lora.rank=2", "model.lora.targets=[q_proj, v_proj]", "optimizer.learning_rate=0.05")  # as in test_export
GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


@pytest.fixture
def run(uninterrupted: Callable[..., Path], tmp_path: Path) -> Path:
    """A copy of a finished run of four steps."""
    return shutil.copytree(uninterrupted(), tmp_path / "tiny")


def test_a_run_has_the_settings_it_was_trained_with(run: Path) -> None:
    source = find_source(run, overrides=["rollout.temperature=0.5"])
    assert source.config.model.path == str(run / "hf")
    assert (source.config.rollout.max_steps, source.config.rollout.temperature) == (2, 0.5)
    assert source.config.env["tools"] == ["price", "calculate"]
    assert source.has_recipe
    assert source.checkpoint is None


@pytest.mark.whole
def test_a_run_without_an_exported_model_has_its_newest_undamaged_checkpoint(run: Path) -> None:
    shutil.rmtree(run / "hf")
    checkpoints = sorted((run / "checkpoints").iterdir())
    newest = find_source(run)
    assert newest.checkpoint == (4, checkpoints[-1])
    (checkpoints[-1] / "state.pt").write_bytes(b"torn")
    assert find_source(run).checkpoint == (3, checkpoints[-2])
    assert checkpoints[-1].is_dir(), "a reader leaves damaged checkpoints where they are"
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(CheckpointError, match=r"neither an exported model \(hf/\) nor a checkpoint"):
        find_source(run)


@pytest.mark.whole
@pytest.mark.parametrize("adapters", [(), LORA])
def test_a_checkpoint_is_the_model_that_was_exported_from_it(
    uninterrupted: Callable[..., Path], adapters: tuple[str, ...]
) -> None:
    """The last checkpoint and `hf/` reply alike, token by token."""
    run = uninterrupted(*adapters)

    async def first_reply(step: int | None) -> tuple[int, ...]:
        agent = load_agent(run, step=step)
        async with agent.opened():
            session = ChatSession(agent)
            session.sampling = GREEDY
            return (await session.say("What do 2 egg cost?")).steps[0].action_ids

    replies = [asyncio.run(first_reply(step)) for step in (None, 4)]
    assert replies[0] == replies[1]


def test_a_step_without_a_checkpoint_is_refused_with_those_there_are(run: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint of step 1; there are: 3, 4"):
        find_source(run, step=1)


def test_a_model_without_a_recipe_is_a_plain_chat_model_sampled_as_it_was_published(
    model_folder: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(model_folder, tmp_path / "model")
    published = {"do_sample": True, "temperature": 0.5, "top_k": 7}
    (model / "generation_config.json").write_text(json.dumps(published))
    agent = load_agent(model, overrides=["rollout.max_tokens=4", "rollout.top_k=0"])
    assert (agent.flow, agent.sampling.temperature, agent.sampling.top_k) == ("single_step", 0.5, 0)

    async def talk() -> list[str]:
        async with agent.opened():
            session = ChatSession(agent)
            await session.say("hello")
            await session.say("again")
            return [message["role"] for message in session.messages]

    assert asyncio.run(talk()) == ["user", "assistant", "user", "assistant"]
    with pytest.raises(DataError, match="there are no tasks"):
        agent.tasks()


def test_a_recipe_gives_a_model_its_tools(model_folder: Path) -> None:
    source = find_source(model_folder, recipe="recipes/quickstart")
    assert source.config.env["tools"] == ["price", "calculate"]
    assert source.config.model.path == str(model_folder)
    assert source.config.model.prepare is None


def test_what_is_neither_a_run_nor_a_model_is_refused_with_what_is_there(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="It contains runs: tiny; name one of them"):
        find_source(tmp_path)
    with pytest.raises(ConfigError, match=r"tinny does not exist. Did you mean 'tiny'\?"):
        find_source(tmp_path / "tinny")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"neither a run \(it has no config.yaml\) nor a model"):
        find_source(tmp_path / "empty")
    with pytest.raises(ConfigError, match=r"leave model\.path out"):
        find_source(run, overrides=["model.path=other"])


def test_what_newcomers_type_is_answered_with_what_they_mean(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, "runs/shop")
    with pytest.raises(ConfigError, match=r"Did you mean the run runs/shop\?"):
        find_source("shop")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"notes\.txt is a file"):
        find_source("notes.txt")
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "base.yaml").touch()
    with pytest.raises(ConfigError, match=r"shop .* It is a recipe: name its run"):
        find_source("shop")
    config = load_config(None, {"model.path": str(run)})
    with pytest.raises(ConfigError, match=f"whose model is {run / 'hf'}"):
        check_model_exists(config)
    (run / "config.yaml").write_text("a: [\n")
    with pytest.raises(ConfigError, match=rf"^{run / 'config.yaml'} cannot be read: .*damaged"):
        find_source(run)


@pytest.mark.whole
def test_a_run_whose_recipe_is_elsewhere_says_where_it_was_trained(run: Path) -> None:
    config = from_yaml((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(to_yaml(replace(config, recipe="recipes/gone")))
    with pytest.raises(ConfigError, match="recipes/gone, which is not here"):
        load_agent(run)


@pytest.mark.whole
def test_data_that_is_gone_is_named(run: Path) -> None:
    config = from_yaml((run / "config.yaml").read_text())
    gone = replace(config.data, train=["gone.jsonl"], eval=[])
    (run / "config.yaml").write_text(to_yaml(replace(config, data=gone)))
    agent = load_agent(run)
    assert agent.system_message() is None
    with pytest.raises(DataError, match=r"the data files gone\.jsonl are not here"):
        agent.tasks()


@pytest.mark.whole
@pytest.mark.parametrize(("env_kwargs", "expected"), [({"prices": {"tea": 4}}, True), ({}, False), (None, False)])
def test_rows_with_facts_of_their_own_are_worlds(run: Path, tmp_path: Path, env_kwargs: object, expected: bool) -> None:
    row = {"prompt": "What does tea cost?", **({} if env_kwargs is None else {"env_kwargs": env_kwargs})}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    config = from_yaml((run / "config.yaml").read_text())
    data = replace(config.data, train=[str(tmp_path / "rows.jsonl")], eval=[])
    (run / "config.yaml").write_text(to_yaml(replace(config, data=data)))
    assert load_agent(run).has_worlds is expected


TOOLS = """
from agent_r1 import tool

@tool
def price_of_mine(item: str) -> str:
    \"\"\"The price of one item.\"\"\"
    return "4"
"""


def test_a_run_that_a_program_started_names_its_objects_as_those_of_a_file_here(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`agent_r1.train(tools=[price_of_mine], reward=mine)` leaves their bare names in the run's configuration."""
    config = from_yaml((run / "config.yaml").read_text())
    env, reward = {**config.env, "tools": ["price_of_mine"]}, replace(config.reward, function="mine")
    data = replace(config.data, prepare=None)
    (run / "config.yaml").write_text(
        to_yaml(replace(config, recipe=None, imports=[], env=env, reward=reward, data=data))
    )
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "here/tools_of_mine.py").write_text(TOOLS)
    words = ["chat", str(run), "--question", "What do 2 tea cost?", "--verbose"]

    refused = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert refused.exit_code != 0
    assert "unknown tool 'price_of_mine'" in refused.output
    assert "as module:attribute, where the module is a file of the current folder: agent-r1 chat RUN" in refused.output

    named = ["env.tools=[tools_of_mine:price_of_mine]", "reward.function=none"]
    answered = CliRunner().invoke(app, [*words, *named], env={"COLUMNS": "200"})
    assert answered.exit_code == 0, answered.output


@pytest.mark.parametrize(
    ("rewards", "advice"),
    [
        ("reward.function=mine", r"env.tools=\[my_shop:price\] reward.function=my_shop:correct\."),
        (
            "reward.functions=[{name: mine}]",
            r"""env.tools=\[my_shop:price\] 'reward.functions=\[\{name: "my_shop:correct"\}\]'""",
        ),
    ],
)
def test_the_advice_on_objects_of_a_program_sets_the_key_of_rewards_that_the_run_uses(
    rewards: str, advice: str
) -> None:
    with pytest.raises(ConfigError, match=advice):
        check_config(load_config(None, ["model.path=base", rewards]))
