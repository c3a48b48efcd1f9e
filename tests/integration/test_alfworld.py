"""The recipe alfworld on its sample: the twin against what textworld said, goals, splits, expert, environment, runs."""

from __future__ import annotations

import asyncio
import doctest
import io
import json
import random
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import LlamaForCausalLM

from agent_r1 import check_env
from agent_r1.chat import ChatRenderer
from agent_r1.data.tasks import load_tasks, read_rows
from agent_r1.engines import ScriptedEngine
from agent_r1.envs import AgentEnv, make_env, make_policy
from agent_r1.errors import ConfigError, DataError
from agent_r1.models.tiny import train_tokenizer
from agent_r1.rollout import Rollout, RolloutLimits
from agent_r1.types import Action, Episode, Observation, SamplingParams, StepResult, Task, Trajectory
from recipes.alfworld import context, env, expert, memory, prompts, reward_fn
from recipes.alfworld.data_preprocess import process_alfworld, sources, splits
from recipes.alfworld.demonstrations import conversations, play, room_of
from recipes.alfworld.env import AlfworldEnv
from recipes.alfworld.world import archive, game, goals, original, pddl, scene
from recipes.alfworld.world.game import NOTHING_HAPPENS, Game
from recipes.alfworld.world.goals import FAMILIES, LOOK, TREATED, TWO, Goal
from tests.conftest import tiny_config
from tests.helpers import commands
from tests.helpers.recipe_runs import ROOT, WHOLE_DATA, demonstrated_turns

RECIPE = ROOT / "recipes" / "alfworld"
SAMPLE = RECIPE / "sample"
TEXTWORLD_SAID = SAMPLE / "textworld.jsonl.xz"
SPLITS = ("valid_train", "valid_seen", "valid_unseen")
needs_textworld = pytest.mark.skipif(bool(original.missing_packages()), reason="the extra alfworld is not installed")


@dataclass(frozen=True)
class Made:
    """The sample as the recipe makes it, in memory."""

    trials: list[sources.Trial]
    planner: splits.Planner
    splits: dict[str, list[splits.PlannedGame]]
    games: Path

    def tasks(self, split: str) -> list[Task]:
        rows = map(process_alfworld.task_row, self.splits[split])
        return [Task(**{**row, "prompt": tuple(row["prompt"])}) for row in rows]

    def env(self, **arguments: Any) -> AlfworldEnv:
        return AlfworldEnv(games=str(self.games), **arguments)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    trials = sources.read_trials(SAMPLE, SPLITS)
    games = tmp_path_factory.mktemp("alfworld") / "games.zip"
    archive.write_games(games, ((trial.name, trial.problem) for trial in trials))
    with pytest.MonkeyPatch.context() as patch:  # fewer games: all of them are played by most tests
        patch.setattr(splits, "SHARE_DEMONSTRATIONS", 4)
        patch.setattr(splits, "SHARE_NEW_GOALS", 2)
        planner = splits.Planner(trials)
        return Made(trials=trials, planner=planner, splits=planner.splits(), games=games)


@pytest.fixture(scope="module")
def renderer(made: Made) -> ChatRenderer:
    policy = make_policy("append")
    played = made.splits["demonstrations"][:12]
    rows = [row for entry in played for row in conversations(entry.scene, entry.goal, list(entry.moves), policy, "all")]
    return ChatRenderer(train_tokenizer(rows))


def test_playing_new_games_says_how_far_it_is(
    made: Made, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_r1.console._SECONDS_BETWEEN_LINES", 0.0)
    assert len(made.planner.new_games(made.trials, "known_room", 2)) == 2
    assert "playing new games: 2 of 2 games after 0 min\n" in capsys.readouterr().err


def said(text: str) -> Action:
    return Action(text=text, content=text)


def give(environment: AgentEnv, *texts: str) -> StepResult:
    """The result of the last of some actions."""

    async def run() -> StepResult:
        for text in texts:
            result = await environment.step(said(text))
        return cast(StepResult, result)

    return asyncio.run(run())


def begin(environment: AgentEnv, task: Task) -> Observation:
    return asyncio.run(environment.reset(task))


def last_text(observation: Observation | None) -> str:
    assert observation is not None
    assert observation.messages is not None
    return str(observation.messages[-1]["content"])


# The twin


def recorded() -> Iterator[dict[str, Any]]:
    return read_rows(TEXTWORLD_SAID)


def fingerprints() -> Any:
    from recipes.alfworld.compare import fingerprint

    return fingerprint


def test_the_twin_says_what_textworld_said(made: Made) -> None:
    fingerprint = fingerprints()
    problems = {trial.name: trial.problem for trial in made.trials}
    states, won = 0, 0
    for record in recorded():
        twin = Game(scene.read_scene(problems[record["trial"]]), Goal.from_row(record["goal"]))
        for command, answer, offered, is_won in record["states"]:
            heard = twin.step(command) if command else twin.intro
            assert (heard, fingerprint(twin.commands()), twin.won) == (answer, offered, is_won), (record, command)
            states, won = states + 1, won + is_won
    assert states >= 150
    assert won >= 3


@pytest.mark.slow
@needs_textworld
def test_the_twin_and_textworld_agree_in_every_state_of_many_games() -> None:
    from recipes.alfworld import compare

    folder = WHOLE_DATA / "alfworld"
    arguments = ["--games", "40", "--steps", "40"] if folder.is_dir() else ["--games", "30", "--steps", "20"]
    assert compare.main(["--local_dataset_path", str(folder if folder.is_dir() else SAMPLE), *arguments]) == 0


def test_every_offered_command_can_be_given_and_no_other(made: Made) -> None:
    rng = random.Random(0)
    for entry in made.splits["validation"]:
        twin = Game(entry.scene, entry.goal)
        for _ in range(12):
            offered = twin.commands()
            assert offered == sorted(set(offered))
            assert all(map(twin.possible, offered))
            names = [place.name for place in entry.scene.places], [thing.name for thing in entry.scene.things]
            tried = [f"go to {rng.choice(names[0])}", f"open {rng.choice(names[0])}", f"use {rng.choice(names[1])}"]
            tried += [f"take {rng.choice(names[1])} from {rng.choice(names[0])}", f"examine {rng.choice(names[1])}"]
            tried += [f"{verb} {rng.choice(names[1])} with {rng.choice(names[0])}" for verb in TREATED]
            assert [command for command in tried if twin.possible(command) != (command in offered)] == []
            twin.step(rng.choice(offered))


@pytest.mark.parametrize(
    "command", ["", "go", "go to", "take", "take from", "move mug 1", "open moon 1", "☃", "x" * 9999]
)
def test_what_is_no_command_changes_nothing(made: Made, command: str) -> None:
    entry = made.splits["test"][0]
    twin = Game(entry.scene, entry.goal)
    before = twin.key(), twin.commands()
    assert twin.step(command) == NOTHING_HAPPENS
    assert (twin.key(), twin.commands()) == before


def test_equal_states_have_equal_keys_and_others_do_not(made: Made) -> None:
    entry = next(entry for entry in made.splits["demonstrations"] if len(entry.moves) > 5)
    twin, again = Game(entry.scene, entry.goal), Game(entry.scene, entry.goal)
    keys = [twin.key()]
    for move in entry.moves:
        twin.step(move.command)
        keys.append(twin.key())
        again.step("look")
        again.step(move.command)
        assert again.key() == keys[-1]
    changed = [move for move in entry.moves if not move.answer.startswith(NOTHING_HAPPENS)]
    assert len(set(keys)) > len(changed) // 2
    there = [f"go to {entry.scene.places[0].name}", f"go to {entry.scene.places[-1].name}"]
    one, other = Game(entry.scene, entry.goal), Game(entry.scene, entry.goal)
    one.step(there[0]), other.step(there[1])
    assert one.key() != other.key()


def test_goals_written_as_pddl_are_read_back(made: Made) -> None:
    kinds = Counter()
    for entry in [*made.splits["demonstrations"], *made.splits["test"]]:
        problem = pddl.replace_goal("(define (:init (a b))\n(:goal (x)))", entry.goal.pddl())
        assert goals.read_goal(entry.goal.family, pddl.parse_problem(problem).goal, entry.goal.wording) == entry.goal
        kinds[entry.goal.family] += 1
    assert set(kinds) == set(FAMILIES)


def test_a_game_in_progress_takes_little_memory(made: Made) -> None:
    import tracemalloc

    entry = max(made.splits["demonstrations"], key=lambda entry: len(entry.scene.things))
    Game(entry.scene, entry.goal).commands()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        alive = [Game(entry.scene, entry.goal) for _ in range(64)]
        for twin in alive:
            for move in entry.moves:
                twin.step(move.command)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used / len(alive) < 6000


@pytest.mark.parametrize("module", [context, env, expert, game, goals, memory, pddl, prompts, scene, splits])
def test_examples_of_docstrings_hold(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


# Goals, splits, rows


def test_training_never_sees_a_room_of_the_unseen_games(made: Made) -> None:
    rooms = {trial.name: trial.floor_plan for trial in made.trials}
    used = {name: {rooms[entry.trial] for entry in entries} for name, entries in made.splits.items()}
    assert sources.UNSEEN_FLOOR_PLANS & (used["train"] | used["validation"] | used["demonstrations"]) == set()
    unseen = {rooms[entry.trial] for entry in made.splits["test"] if entry.source == "unseen"}
    assert unseen
    assert unseen <= sources.UNSEEN_FLOOR_PLANS
    new = {rooms[entry.trial] for entry in made.splits["validation"] if entry.source == "new_room"}
    assert new
    assert not new & (used["train"] | used["demonstrations"])


def test_a_training_game_in_a_room_of_the_unseen_games_is_refused(made: Made) -> None:
    wrong = replace(made.trials[0], name="valid_train/x/y", floor_plan=219)
    with pytest.raises(DataError, match=r"\[219\] belong to the unseen games"):
        splits.Planner([wrong])


def test_no_game_is_in_two_splits(made: Made) -> None:
    def games(name: str) -> set[tuple[str, str, str, str]]:
        return {(e.trial, e.goal.family, e.goal.thing, e.goal.place) for e in made.splits[name]}

    names = list(made.splits)
    assert all(not games(a) & games(b) for a in names for b in names if a < b)
    ids = [entry.task_id for entries in made.splits.values() for entry in entries]
    assert len(set(ids)) == len(ids)
    for name in ("train", "validation", "demonstrations"):
        assert {entry.goal.family for entry in made.splits[name]} == set(FAMILIES)


def test_new_goals_are_not_reached_at_first_and_are_said_in_templates(made: Made) -> None:
    texts = set()
    for entry in made.splits["demonstrations"]:
        assert not Game(entry.scene, entry.goal).won
        texts.add(entry.goal.text.replace(entry.goal.thing, "T").replace(entry.goal.place, "P"))
    assert {"put a T in P", "heat some T and put it in P", "put two T in P", "examine the T with the P"} <= texts


def test_rows_have_the_room_the_task_and_the_game(made: Made) -> None:
    task = made.tasks("test")[0]
    assert task.data_source == "seen"
    assert task.env_kwargs["goal"]["family"] == LOOK
    assert str(task.prompt[1]["content"]).startswith("You are in the middle of a room. Looking quickly around you, you")
    assert str(task.prompt[1]["content"]).endswith("\nYour task is to: examine the alarmclock with the desklamp.")


@pytest.mark.skipif(not (WHOLE_DATA / "alfworld").is_dir(), reason="the whole data set is not here")
@pytest.mark.slow
def test_the_whole_data_has_the_official_number_of_games_and_all_are_won_by_the_expert() -> None:
    planner = splits.Planner(sources.read_trials(WHOLE_DATA / "alfworld", SPLITS))
    made = planner.splits()
    assert Counter(entry.source for entry in made["test"]) == {"seen": 140, "unseen": 134}
    assert len(made["demonstrations"]) >= 2500
    won = [play(entry.scene, entry.goal, planner.habits, 30) is not None for entry in made["test"]]
    assert sum(won) >= 0.97 * len(won)


# Sources


def packed_sample() -> dict[str, bytes]:
    with tarfile.open(SAMPLE / "trials.tar.xz") as packed:
        return {member.name: packed.extractfile(member).read() for member in packed if member.isfile()}


def test_official_games_are_read_from_a_zip_with_their_own_words(tmp_path: Path) -> None:
    files = packed_sample()
    names = [next(name for name in files if name.startswith(split) and name.endswith(".pddl")) for split in SPLITS]
    with zipfile.ZipFile(tmp_path / "json_2.1.2_tw-pddl.zip", "w") as zipped:
        for name in names:
            grammar = 'x"rhs": "Your task is to: examine the alarmclock with the desklamp."'
            data = {"pddl_problem": files[name].decode(), "grammar": grammar, "solvable": True}
            zipped.writestr(f"json_2.1.1/{Path(name).parent}/game.tw-pddl", json.dumps(data))
            no_game = Path(name).parent.parent.name.replace("-None-", "-Cup-")
            zipped.writestr(f"json_2.1.1/valid_seen/pick_and_place_with_movable_recep-{no_game}/t/game.tw-pddl", "{}")
    trials = sources.read_trials(tmp_path, SPLITS)
    assert [trial.split for trial in trials] == sorted(SPLITS)
    assert trials[0].goal.text.startswith("examine the")


def test_games_are_read_from_folders_and_unsolvable_ones_left_out(tmp_path: Path) -> None:
    for name, content in packed_sample().items():
        if name.startswith(("valid_seen/look", "valid_seen/pick_and", "valid_unseen/look", "valid_train/look")):
            file = tmp_path / "json_2.1.1" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.replace(b"true", b"false") if "seen/pick_and" in name else content)
    trials = sources.read_trials(tmp_path, SPLITS)
    assert {trial.goal.family for trial in trials} == {LOOK}


def test_a_folder_without_trials_says_what_was_expected(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(DataError, match=r"neither \*\.zip, \*\.tar\.xz nor folders of trials. Found: notes.txt"):
        sources.read_trials(tmp_path, SPLITS)


def test_a_split_without_games_is_named(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "some.tar.xz", "w:xz") as packed:
        info = tarfile.TarInfo("valid_seen/pick_and_place_simple-Mug-None-Desk-308/t/initial_state.pddl")
        packed.addfile(info, io.BytesIO())
    with pytest.raises(DataError, match="no game of valid_train, valid_seen, valid_unseen in"):
        sources.read_trials(tmp_path, SPLITS)


def test_goals_with_slices_are_refused() -> None:
    with pytest.raises(DataError, match="none of ALFWorld's games"):
        goals.read_goal(FAMILIES[0], "(and (issliced ?o) (objecttype ?o appletype) (receptacletype ?r fridgetype))")


# The expert


def score_of(task: Task, won: bool) -> dict[str, float]:
    step = cast(Any, type("S", (), {"info": {"won": won}}))
    return reward_fn.score(task, cast(Episode, type("E", (), {"steps": (step,)})))


def replay(made: Made, task: Task, texts: list[str]) -> float:
    """The reward of an episode with these actions."""
    environment = made.env()
    begin(environment, task)
    result = give(environment, *texts)
    return score_of(task, bool(result.info["won"]))["score"]


def test_expert_plans_win_with_full_marks_and_wrong_ones_never(made: Made) -> None:
    tasks, played = made.tasks("demonstrations")[::2], made.splits["demonstrations"][::2]
    for number, (task, entry) in enumerate(zip(tasks, played, strict=True)):
        plan = [move.command for move in entry.moves]
        assert replay(made, task, plan) == 1.0
        assert replay(made, task, plan[:-1] or ["look"]) == 0.0
        other = played[(number + 7) % len(played)]
        if (other.goal.thing, other.goal.place) != (entry.goal.thing, entry.goal.place):
            assert replay(made, task, [move.command for move in other.moves]) == 0.0
        untreated = [command for command in plan if command.split()[0] not in TREATED]
        cool_at_first = entry.scene.things_of(entry.goal.thing) & entry.scene.able("iscool")
        if entry.goal.treatment is not None and not cool_at_first:
            assert replay(made, task, untreated) == 0.0


def test_the_expert_wins_the_official_games_without_knowing_where_things_are(made: Made) -> None:
    for entry in made.splits["test"]:
        moves = play(entry.scene, entry.goal, made.planner.habits, 30)
        assert moves is not None, entry.task_id


def test_the_expert_takes_only_what_an_answer_has_shown(made: Made) -> None:
    for entry in made.splits["demonstrations"]:
        shown = room_of(Game(entry.scene, entry.goal))
        for move in entry.moves:
            if not move.is_slip and move.command.startswith(("take ", "use ")):
                assert move.command.removeprefix("take ").removeprefix("use ").partition(" from ")[0] in shown
            shown += move.answer


def test_a_room_without_the_thing_has_no_plan(made: Made) -> None:
    entry = made.splits["test"][0]
    nowhere = Goal(family=FAMILIES[0], thing="elephant", place=entry.scene.places[0].kind)
    assert play(entry.scene, nowhere, made.planner.habits, 200) is None


def test_two_things_must_be_in_one_place(made: Made) -> None:
    entry = next(entry for entry in made.splits["demonstrations"] if entry.goal.family == TWO)
    moved = [move.command for move in entry.moves if move.command.startswith("move ")]
    assert len({command.partition(" to ")[2] for command in moved}) == 1


# The environment


def test_episodes_pass_the_checks_of_environments(made: Made) -> None:
    task, entry = made.tasks("demonstrations")[0], made.splits["demonstrations"][0]
    actions = [said(move.command) for move in entry.moves]
    assert check_env(made.env, task, actions) == []
    assert check_env(made.env, task) == []


def test_commands_are_shown_or_hidden(made: Made) -> None:
    task = made.tasks("test")[0]
    where = f"go to {archive.load_scene(str(made.games), str(task.env_kwargs['trial'])).places[0].name}"
    shown = {}
    for mode in ("here", "all", "none"):
        environment = made.env(commands=mode)
        first = begin(environment, task)
        assert environment.preview(task).messages == first.messages
        shown[mode] = last_text(give(environment, where).observation)
    assert prompts.COMMANDS_MARK not in shown["none"]
    every = shown["all"].partition(prompts.COMMANDS_MARK)[2].split(", ")
    here = shown["here"].partition(prompts.COMMANDS_MARK)[2].split(", ")
    assert "look" in every
    assert set(here) < set(every)
    assert not [command for command in here if command.startswith("go to")]


def test_a_command_that_cannot_be_given_gets_the_words_of_alfworld(made: Made) -> None:
    task = made.tasks("test")[0]
    environment = made.env(step_penalty=0.01, invalid_penalty=0.1)
    begin(environment, task)
    result = give(environment, "I would like to dance")
    assert last_text(result.observation) == NOTHING_HAPPENS
    assert result.reward == pytest.approx(-0.11)
    assert result.info["metrics"] == {"episode/invalid_commands": 1.0}
    assert give(environment, "look").reward == pytest.approx(-0.01)
    plain = made.env()
    begin(plain, task)
    assert give(plain, "dance").reward == 0.0


def test_steps_in_equal_states_share_an_anchor(made: Made) -> None:
    task = made.tasks("test")[0]
    places = archive.load_scene(str(made.games), str(task.env_kwargs["trial"])).places
    there = f"go to {places[0].name}"
    direct, roundabout = made.env(), made.env()
    assert begin(direct, task).anchor == begin(roundabout, task).anchor
    one = give(direct, there).observation
    other = give(roundabout, "look", "hello", f"go to {places[-1].name}", there).observation
    assert one is not None
    assert other is not None
    assert one.anchor == other.anchor
    assert one.messages != other.messages


def test_a_row_without_a_game_says_what_it_needs(made: Made) -> None:
    task = made.tasks("test")[0]
    with pytest.raises(DataError, match="env_kwargs needs trial"):
        begin(made.env(), replace(task, env_kwargs={}))
    with pytest.raises(DataError, match="has no trial 'nowhere'"):
        begin(made.env(), replace(task, env_kwargs={**task.env_kwargs, "trial": "nowhere"}))
    goal = {**task.env_kwargs["goal"], "family": "fly"}
    with pytest.raises(DataError, match="no family of goals 'fly'"):
        begin(made.env(), replace(task, env_kwargs={**task.env_kwargs, "goal": goal}))
    with pytest.raises(DataError, match=r"cannot be read.*process_alfworld.py"):
        begin(AlfworldEnv(games="nothing.zip"), task)


def test_textworld_that_is_missing_names_the_extra(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(original, "missing_packages", lambda: ["textworld"])
    monkeypatch.setattr(original, "POOL", original.WorkerPool())
    with pytest.raises(ConfigError, match=r"agent-r1\[alfworld\].*env.engine=twin"):
        begin(made.env(engine="textworld"), made.tasks("test")[0])


@pytest.mark.slow
@needs_textworld
def test_textworld_plays_the_same_episode(made: Made) -> None:
    task, entry = made.tasks("demonstrations")[0], made.splits["demonstrations"][0]
    twin, real = made.env(commands="all"), made.env(commands="all", engine="textworld", workers=1)
    try:
        assert begin(twin, task).messages == begin(real, task).messages
        for move in entry.moves:
            one, other = give(twin, move.command), give(real, move.command)
            assert (one.done, one.info) == (other.done, other.info)
            assert one.done or last_text(one.observation) == last_text(other.observation)
        assert other.done
        asyncio.run(real.close())
    finally:
        original.POOL.stop()


@needs_textworld
def test_a_textworld_process_that_dies_is_an_error_and_replaced(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(original.sys, "executable", "/bin/true")
    pool = original.WorkerPool()
    worker = pool.take(1)
    with pytest.raises(RuntimeError, match="the process of textworld has ended"):
        worker.start("", "")
    assert pool.take(1) is not worker
    pool.stop()
    worker.stop()


# Demonstrations and context policies


def rollout(made: Made, renderer: ChatRenderer, arguments: dict[str, Any], task: Task, engine: Any) -> Trajectory:
    section = {"name": "alfworld", "games": str(made.games), **arguments}
    runner = Rollout(
        engine=engine,
        renderer=renderer,
        reward=reward_fn.score,
        make_env=partial(make_env, section=section),
        limits=RolloutLimits(max_steps=30, retries=0),
    )
    [group] = asyncio.run(runner.run([task], group_size=1, sampling=SamplingParams(max_tokens=200), seed=0))
    return group.trajectories[0]


@pytest.mark.parametrize("policy", ["append", "alfworld_recent", "alfworld_notes"])
@pytest.mark.parametrize("mode", ["here", "none"])
def test_demonstrations_teach_the_prompts_that_a_rollout_shows(
    made: Made, renderer: ChatRenderer, policy: str, mode: str
) -> None:
    tasks, played = made.tasks("demonstrations"), made.splits["demonstrations"]
    without_slips = [n for n, entry in enumerate(played) if not any(move.is_slip for move in entry.moves)]
    for number in without_slips[:4]:
        entry = played[number]
        rows = list(conversations(entry.scene, entry.goal, list(entry.moves), make_policy(policy), mode))
        assert len(rows) == (1 if policy == "append" else len(entry.moves))
        turns = [turn for row in rows for turn in demonstrated_turns(renderer, row)]
        engine = ScriptedEngine([action for _, action in turns], context_length=20_000)
        trajectory = rollout(made, renderer, {"context": policy, "commands": mode}, tasks[number], engine)
        assert trajectory.outcome_reward == 1.0, trajectory.error
        assert [prompt for prompt, _ in engine.requests] == [prompt for prompt, _ in turns]


def test_slips_are_recovered_from_and_not_taught_where_each_step_has_a_prompt(made: Made) -> None:
    slipped = [entry for entry in made.splits["demonstrations"] if any(move.is_slip for move in entry.moves)]
    assert slipped
    for entry in slipped:
        rows = list(conversations(entry.scene, entry.goal, list(entry.moves), make_policy("alfworld_notes"), "here"))
        taught = [row["messages"][-1]["content"] for row in rows]
        assert taught == [move.command for move in entry.moves if not move.is_slip]


def history(made: Made, policy: str) -> str:
    task = made.tasks("test")[0]
    places = archive.load_scene(str(made.games), str(task.env_kwargs["trial"])).places
    environment = made.env(context=policy)
    begin(environment, task)
    return last_text(give(environment, *(f"go to {place.name}" for place in places[:6])).observation)


def test_recent_steps_are_shown_and_older_ones_are_not(made: Made) -> None:
    text = history(made, "alfworld_recent")
    assert text.count("\n> go to ") == 4
    assert "Your last steps, after 2 others:" in text
    assert text.count(prompts.COMMANDS_MARK) <= 1


def test_notes_name_what_was_seen_and_what_was_not(made: Made) -> None:
    text = history(made, "alfworld_notes")
    assert text.startswith("Your task is to: ")
    assert text.count("\n> go to ") == 2
    seen, unseen, hold = (
        next(line for line in text.splitlines() if line.startswith(start))
        for start in ("Seen: ", "Not seen", "You hold")
    )
    places = [place.name for place in made.splits["test"][0].scene.places]
    looked = [part.partition(":")[0] for part in seen.removeprefix("Seen: ").split("; ")]
    assert set(looked) <= set(places[:6])
    assert places[-1] in unseen
    assert hold == "You hold: nothing"


def test_memory_follows_taking_moving_opening_and_closing() -> None:
    seen = memory.Memory("you see a bed 1, a desk 1, and a drawer 1.")
    for command, answer in (
        ("go to drawer 1", "You arrive at drawer 1. The drawer 1 is closed."),
        ("open drawer 1", "You open the drawer 1. The drawer 1 is open. In it, you see a pen 1, and a cd 2."),
        ("take pen 1 from drawer 1", "You pick up the pen 1 from the drawer 1."),
        ("close drawer 1", "You close the drawer 1."),
        ("go to desk 1", "You arrive at desk 1. On the desk 1, you see nothing."),
    ):
        seen.update(command, answer)
    assert (seen.here, seen.held, seen.closed) == ("desk 1", "pen 1", {"drawer 1"})
    assert seen.seen == {"drawer 1": ["cd 2"], "desk 1": []}
    seen.update("move pen 1 to desk 1", "You move the pen 1 to the desk 1.")
    assert (seen.held, seen.seen["desk 1"], seen.unseen()) == (None, ["pen 1"], ["bed 1"])


def test_success_is_reported_per_family(made: Made) -> None:
    task = made.tasks("test")[0]
    assert score_of(task, True) == {"score": 1.0, "success": 1.0, "look": 1.0}
    assert score_of(task, False) == {"score": 0.0, "success": 0.0, "look": 0.0}


# Whole runs

SMALL = (
    "rollout.groups_per_step=2",
    "rollout.group_size=2",
    "rollout.max_steps=3",
    "rollout.max_tokens=8",
    "trainer.steps=2",
    "sft.steps=2",
    "sft.batch_size=2",
    "eval.max_tasks=2",
    "eval.every=0",
    "algorithm=gigpo",
)


@pytest.mark.whole
def test_it_trains_from_a_warm_start_and_is_evaluated_on_seen_and_unseen_games(
    renderer: ChatRenderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(renderer.tokenizer)
    config.max_position_embeddings = 4096
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    cast(Any, renderer.tokenizer).save_pretrained(tmp_path / "model")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "alfworld").symlink_to(SAMPLE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENT_R1_DATA", str(tmp_path / "data"))
    small = [*SMALL, f"model.path={tmp_path / 'model'}"]
    assert commands.train(str(RECIPE), *small, quiet=True).steps == 2
    found = commands.evaluate(
        str(RECIPE), *small, "eval.split=test", "eval.max_tasks=12", model="runs/alfworld/hf", quiet=True
    )
    assert {"eval/seen/greedy", "eval/unseen/greedy", "eval/seen/look", "eval/all/heat"} <= set(found.metrics)
    assert len(load_tasks([tmp_path / "runs" / "alfworld_data" / "test.parquet"])) == 12
    assert len(list(read_rows(tmp_path / "runs" / "alfworld_data" / "demonstrations.jsonl"))) > 100
