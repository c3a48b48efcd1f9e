"""`agent-r1 replay`: recorded rollouts scored again, what changes, and one offline update."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import agent_r1
from agent_r1.cli import app
from agent_r1.console import RunConsole
from agent_r1.errors import AgentR1Error, ConfigError, DataError
from agent_r1.rewards import reward_functions
from agent_r1.runs import RunFolder, read_credit, read_trajectories, write_trajectories
from agent_r1.training.replay import Replay, rank_correlation, replay_run
from agent_r1.types import Group, StopReason, Task, Trajectory
from recipes.quickstart.shop import draw_basket, task_row
from tests.helpers import commands
from tests.helpers.tiny_runs import score_variety, tiny_overrides

RECORDED = ["trainer.steps=2", "trainer.keep_checkpoints=5", "tracking.record_credit=true"]


def opposite(task: Any, episode: Any) -> float:
    return -score_variety(task, episode)


def wordy(task: Any, episode: Any) -> dict[str, float]:
    return {"score": score_variety(task, episode), "turns": float(len(episode.steps)), "success": 0.0}


def failing_on_one_task(task: Any, episode: Any) -> float:
    if "2 egg" in task.prompt[0]["content"]:
        raise KeyError("no price")
    return score_variety(task, episode)


def failing(task: Any, episode: Any) -> float:
    raise KeyError("no price")


for function in (opposite, wordy, failing_on_one_task, failing):
    reward_functions.add(function.__name__, function, replaceable=True)


@pytest.fixture(scope="module")
def recorded(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps of the quickstart recipe with a tiny model, whose rewards differ."""
    folder = tmp_path_factory.mktemp("recorded")
    commands.train(*tiny_overrides(folder, model_folder, *RECORDED), quiet=True, reward=score_variety)
    return folder / "tiny"


@pytest.fixture
def copied(recorded: Path, tmp_path: Path) -> Path:
    """A copy of that run, to be damaged."""
    return Path(shutil.copytree(recorded, tmp_path / "tiny"))


def replay(run: Path, *overrides: str, **options: Any) -> Replay:
    return replay_run(run, overrides, RunConsole(quiet=True), **options)


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(file): (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.rglob("*") if file.is_file()}


# --- the same reward -----------------------------------------------------------------------------------------------


def test_the_same_reward_gives_the_recorded_rewards_and_advantages_exactly(recorded: Path) -> None:
    found = replay(recorded)
    assert (found.steps, found.trajectories, found.settings, found.notes) == ((1, 2), 16, (), ())
    assert (found.outcome.changed, found.outcome.rank_correlation) == (0.0, 1.0)
    assert found.reproduced is not None
    assert (found.reproduced.differing, found.reproduced.differing_steps, found.reproduced.largest) == (0, 0, 0.0)
    recorded_tokens = [
        number
        for step in (1, 2)
        for steps in read_credit(RunFolder(recorded).step_credit(step)).values()
        for made in steps
        for number in made.advantages
    ]
    assert found.reproduced.tokens == len(recorded_tokens)
    assert any(number is not None for number in recorded_tokens)
    assert found.advantages is not None
    assert found.advantages.identical
    assert not found.examples


@pytest.mark.whole
def test_python_replays_rewards_given_as_objects_also_in_a_notebook(recorded: Path, capsys: Any) -> None:
    async def cell() -> Replay:  # where an event loop is running
        rewards = {"variety": score_variety, "contrary": (lambda task, episode: -score_variety(task, episode), 2.0)}
        return agent_r1.replay(str(recorded), reward=rewards, steps=[2])

    found = asyncio.run(cell())
    assert (found.steps, found.trajectories) == ((2,), 8)
    assert found.outcome.rank_correlation == pytest.approx(-1.0)
    assert found.outcome.after == pytest.approx(-found.outcome.before)  # 1 of the one, and 2 of its opposite
    assert "8 trajectories of step 2" in capsys.readouterr().out
    assert agent_r1.replay(recorded, quiet=True).reproduced == replay(recorded).reproduced
    assert not capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 1}, r"steps must be a list of numbers of training steps, such as \[1, 20\], found 1"),
        ({"steps": "12"}, "found '12'"),
        ({"steps": ["1"]}, "found .'1'."),
        ({"reward": 5}, "reward must be a function, its name, a list or a mapping of them, found 5"),
        ({"overrides": {"rollout.temperature": 0.5}}, "rollout.temperature=0.5: a replay does not roll out"),
        ({"model": "other"}, r"give --train \(train=True\) as well"),
    ],
)
def test_arguments_of_a_replay_are_refused_in_words(recorded: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        agent_r1.replay(recorded, quiet=True, **arguments)


@pytest.mark.whole
def test_recorded_credit_that_differs_is_noticed(copied: Path) -> None:
    file = RunFolder(copied).step_credit(1)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[0]["steps"][0]["advantages"] = 7.0
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = replay(copied).reproduced
    assert found is not None
    assert found.differing == lines[0]["steps"][0]["num_tokens"]


# --- what changes --------------------------------------------------------------------------------------------------


def test_the_opposite_reward_reverses_ranks_and_signs(recorded: Path) -> None:
    found = replay(recorded, "reward.function=opposite", "reward.process_weight=0")
    assert found.outcome.rank_correlation == pytest.approx(-1.0)
    assert found.outcome.within_groups == pytest.approx(-1.0)
    assert found.outcome.after == -found.outcome.before  # type: ignore[operator]
    assert found.advantages is not None
    assert found.advantages.rank_correlation == pytest.approx(-1.0)
    change = found.advantages
    assert change.flipped == pytest.approx((change.to_negative + change.to_positive) / change.trajectories)
    assert change.flipped > 0.5
    assert (change.lost, change.gained) == (0, 0)
    assert found.examples[0].is_flipped
    changes = [abs((one or 0.0) - (other or 0.0)) for one, other in (e.advantage for e in found.examples)]
    assert changes[0] == max(changes)


def test_another_estimator_gives_its_own_advantages(recorded: Path) -> None:
    """Leave-one-out: the return less the mean return of the others."""
    found = replay(recorded, "algorithm.estimator=leave_one_out", "reward.process_weight=0", steps=[1])
    groups: dict[int, list[Trajectory]] = defaultdict(list)
    for trajectory in read_trajectories(RunFolder(recorded).step_trajectories(1)):
        groups[trajectory.group_id].append(trajectory)
    assert found.examples
    for example in found.examples:
        own = example.trajectory
        others = [t.outcome_reward for t in groups[own.group_id] if t.member != own.member]
        assert example.advantage[1] == pytest.approx(own.outcome_reward - sum(others) / len(others))
    assert found.outcome.changed == 0.0
    assert any("leave_one_out" in line for line in found.settings)


@pytest.mark.whole
def test_each_part_of_the_reward_is_compared_by_its_name(recorded: Path) -> None:
    found = replay(recorded, "reward.function=wordy")
    assert (found.parts["turns"].before, found.parts["turns"].changed) == (None, 1.0)
    assert found.parts["turns"].after == pytest.approx(
        sum(len(t.steps) for step in (1, 2) for t in read_trajectories(RunFolder(recorded).step_trajectories(step)))
        / 16
    )
    assert found.parts["success"].after == 0.0
    summed = replay(recorded, "reward.functions=[{name: score_variety}, {name: opposite, weight: 0.5}]")
    assert summed.outcome.after == pytest.approx(0.5 * (summed.outcome.before or 0.0))
    assert summed.outcome.rank_correlation == pytest.approx(1.0)
    assert summed.parts["opposite"].after == -(summed.parts["score_variety"].after or 0.0)


@pytest.mark.whole
def test_a_reward_that_fails_on_some_episodes_leaves_them_out_and_says_so(recorded: Path) -> None:
    found = replay(recorded, "reward.function=failing_on_one_task")
    assert 0 < found.trajectories < 16
    assert any("the reward function failed on" in note and "KeyError: 'no price'" in note for note in found.notes)
    with pytest.raises(DataError, match="failed on all 16 episodes"):
        replay(recorded, "reward.function=failing")


@pytest.mark.whole
def test_advantages_that_need_what_was_not_recorded_are_left_out_with_the_reason(recorded: Path) -> None:
    found = replay(recorded, "algorithm.estimator=token_gae", "algorithm.critic.kind=closed_form", steps=[1])
    assert found.advantages is None
    assert any("needs the values of a critic" in note for note in found.notes)
    penalised = replay(recorded, "algorithm.kl.coefficient=0.001", "algorithm.kl.place=reward", steps=[1])
    assert "KL penalty in the reward, which was not recorded" in "".join(penalised.notes)
    assert penalised.advantages is not None


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 40.0, 30.0], 0.8),  # 1 - 6 * (1 + 1) / (4 * 15)
        ([0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 1.0, 0.0], 0.0),
        ([0.0, 1.0, 1.0], [0.0, 1.0, 2.0], 0.8660254),  # ranks 0, 1.5, 1.5 and 0, 1, 2
        ([1.0, 1.0], [1.0, 2.0], None),
        ([], [], None),
    ],
)
def test_rank_correlations_are_those_of_spearman(
    first: Sequence[float], second: Sequence[float], expected: float | None
) -> None:
    assert rank_correlation(first, second) == (None if expected is None else pytest.approx(expected, abs=1e-7))


# --- one offline update --------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_an_offline_update_repeats_the_runs_own_and_writes_nothing(recorded: Path) -> None:
    before = contents(recorded.parent)
    for step, weights in ((1, "model"), (2, "checkpoints/step_1")):
        update = replay(recorded, steps=[step], train=True).update
        assert update is not None
        assert weights in update.weights
        for name in ("policy/gradient_norm", "policy/entropy", "policy/credited_trajectories"):
            assert update.metrics[name] == pytest.approx(update.recorded[name], rel=1e-3), name
        assert update.kl_before < 1e-9 < update.kl_after
        assert update.kl_update == pytest.approx(update.kl_after, rel=1e-3)
        assert update.moved > 0
    assert contents(recorded.parent) == before


@pytest.mark.whole
def test_an_update_starts_from_named_weights_and_takes_changed_settings(recorded: Path, model_folder: Path) -> None:
    small = replay(recorded, "optimizer.learning_rate=1e-6", train=True, model=str(model_folder)).update
    large = replay(recorded, "optimizer.learning_rate=1e-3", train=True, model=str(model_folder)).update
    assert small is not None
    assert large is not None
    assert (small.step, small.weights) == (2, str(model_folder))
    assert small.kl_before > 1e-9  # other weights than those that sampled
    assert small.kl_update < large.kl_update


# --- wrong input ---------------------------------------------------------------------------------------------------


def without_steps(run: Path) -> None:
    RunFolder(run).step_trajectories(1).unlink()


def without_checkpoints(run: Path) -> None:
    shutil.rmtree(RunFolder(run).checkpoints)


def with_other_tokens(run: Path) -> None:
    def change(line: dict[str, Any]) -> None:
        line["steps"][0]["action_ids"] = line["steps"][0]["action_ids"][::-1]
        line["steps"][0]["action_ids"][0] = 5

    edit(run, change)


def with_fewer_tokens(run: Path) -> None:
    def change(line: dict[str, Any]) -> None:
        for name in ("action_ids", "rollout_logprobs", "policy_versions"):
            line["steps"][-1][name] = line["steps"][-1][name][:-1]

    edit(run, change)


def with_unknown_tokens(run: Path) -> None:
    edit(run, lambda line: line["steps"][0].update(prompt_ids=[999_999, *line["steps"][0]["prompt_ids"]]))


def with_another_task(run: Path) -> None:
    edit(run, lambda line: line.update(task_id="unknown"))


def with_another_prompt(run: Path) -> None:
    edit(run, lambda line: line["prompt"][0].update(content="What do 99 egg cost?"))


def without_rollouts(run: Path) -> None:
    shutil.rmtree(RunFolder(run).trajectories)


def as_it_is(run: Path) -> None:
    pass


def edit(run: Path, change: Any) -> None:
    file = RunFolder(run).step_trajectories(2)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    change(lines[0])
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.whole
@pytest.mark.parametrize(
    ("damage", "overrides", "options", "message"),
    [
        (as_it_is, [], {"steps": [3]}, "has not recorded step 3; it has recorded steps 1 to 2"),
        (without_steps, [], {"steps": [1, 2]}, "has not recorded step 1; it has recorded step 2"),
        (
            without_steps,
            ["algorithm.process.normalisation=running"],
            {},
            "depends on all steps before, and .* has not recorded step 1",
        ),
        (without_rollouts, [], {}, "has no recorded rollouts in trajectories/"),
        (as_it_is, ["rollout.temperature=2"], {}, "rollout.temperature=2: a replay does not roll out"),
        (as_it_is, ["reward.function=nothing"], {}, "nothing"),
        (as_it_is, ["data.train=[gone.jsonl]"], {}, r"rows that the run trained on are not there \(gone.jsonl\)"),
        (as_it_is, [], {"model": "somewhere"}, r"give --train \(train=True\) as well"),
        (as_it_is, [], {"train": True, "model": "/no/such/folder"}, "/no/such/folder does not exist"),
        (without_checkpoints, [], {"train": True, "steps": [2]}, "weights that sampled step 2 of .* are not kept"),
        (with_other_tokens, [], {"train": True}, "do not spell its text"),
        (with_fewer_tokens, [], {}, "tokens of task .* have changed"),
        (with_unknown_tokens, [], {"train": True}, "has the id 999999"),
        (with_another_task, [], {}, "the task 'unknown', which is not in"),
        (with_another_prompt, [], {}, "another prompt of task .*: the data has changed since the run"),
    ],
)
def test_wrong_input_is_one_error_that_says_what_to_do(
    copied: Path, damage: Any, overrides: list[str], options: dict[str, Any], message: str
) -> None:
    damage(copied)
    with pytest.raises(AgentR1Error, match=message):
        replay(copied, *overrides, **options)


@pytest.mark.whole
def test_a_model_that_has_changed_since_the_run_is_refused(copied: Path) -> None:
    file = RunFolder(copied).fingerprints
    known = json.loads(file.read_text())
    name = next(key for key in known if key.startswith("model.path"))
    file.write_text(json.dumps({**known, name: "1 bytes, sha256 0"}))
    with pytest.raises(ConfigError, match="has changed since"):
        replay(copied, train=True)


@pytest.mark.whole
def test_steps_that_were_not_recorded_are_named(copied: Path) -> None:
    without_steps(copied)
    assert replay(copied).notes == ("the run has recorded step 2; the others cannot be replayed",)


# --- the command and what is recorded ------------------------------------------------------------------------------


def test_the_command_prints_what_changes_and_writes_it_as_json(recorded: Path, tmp_path: Path) -> None:
    words = ["replay", str(recorded), "reward.function=opposite", "--show", "1", "--json", str(tmp_path / "found.json")]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    for line in ("16 trajectories of steps 1 to 2", "reproduced exactly", "change their sign", "what changes most"):
        assert line in result.output
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["rewards"]["outcome"]["rank_correlation"] == pytest.approx(-1.0)
    assert found["settings"] == ["reward.function: score_variety -> opposite"]
    assert found["advantages"]["flipped"] > 0
    assert found["update"] is None
    refused = CliRunner().invoke(app, ["replay", str(tmp_path)], env={"COLUMNS": "200"})
    assert refused.exit_code == 2
    assert "is not the folder of a run" in refused.output


def test_what_a_flow_gave_to_the_reward_is_recorded(tmp_path: Path) -> None:
    """An agent behind the gateway may give its answer and its reward itself."""
    trajectory = Trajectory(
        task_id="a",
        group_id=0,
        member=0,
        steps=(),
        outcome_reward=0.5,
        stop_reason=StopReason.DONE,
        given_answer="42",
        posted_reward=0.5,
    )
    group = Group(task=Task(task_id="a", prompt=()), group_id=0, trajectories=(trajectory,))
    write_trajectories(tmp_path / "1.jsonl", [group], policy_step=0)
    [found] = read_trajectories(tmp_path / "1.jsonl")
    assert (found.episode.given_answer, found.episode.posted_reward) == ("42", 0.5)


@pytest.mark.whole
def test_another_preset_is_one_line_and_needs_what_it_compares_with(recorded: Path) -> None:
    found = replay(recorded, "algorithm=remax", steps=[1])
    assert "compares with greedy rollouts" in "".join(found.notes)
    assert [line for line in found.settings if line.startswith("algorithm")] == ["algorithm: grpo -> remax"]


@pytest.mark.whole
@pytest.mark.parametrize(
    "algorithm",
    [
        ["algorithm=ppo", "algorithm.critic.bootstrap=true"],
        ["algorithm=steppo"],
        ["algorithm=reinforce_pp"],
        ["algorithm=remax"],
        ["algorithm=gigpo", "algorithm.process.normalisation=running"],
    ],
)
def test_every_kind_of_estimator_is_reproduced_exactly(
    algorithm: list[str], model_folder: Path, tmp_path: Path
) -> None:
    """With a critic, bootstrapped or not; with a KL penalty in the reward; with greedy rollouts; with anchors."""
    overrides = tiny_overrides(tmp_path, model_folder, *RECORDED, *algorithm)
    commands.train(*overrides, quiet=True, reward=score_variety)
    found = replay(tmp_path / "tiny")
    assert found.reproduced is not None
    assert found.reproduced.tokens > 0
    assert (found.reproduced.differing, found.reproduced.differing_steps) == (0, 0)
    assert found.advantages is not None
    assert found.advantages.identical
    assert found.outcome.changed == 0.0


def test_a_replay_scores_or_bootstraps_a_truncated_episode_never_both(model_folder: Path, tmp_path: Path) -> None:
    """A run that bootstraps, replayed without: the outcome counts again, and the value after the cut no longer does."""
    plain = ["algorithm.estimator.whitened=false", "algorithm.estimator.lam=1"]
    overrides = tiny_overrides(tmp_path, model_folder, *RECORDED, "algorithm=steppo", "rollout.max_steps=1", *plain)
    overrides += ["trainer.steps=1", "reward.process_weight=0"]
    commands.train(*overrides, "algorithm.critic.bootstrap=true", quiet=True, reward=score_variety)
    file = RunFolder(tmp_path / "tiny").step_credit(1)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        assert line["steps"][-1]["next_value"] == 0.0  # all episodes are cut, and the first critic knows nothing
        line["steps"][-1]["next_value"] = 3.0
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    again = replay(tmp_path / "tiny").examples
    assert not again
    found = replay(tmp_path / "tiny", "algorithm.critic.bootstrap=false")
    assert len(found.examples) == 8
    for example in found.examples:
        assert example.advantage == pytest.approx((3.0, example.trajectory.outcome_reward))
    commands.train(*overrides, "run.name=scored", quiet=True, reward=score_variety)
    found = replay(tmp_path / "scored", "algorithm.critic.bootstrap=true")
    assert found.advantages is None
    assert any("the critic's value after each truncated episode" in note for note in found.notes)


def test_a_replay_with_another_kl_coefficient_has_another_penalty(model_folder: Path, tmp_path: Path) -> None:
    overrides = tiny_overrides(tmp_path, model_folder, *RECORDED, "algorithm=rloo", "algorithm.kl.coefficient=0.5")
    commands.train(*overrides, "optimizer.learning_rate=0.01", quiet=True, reward=score_variety)
    run = tmp_path / "tiny"
    advantages = {}
    for coefficient in (0.0, 0.25, 0.5, 1.0):
        found = replay(run, f"algorithm.kl.coefficient={coefficient}", steps=[2])
        assert not found.notes
        by_member = {(e.trajectory.group_id, e.trajectory.member): e.advantage for e in found.examples}
        advantages[coefficient] = by_member
    assert not advantages[0.5]  # nothing changes
    assert advantages[0.0]
    for member, (recorded, without) in advantages[0.0].items():
        assert recorded is not None
        assert without is not None
        for coefficient in (0.25, 1.0):
            expected = without + coefficient / 0.5 * (recorded - without)
            assert advantages[coefficient][member] == pytest.approx((recorded, expected), abs=1e-4)
    found = replay(run, "algorithm.kl.estimator=k2", steps=[2])
    assert any("another estimator" in note for note in found.notes)


@pytest.mark.whole
def test_a_recorded_quickstart_is_reproduced_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe's own model, tools and rewards, with a short warm start and few tasks."""
    monkeypatch.chdir(tmp_path)
    rng = random.Random(0)
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(task_row(draw_basket(rng))) + "\n" for _ in range(8)))
    settings = ["sft.steps=24", "trainer.steps=2", "rollout.groups_per_step=2", "tracking.record_credit=true"]
    commands.train("quickstart", *settings, f"data.train=[{tasks}]", "data.eval=[]", quiet=True)
    found = replay(Path("runs/quickstart"))
    assert (found.steps, found.outcome.changed, found.parts["return"].changed) == ((1, 2), 0.0, 0.0)
    assert found.parts["process"].before  # some prices were looked up
    assert found.reproduced is not None
    assert found.reproduced.tokens > 100
    assert (found.reproduced.differing, found.reproduced.differing_steps) == (0, 0)
    assert found.advantages is not None
    assert found.advantages.identical
    assert found.advantages.trajectories > 0
