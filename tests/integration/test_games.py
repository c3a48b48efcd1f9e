"""The recipe games: TextCraft's world, commands, goals, expert, environment, and whole runs."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from agent_r1.chat import ChatRenderer
from agent_r1.data.tasks import load_tasks, read_rows
from agent_r1.envs import AgentEnv, check_env
from agent_r1.errors import DataError
from agent_r1.models.tiny import train_tokenizer
from agent_r1.registry import load_module, recipe_folder
from agent_r1.types import Action, Episode, StopReason, Task
from tests.conftest import tiny_config
from tests.helpers import commands as runs
from tests.helpers.commands import resolve
from tests.helpers.recipe_runs import ROOT, WHOLE_DATA, MadeSample

RECIPE = ROOT / "recipes" / "games"
MODEL = "model.path=none"

with recipe_folder(RECIPE):
    environment = load_module("env")
    commands = load_module("textcraft.commands")
    expert = load_module("textcraft.expert")
    games = load_module("textcraft.game")
    goals = load_module("textcraft.goals")
    process = load_module("data_preprocess.process_games")
    reward_fn = load_module("reward_fn")
    sources = load_module("data_preprocess.sources")
    worlds = load_module("textcraft.world")

Ingredient, Recipe, World, Amount = worlds.Ingredient, worlds.Recipe, worlds.World, commands.Amount


def recipe(item: str, count: int, *uses: tuple[int, str]) -> Any:
    return Recipe(item, count, tuple(Ingredient(number, tuple(names.split("/"))) for number, names in uses))


SMALL = [
    recipe("oak planks", 4, (1, "oak log/stripped oak log")),
    recipe("birch planks", 4, (1, "birch log")),
    recipe("stick", 4, (2, "oak planks/birch planks")),
    recipe("ladder", 3, (7, "stick")),
    recipe("iron ingot", 9, (1, "iron block")),
    recipe("iron block", 1, (9, "iron ingot")),
    recipe("iron sword", 1, (2, "iron ingot"), (1, "stick")),
    recipe("iron pickaxe", 1, (3, "iron ingot"), (2, "stick")),
]


@dataclass(frozen=True)
class Made(MadeSample):
    """A few recipes as the recipe makes them."""

    def env(self) -> AgentEnv:
        env: AgentEnv = environment.TextCraftEnv(world=str(self.folder))
        return env


@pytest.fixture(scope="module")
def every_recipe() -> list[Any]:
    return cast(list[Any], sources.world_recipes(sources.SAMPLE))


@pytest.fixture(scope="module")
def world(every_recipe: list[Any]) -> Any:
    return World(every_recipe)


@pytest.fixture(scope="module")
def made(every_recipe: list[Any], tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The files that the script writes for 80 of the recipes, and a tokenizer made of them."""
    folder = tmp_path_factory.mktemp("runs")
    words = ("oak", "iron", "stick", "stone", "rail", "torch", "glass")
    some = [row for row in every_recipe if any(word in row.item for word in words) and "stained" not in row.item]
    (folder / "few").mkdir()
    (folder / "few" / "recipes.jsonl").write_text("".join(json.dumps(row.to_json()) + "\n" for row in some))
    data = folder / "games_data"
    process.main(["--local_save_dir", str(data), "--local_dataset_path", str(folder / "few"), MODEL])
    _, config = resolve([str(RECIPE), f"run.folder={folder}", MODEL])
    return Made(data, config, ChatRenderer(train_tokenizer(list(read_rows(data / "demonstrations.jsonl")))))


def play(env: AgentEnv, task: Task, texts: Sequence[str]) -> list[Any]:
    """The result of each action."""

    async def run() -> list[Any]:
        await env.reset(task)
        return [await env.step(Action(text=text, content=text)) for text in texts]

    return asyncio.run(run())


def replies(texts: Sequence[str], goal: str = "ladder", recipes: Sequence[Any] = SMALL) -> list[tuple[str, bool]]:
    game = games.Game(World(recipes), Amount(1, goal))
    return [game.run(commands.read_command(text)) for text in texts]


def score(*steps: Any, reason: StopReason = StopReason.DONE) -> float:
    """The reward of an episode whose last result is the last of these."""

    class Step:
        info = steps[-1].info if steps else {}

    episode = Episode(steps=cast(Any, (Step,) if steps else ()), stop_reason=reason)
    return float(reward_fn.score(Task(task_id="t", prompt=()), episode)["score"])


# The world


def test_depths_are_those_of_the_shortest_recipes_and_circles_are_broken() -> None:
    depth = World(SMALL).depth
    assert {item: depth[item] for item in ("oak log", "oak planks", "stick", "ladder")} == {
        "oak log": 0,
        "oak planks": 1,
        "stick": 2,
        "ladder": 3,
    }
    # Ingots and blocks are made of each other; more recipes use ingots.
    assert (depth["iron ingot"], depth["iron block"], depth["iron sword"]) == (0, 1, 3)
    assert "iron ingot" not in World(SMALL).recipes


def test_the_order_of_recipes_does_not_matter(every_recipe: list[Any], world: Any) -> None:
    shuffled = random.Random(1).sample(every_recipe, len(every_recipe))
    assert World(shuffled).depth == world.depth
    assert World(shuffled).recipes == world.recipes


def test_every_ingredient_is_less_deep_than_what_it_makes(world: Any) -> None:
    for item in world.craftable:
        for made_by in world.recipes[item]:
            assert (
                max(world.depth[option] for part in made_by.ingredients for option in world.shallow(part))
                < (world.depth[item])
            )


def test_the_shipped_recipes_are_those_of_textcraft(every_recipe: list[Any], world: Any) -> None:
    assert (len(every_recipe), len(world.craftable), max(world.depth.values())) == (634, 551, 4)


@pytest.mark.parametrize(
    "row", [{}, {"item": "x", "count": 0, "uses": [[1, "y"]]}, {"item": "x", "count": 1, "uses": []}, [1], None]
)
def test_rows_that_are_no_recipes_are_refused(row: Any) -> None:
    with pytest.raises(DataError, match="a recipe is an object with item, count and uses"):
        Recipe.from_json(row)


def test_an_unknown_tag_and_a_folder_without_recipes_are_refused(tmp_path: Path) -> None:
    row = {"type": "minecraft:crafting_shapeless", "ingredients": [{"tag": "m:new"}], "result": {"item": "m:x"}}
    with pytest.raises(DataError, match="the tag 'new' is unknown"):
        list(sources.game_recipes([row]))
    with pytest.raises(DataError, match="no recipe files"):
        sources.world_recipes(tmp_path)


@pytest.mark.skipif(not (WHOLE_DATA / "textcraft").is_dir(), reason="the game's own files are not here")
def test_the_game_s_own_files_give_the_shipped_recipes(every_recipe: list[Any]) -> None:
    assert set(sources.world_recipes(WHOLE_DATA / "textcraft")) == set(every_recipe)


# Commands


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("get 2 oak log", "get 2 oak log"),
        ("Thought: planks first.\n> Craft 4 oak_planks using 1 Oak Log.", "craft 4 oak planks using 1 oak log"),
        ("craft 1 iron sword using 2 iron ingot,1 stick", "craft 1 iron sword using 2 iron ingot, 1 stick"),
        ("inventory", "inventory"),
        ("get 1 oak log\nget 2 birch log", "get 2 birch log"),
        *(
            (wrong, "None")
            for wrong in ("", "get oak log", "get 0 log", "get 1000 log", "get 1 log using 1 log", "craft 1 ladder")
        ),
        ("craft 1 a using 1 b, c", "None"),
        ("get " + "1" * 5000 + " log", "None"),
    ],
)
def test_a_command_is_read_from_the_last_line_that_has_one(text: str, command: str) -> None:
    assert str(commands.read_command(text)) == command


@given(st.text(max_size=300))
def test_whatever_the_model_writes_is_a_command_or_none(text: str) -> None:
    command = commands.read_command(text)
    if command is not None:
        assert commands.read_command(str(command)) == command
        games.Game(World(SMALL), Amount(1, "ladder")).run(command)


# The game


def test_commands_take_and_make_items_and_recipes_can_be_multiplied() -> None:
    texts = ["get 4 oak log", "craft 16 oak planks using 4 oak log", "craft 12 stick using 6 oak planks", "inventory"]
    assert replies([*texts, "craft 3 ladder using 7 stick"]) == [
        ("Got 4 oak log.", True),
        ("Crafted 16 oak planks.", True),
        ("Crafted 12 stick.", True),
        ("Inventory: 10 oak planks, 12 stick.", True),
        ("Crafted 3 ladder.", True),
    ]


def test_items_of_a_kind_may_be_mixed() -> None:
    gets = ["get 1 oak log", "get 1 birch log"]
    planks = ["craft 4 oak planks using 1 oak log", "craft 4 birch planks using 1 birch log"]
    assert replies([*gets, *planks, "craft 4 stick using 1 oak planks, 1 birch planks"])[-1] == (
        "Crafted 4 stick.",
        True,
    )


@pytest.mark.parametrize(
    ("texts", "reply"),
    [
        (["get 1 stick"], "Error: stick cannot be found, it must be crafted."),
        (["get 1 iron ore"], "Error: there is no item iron ore."),
        (["craft 1 oak log using 1 stick"], "Error: there is no recipe for oak log."),
        (
            ["craft 4 stick using 1 oak planks"],
            "Error: this is not the recipe: craft 4 stick using 2 oak planks or b",
        ),
        (["craft 5 stick using 2 oak planks"], "Error: this is not the recipe"),
        (["craft 4 stick using 2 oak planks, 1 oak log"], "Error: this is not the recipe"),
        (["get 1 birch log", "craft 8 oak planks using 2 oak log"], "Error: 2 oak log needed. Inventory: 1 birch log."),
    ],
)
def test_what_cannot_be_done_says_why_and_changes_nothing(texts: list[str], reply: str) -> None:
    told, succeeded = replies(texts)[-1]
    assert (told.startswith(reply), succeeded) == (True, False), told
    inventory = replies([*texts, "inventory"])[-1][0]
    assert inventory == replies([*texts[:-1], "inventory"])[-1][0]


def test_nothing_can_be_hoarded_without_end() -> None:
    told = replies(["get 999 oak log"] * 11)
    assert told[-1] == ("Error: more than 9999 oak log cannot be held.", False)


# Goals and the expert


def test_the_plan_takes_and_crafts_each_item_once() -> None:
    world = World([entry for entry in SMALL if entry.item != "birch planks"])
    planks = world.recipes["stick"][0].ingredients[0]
    assert world.shallow(planks) == ("birch planks",)  # nothing makes them here, so they lie about
    choice = goals.choose(world, "iron pickaxe", random.Random(0))
    assert [str(command) for command in expert.plan(choice, Amount(3, "iron pickaxe"))] == [
        "get 9 iron ingot",
        "get 4 birch planks",
        "craft 8 stick using 4 birch planks",
        "craft 3 iron pickaxe using 9 iron ingot, 6 stick",
    ]


def test_solutions_reach_their_goal_and_not_one_command_sooner(world: Any) -> None:
    deep = [item for item in world.craftable if world.depth[item] >= 3][::3]
    for goal in goals.make_goals(world, [*deep, *world.craftable[::9]], 1):
        game = games.Game(world, goal.amount)
        for command in goal.solution:
            assert not game.is_won
            assert game.run(command)[1], (goal.goal_id, str(command))
        assert game.is_won


def test_no_goal_item_is_in_two_splits_and_every_depth_is_in_each(world: Any) -> None:
    splits = goals.split_items(world)
    assert sorted(item for items in splits.values() for item in items) == sorted(world.craftable)
    assert all({world.depth[item] for item in items} == {1, 2, 3, 4} for items in splits.values())


def test_all_needed_recipes_are_shown_among_others(world: Any) -> None:
    goal = goals.make_goal(world, "lectern", 3)
    shown = {recipe.item for recipe in goal.shown}
    crafted = {command.amount.item for command in goal.solution if command.verb == "craft"}
    assert crafted < shown
    assert len(shown - crafted) == goals.NUM_OTHERS
    assert goal.difficulty == 4


# Rows and the environment


def test_rows_have_the_usual_columns_and_a_difficulty(made: Made) -> None:
    task = made.tasks("test")[0]
    [row] = [row for row in read_rows(made.folder / "test.parquet") if row["task_id"] == task.task_id]
    assert (task.data_source, task.agent_name) == (f"textcraft_depth{row['difficulty']}", "env_loop")
    assert [message["role"] for message in task.prompt] == ["system", "user"]
    goal = task.env_kwargs["goal"]
    assert task.prompt[1]["content"].endswith(f"Goal: craft {goal['count']} {goal['item']}.")
    assert task.ground_truth is None


def test_gold_plans_earn_one_and_anything_less_earns_nothing(made: Made) -> None:
    for task in made.tasks("test"):
        plan = cast(Any, made.env()).gold_actions(task)
        results = play(made.env(), task, plan)
        assert [result.done for result in results] == [False] * (len(plan) - 1) + [True]
        assert score(*results) == 1.0
        assert score(*play(made.env(), task, plan[:-1]), reason=StopReason.MAX_STEPS) == 0.0
        wrong = [text.replace("get ", "get 1") for text in plan if text.startswith("get")] + plan[-1:]
        if len(plan) > len(wrong):
            assert not play(made.env(), task, wrong)[-1].done
    assert score() == 0.0


def test_mistakes_are_counted_and_explained(made: Made) -> None:
    [unread, missing] = play(made.env(), made.tasks("train")[0], ["I would like some planks", "get 1 gold coin"])
    assert unread.observation.messages[-1]["content"] == environment.NO_COMMAND
    assert "there is no item gold coin" in missing.observation.messages[-1]["content"]
    assert unread.info["metrics"] == missing.info["metrics"] == {"textcraft/mistakes": 1.0}


def test_the_anchor_is_what_is_held(made: Made) -> None:
    task = made.tasks("train")[0]
    [other, same] = (play(made.env(), task, texts)[-1] for texts in (["get 2 iron ingot"], ["inventory"]))
    assert (other.observation.anchor, same.observation.anchor) == ("Inventory: 2 iron ingot.", "Inventory: empty.")


@pytest.mark.parametrize("goal", [None, {}, {"item": "stick"}, {"item": "stick", "count": 0}, {"item": 3, "count": 1}])
def test_a_row_without_a_goal_is_refused(made: Made, goal: Any) -> None:
    with pytest.raises(DataError, match=r"needs env_kwargs.goal with an item and a count from 1"):
        play(made.env(), Task(task_id="t", prompt=(), env_kwargs={"goal": goal}), [])


def test_a_goal_that_nothing_makes_and_a_missing_world_are_refused(made: Made, tmp_path: Path) -> None:
    task = Task(task_id="t", prompt=(), env_kwargs={"goal": {"item": "oak log", "count": 1}})
    with pytest.raises(DataError, match=r"task 't': no recipe of .* makes 'oak log'"):
        play(made.env(), task, [])
    with pytest.raises(DataError, match=r"there is no .*recipes.jsonl. The data script writes it"):
        play(environment.TextCraftEnv(world=str(tmp_path)), task, [])


def test_the_environment_keeps_the_contract(made: Made) -> None:
    findings = check_env(made.env, made.tasks("train")[0])
    assert [finding for finding in findings if finding.rule] == []


def test_only_shallow_training_goals_are_demonstrated_and_each_reaches_its_goal(made: Made) -> None:
    by_prompt = {task.prompt[1]["content"]: task for task in made.tasks("train")}
    assert made.demonstrations
    for row in made.demonstrations[::7]:
        task = by_prompt[row["messages"][1]["content"]]
        assert task.data_source in ("textcraft_depth1", "textcraft_depth2")
        texts = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
        assert play(made.env(), task, texts)[-1].done


@pytest.mark.whole
def test_gold_plans_of_all_goals_earn_one(tmp_path: Path) -> None:
    process.main(["--local_save_dir", str(tmp_path), MODEL])
    tasks = load_tasks([tmp_path / f"{split}.parquet" for split in ("train", "validation", "test")])
    assert len(tasks) == 2569
    env = environment.TextCraftEnv(world=str(tmp_path))
    for task in tasks:
        assert score(*play(env, task, env.gold_actions(task))) == 1.0


# Whole runs

SHORT = (
    "rollout.groups_per_step=2",
    "rollout.group_size=2",
    "rollout.max_steps=3",
    "rollout.max_tokens=16",
    "rollout.context_length=1024",
    "trainer.steps=2",
    "sft.steps=2",
    "sft.batch_size=2",
    "eval.max_tasks=2",
    "eval.every=0",
)


@pytest.mark.whole
def test_it_checks_trains_and_evaluates(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "textcraft").symlink_to(made.folder.parent / "few")
    monkeypatch.setenv("AGENT_R1_DATA", str(tmp_path / "data"))
    config = tiny_config(made.renderer.tokenizer)
    config.max_position_embeddings = 4096
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    cast(Any, made.renderer.tokenizer).save_pretrained(tmp_path / "model")
    small = [*SHORT, f"model.path={tmp_path / 'model'}"]
    summary = runs.train(str(RECIPE), *small, "algorithm=gigpo", quiet=True)
    assert summary.steps == 2
    lines = [json.loads(line) for line in (tmp_path / "runs" / "games" / "metrics.jsonl").read_text().splitlines()]
    levels = [line["curriculum/level"] for line in lines if "curriculum/level" in line]
    assert levels == [1.0, 1.0]
    evaluation = runs.evaluate(str(RECIPE), *small, "eval.split=test", model="runs/games/hf", quiet=True)
    assert any(name.startswith("eval/textcraft_depth") for name in evaluation.metrics)
    report = runs.check(str(RECIPE), *small, groups=1, members=2, quiet=True)
    assert {finding.rule for finding in report.problems} == {"rewards differ within groups"}  # the model is untrained
