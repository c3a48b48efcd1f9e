"""The quickstart's task: its world, its demonstrations, its tools and rewards."""

from __future__ import annotations

import asyncio
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

from agent_r1.chat import ChatRenderer
from agent_r1.data.demonstrations import tokenise_conversation
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import ToolEnv
from agent_r1.registry import load_object, recipe_folder
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.tools.builtin.calculator import evaluate
from agent_r1.types import SamplingParams, Task, TokenIds, Trajectory
from recipes.quickstart.reward_fn import score
from recipes.quickstart.shop import Basket, demonstration, draw_basket, task_row
from tests.helpers.commands import resolve

RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart"


def as_task(basket: Basket) -> Task:
    row = task_row(basket)
    return Task(
        task_id="t", prompt=tuple(row["prompt"]), reward_model=row["reward_model"], env_kwargs=row["env_kwargs"]
    )


def play(renderer: ChatRenderer, tokenizer: Any, basket: Basket, replies: list[str]) -> Trajectory:
    ids = [[*tokenizer.encode(reply, add_special_tokens=False), tokenizer.eos_token_id] for reply in replies]

    def next_reply(prompt: TokenIds, sampling: SamplingParams) -> list[int]:
        return ids[len(engine.requests) - 1]

    engine = ScriptedEngine(next_reply)
    rollout = Rollout(
        engine=engine,
        renderer=renderer,
        reward=score,
        make_env=lambda task: ToolEnv(["price", "calculate"]),
        limits=RolloutLimits(max_steps=5, retries=0),
    )
    groups = asyncio.run(rollout.run([as_task(basket)], group_size=1, sampling=SamplingParams(), seed=0))
    return groups[0].trajectories[0]


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


BASKET = Basket(quantities={"egg": 7, "tea": 2}, prices={"egg": 3, "tea": 4, "milk": 9})


def test_looking_up_both_prices_and_calculating_earns_the_full_reward(renderer: ChatRenderer, tokenizer: Any) -> None:
    replies = [call("price", item="egg") + call("price", item="tea"), call("calculate", expression="7*3+2*4"), "29"]
    trajectory = play(renderer, tokenizer, BASKET, replies)
    assert trajectory.outcome_reward == 1.0
    assert [step.reward for step in trajectory.steps] == [0.2, 0.0, 0.0]
    assert trajectory.steps[2].observation.messages is not None
    assert trajectory.steps[2].observation.messages[-1]["content"] == "29"


def test_a_price_pays_only_once_and_only_when_it_is_needed(renderer: ChatRenderer, tokenizer: Any) -> None:
    replies = [call("price", item="egg"), call("price", item="egg") + call("price", item="milk"), "29"]
    trajectory = play(renderer, tokenizer, BASKET, replies)
    assert [step.reward for step in trajectory.steps] == [0.1, 0.0, 0.0]


def test_a_wrong_total_earns_nothing(renderer: ChatRenderer, tokenizer: Any) -> None:
    assert play(renderer, tokenizer, BASKET, ["28"]).outcome_reward == 0.0


def test_no_task_shows_its_total_or_prices_to_the_model() -> None:
    row = task_row(BASKET)
    assert row["prompt"] == [{"role": "user", "content": "What do 7 egg and 2 tea cost?"}]
    assert "ground_truth" not in row["env_kwargs"]


def test_the_shopper_is_right_about_one_kind_and_mostly_wrong_about_two() -> None:
    rng = random.Random(0)
    right: dict[int, list[bool]] = {1: [], 2: []}
    for _ in range(2000):
        basket = draw_basket(rng)
        said = demonstration(basket, rng)["messages"][-1]["content"]
        right[len(basket.quantities)].append(said == str(basket.total))
    assert all(right[1])
    assert 0.15 < sum(right[2]) / len(right[2]) < 0.30


def test_the_calculator_agrees_with_what_the_shopper_read(renderer: ChatRenderer) -> None:
    rng = random.Random(1)
    for _ in range(200):
        messages = demonstration(draw_basket(rng), rng)["messages"]
        for before, after in pairwise(messages):
            for made in before.get("tool_calls", []):
                if made["function"]["name"] == "calculate":
                    assert after["content"] == str(evaluate(made["function"]["arguments"]["expression"]))


def test_a_demonstration_is_one_row_because_the_template_preserves_prefixes(renderer: ChatRenderer) -> None:
    rng = random.Random(2)
    row = demonstration(draw_basket(rng), rng)
    assert len(tokenise_conversation(renderer, row["messages"], row["tools"])) == 1


def test_tokenizer_and_template_write_any_text_without_loss(tokenizer: Any) -> None:
    text = 'Grüße, 東京 — 3 < 4 {"a": [1, null]}\n'
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_the_data_is_made_when_it_is_missing(tmp_path: Path) -> None:
    recipe, config = resolve([str(RECIPE), f"run.folder={tmp_path}"])
    with recipe_folder(recipe):
        load_object("prepare:make_data", kind="data preparation")(config)
    train, held_out = (Path(paths[0]).read_text().splitlines() for paths in (config.data.train, config.data.eval))
    assert (len(train), len(held_out)) == (2048, 256)
    assert not set(train) & set(held_out)
