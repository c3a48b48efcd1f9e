"""zoom: its pictures, its demonstrations and captions, its tools and rewards, and that the tiny model learns."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("PIL", reason="zoom draws with Pillow: pip install 'agent-r1[images]'")

import numpy as np
from PIL import Image

from agent_r1.chat import ChatRenderer, load_renderer
from agent_r1.data import load_demonstrations, load_tasks, write_rows
from agent_r1.engines import ScriptedEngine
from agent_r1.images import is_image_id, pictures_in, read_picture
from agent_r1.models import build_tiny_vision_model
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.tools import ToolContext
from agent_r1.types import SamplingParams, Task, TokenIds, Trajectory
from recipes.zoom.board import BoardEnv
from recipes.zoom.reward_fn import gold_answer, score
from recipes.zoom.rows import demonstration, far_caption, task_row, warm_start_row
from recipes.zoom.scenes import (
    COLORS,
    NUM_CARDS,
    PLACES,
    Card,
    Scene,
    cards_from_row,
    close_picture,
    draw_scene,
    far_picture,
)
from recipes.zoom.tools import zoom
from tests.helpers.forks import run_python
from tests.unit.models.test_tiny_vision import make_language_model

ROOT = Path(__file__).parents[2]
CARDS = {
    "F": Card(color="red", digit=7, shift=(0, 0)),
    "A": Card(color="blue", digit=3, shift=(4, -4)),
    "C": Card(color="green", digit=8, shift=(0, 4)),
    "I": Card(color="yellow", digit=0, shift=(-4, 0)),
}
SCENE = Scene(CARDS, "F")


def distance(one: Image.Image, other: Image.Image) -> float:
    """The largest difference of any pixel, from 0 to 255."""
    return float(np.abs(np.asarray(one, dtype=float) - np.asarray(other, dtype=float)).max())


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> ChatRenderer:
    """The renderer of the untrained tiny model."""
    rng = random.Random(0)
    folder = tmp_path_factory.mktemp("tiny") / "model"
    build_tiny_vision_model([warm_start_row(rng) for _ in range(300)], folder)
    return load_renderer(str(folder))


def as_task(scene: Scene) -> Task:
    row = task_row(scene)
    return Task(
        task_id="t", prompt=tuple(row["prompt"]), reward_model=row["reward_model"], env_kwargs=row["env_kwargs"]
    )


def play(renderer: ChatRenderer, scene: Scene, replies: list[str]) -> Trajectory:
    tokenizer = renderer.tokenizer
    ids = [[*tokenizer.encode(reply, add_special_tokens=False), tokenizer.eos_token_id] for reply in replies]

    def next_reply(prompt: TokenIds, sampling: SamplingParams) -> list[int]:
        return ids[len(engine.requests) - 1]

    engine = ScriptedEngine(next_reply)
    rollout = Rollout(
        engine=engine,
        renderer=renderer,
        reward=score,
        make_env=lambda task: BoardEnv(["zoom", "answer"]),
        limits=RolloutLimits(max_steps=3, retries=0),
    )
    groups = asyncio.run(rollout.run([as_task(scene)], group_size=1, sampling=SamplingParams(), seed=0))
    return groups[0].trajectories[0]


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def test_a_scene_has_four_cards_of_different_colors_and_asks_for_one_of_them() -> None:
    rng = random.Random(5)
    for scene in (draw_scene(rng) for _ in range(200)):
        assert len({card.color for card in scene.cards.values()}) == NUM_CARDS == len(scene.cards)
        assert set(scene.cards) <= set(PLACES)
        assert scene.asked.color in scene.question
        assert cards_from_row(json.loads(json.dumps(scene.as_row()))) == scene.cards


def test_digits_can_be_told_apart_from_near_and_not_from_afar() -> None:
    """From near two digits differ by black against white; from afar by less than two colors do."""
    near, far = [], []
    for digit in range(9):
        other = {**CARDS, "F": replace(CARDS["F"], digit=digit), "A": CARDS["A"]}
        another = {**CARDS, "F": replace(CARDS["F"], digit=digit + 1)}
        near.append(distance(close_picture(other["F"]), close_picture(another["F"])))
        far.append(distance(far_picture(other), far_picture(another)))
    colors = [
        distance(far_picture(CARDS), far_picture({**CARDS, "F": replace(CARDS["F"], color=color)}))
        for color in set(COLORS) - {"red"}
    ]
    assert min(near) == 255
    assert max(far) < min(colors)


def test_a_picture_from_afar_has_six_pixels_on_each_side() -> None:
    picture = np.asarray(far_picture(CARDS))
    blocks = picture.reshape(6, 16, 6, 16, 3)
    assert (blocks == blocks[:, :1, :, :1]).all()


def test_zoom_shows_the_card_of_a_place_and_the_bare_table_elsewhere() -> None:
    async def look(place: str) -> Any:
        response, _, _ = await zoom.execute({"place": place}, context=ToolContext(task=as_task(SCENE)))
        return response.images[0]

    assert read_picture(asyncio.run(look("F"))) == read_picture(close_picture(CARDS["F"]))
    assert read_picture(asyncio.run(look("E"))) == read_picture(close_picture(None))
    with pytest.raises(ValueError, match="the places are A to I"):
        asyncio.run(look("AB"))


def test_an_episode_that_looks_and_answers_earns_the_reward(seeing: ChatRenderer) -> None:
    trajectory = play(seeing, SCENE, ["red F" + call("zoom", place="F"), call("answer", digit=7)])
    assert trajectory.outcome_reward == 1.0
    first, last = trajectory.steps
    assert list(pictures_in(first.observation.messages or ())) == [read_picture(far_picture(CARDS))]
    seen = list(pictures_in(last.observation.messages or ()))
    assert seen == [read_picture(far_picture(CARDS)), read_picture(close_picture(CARDS["F"]))]
    assert last.done
    assert last.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    assert sum(map(is_image_id, first.prompt_ids)) == 9
    assert sum(map(is_image_id, last.prompt_ids)) == 18
    assert trajectory.metrics["tool/zoom/calls"] == 1


@pytest.mark.parametrize(
    "replies",
    [
        [call("answer", digit=6)],
        ["7"],
        [call("zoom", place="F")] * 3,
        [call("answer", digit="seven"), call("answer", digit=True), "?"],
    ],
    ids=["wrong digit", "no call", "never answers", "no digit"],
)
def test_other_episodes_earn_nothing(seeing: ChatRenderer, replies: list[str]) -> None:
    assert play(seeing, SCENE, replies).outcome_reward == 0.0


def test_the_gold_answer_is_the_right_call(seeing: ChatRenderer) -> None:
    assert play(seeing, SCENE, [gold_answer(as_task(SCENE))]).outcome_reward == 1.0


def test_rows_are_read_back_with_their_pictures_and_become_what_a_rollout_shows(
    seeing: ChatRenderer, tmp_path: Path
) -> None:
    rng = random.Random(1)
    write_rows(tmp_path / "tasks.jsonl", [task_row(SCENE)])
    [task] = load_tasks([tmp_path / "tasks.jsonl"])
    assert list(pictures_in(task.prompt)) == [read_picture(far_picture(CARDS))]
    looks = next(row for row in iter(lambda: demonstration(SCENE, rng), None) if len(row["messages"]) == 4)
    write_rows(tmp_path / "demonstrations.jsonl", [looks, far_caption(SCENE, rng)])
    [[episode], [caption]] = load_demonstrations([tmp_path / "demonstrations.jsonl"], seeing)
    replies = ["red F" + call("zoom", place="F"), call("answer", digit=7)]
    last = play(seeing, SCENE, replies).steps[-1]
    assert episode.token_ids == (*last.prompt_ids, *last.action_ids)
    said = seeing.tokenizer.decode(
        [caption.token_ids[position] for position in caption.actions], skip_special_tokens=False
    )
    assert set(said.replace("<|end|>", " ").split()) == {"red", "F", "blue", "A", "green", "C", "yellow", "I"}


def test_a_color_and_a_place_are_one_token_each(seeing: ChatRenderer) -> None:
    """The place follows the color directly: what finds the card is one attention step."""
    for color in COLORS:
        assert len(seeing.tokenizer.encode(f"{color} F", add_special_tokens=False)) == 2


@pytest.mark.whole
def test_the_recipe_trains(tmp_path: Path) -> None:
    """With a few rows, made here, and a few steps."""
    rng, data = random.Random(2), tmp_path / "zoom_data"
    for name, count in (("train", 8), ("eval", 4)):
        write_rows(data / f"{name}.jsonl", [task_row(draw_scene(rng)) for _ in range(count)])
    write_rows(data / "few.jsonl", [warm_start_row(rng) for _ in range(60)])
    few = [f"sft.data=[{data}/few.jsonl]", "model.prepare=agent_r1.training.tiny_start:make_warm_start"]
    short = [
        "sft.steps=2",
        "trainer.steps=2",
        "rollout.groups_per_step=2",
        "rollout.group_size=2",
        "rollout.max_tokens=8",
    ]
    words = ["train", str(ROOT / "recipes" / "zoom"), f"run.folder={tmp_path}", *few, *short]
    done = run_python("-m", "agent_r1.cli", *words, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "zoom" / "summary.json").read_text())["steps"] == 2
    assert load_renderer(str(tmp_path / "zoom" / "hf")).sees_images


@pytest.mark.whole
def test_the_form_with_a_tower_in_front_of_a_language_model_trains(tmp_path: Path) -> None:
    """The commands of the README, with a small Llama for SmolLM2, few rows and few steps."""
    make_language_model(tmp_path / "language", tied=True)
    script, save = str(ROOT / "recipes" / "zoom" / "prepare.py"), tmp_path / "larger"
    done = run_python(
        script, "--language_model", str(tmp_path / "language"), "--save_dir", str(save), "--rows", "40", cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rng, data = random.Random(3), tmp_path / "zoom_data"
    for name in ("train", "eval"):
        write_rows(data / f"{name}.jsonl", [task_row(draw_scene(rng)) for _ in range(4)])
    words = ["train", str(ROOT / "recipes" / "zoom"), f"run.folder={tmp_path}", f"model.path={save / 'model'}"]
    warm = [f"sft.folder={save / 'warm_start'}", f"sft.data=[{save / 'data' / 'warm_start.jsonl'}]", "sft.steps=2"]
    short = ["trainer.steps=1", "rollout.groups_per_step=2", "rollout.max_tokens=8", "rollout.context_length=1024"]
    done = run_python("-m", "agent_r1.cli", *words, *warm, *short, "model.train_vision=all", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "zoom" / "summary.json").read_text())["steps"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_model_learns_to_look_on_every_seed(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """The warm start, which is the same for all seeds, is made by the first."""
    folder = tmp_path_factory.getbasetemp() / "zoom_runs"
    words = ["train", str(ROOT / "recipes" / "zoom"), f"run.folder={folder}", f"run.name=seed{seed}"]
    done = run_python("-m", "agent_r1.cli", *words, f"trainer.seed={seed}", cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (folder / f"seed{seed}" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "reward/success" in line]
    assert steps[0]["reward/success"] <= 0.6
    assert steps[-1]["reward/success"] >= 0.85
    assert steps[-1]["tool/zoom/calls"] >= 0.9
