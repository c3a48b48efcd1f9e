"""From a run's folder to rates, and from rates to a plan; what is missing is said."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_r1.cli import app
from agent_r1.config import load_config, to_yaml
from agent_r1.errors import DataError
from agent_r1.planning import (
    Call,
    EngineRates,
    RecordedEpisode,
    Setup,
    fit_engine,
    fit_update,
    make_plan,
    read_recorded_run,
)
from agent_r1.planning.rates import solve_nonnegative, timeline
from agent_r1.runs import RunFolder, write_trajectories
from agent_r1.types import Action, Group, Observation, Step, StopReason, Task, Trajectory

RATES = EngineRates(per_prompt_token=0.001, base=0.02, per_request=0.005, per_call=0.03)
TOOL = 0.5


def generate_seconds(new: int, tokens: int, beside: int) -> float:
    """Of calls that begin and end together."""
    return RATES.per_call + RATES.per_prompt_token * new + tokens * RATES.seconds_per_token(beside)


def make_step(prompt: Sequence[int], action: Sequence[int], seconds: float, version: int = 0) -> Step:
    return Step(
        observation=Observation(token_ids=tuple(prompt)),
        prompt_ids=tuple(prompt),
        action=Action(text="", token_ids=tuple(action)),
        action_ids=tuple(action),
        rollout_logprobs=(-1.0,) * len(action),
        reward=0.0,
        done=False,
        policy_versions=(version,) * len(action),
        timings={"wait": 0.1, "generate": seconds, "env": TOOL, "reward": 0.25},
    )


def trajectory(group: int, member: int, steps: Sequence[Step], reason: StopReason = StopReason.DONE) -> Trajectory:
    return Trajectory(
        task_id="t", group_id=group, member=member, steps=tuple(steps), outcome_reward=1.0, stop_reason=reason
    )


def record_run(path: Path, num_steps: int = 5, *, with_failure: bool = False, **settings: int) -> Path:
    """A run in which step n has one group of two members that make one call of 10 * n tokens each, together."""
    folder = RunFolder(path)
    folder.trajectories.mkdir(parents=True)
    overrides = {"groups_per_step": 1, "group_size": 2, **settings}
    texts = [f"rollout.{name}={value}" for name, value in overrides.items()]
    folder.config.write_text(to_yaml(load_config(None, ["model.path=none", f"run.folder={path.parent}", *texts])))
    lines = []
    for step in range(1, num_steps + 1):
        seconds = generate_seconds(100, 10 * step, 2)
        members = [trajectory(0, n, [make_step(range(100), [1] * 10 * step, seconds)]) for n in range(2)]
        failed = [trajectory(0, 2, [], StopReason.ENV_ERROR)] if with_failure else []
        group = Group(task=Task(task_id="t", prompt=()), group_id=0, trajectories=(*members, *failed))
        write_trajectories(folder.step_trajectories(step), [group], policy_step=step - 1)
        rollout, tokens = 0.1 + seconds + TOOL + 0.25, 100 + 20 * step
        update = 0.2 + 0.01 * tokens
        lines.append(
            {
                "step": step,
                "time/rollout": rollout,
                "time/update": update,
                "time/weight_sync": 0.3,
                "time/step": rollout + update + 0.3 + 0.05,
                "perf/trained_tokens": tokens,
            }
        )
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_record_is_read_without_its_first_step_and_without_failures(tmp_path: Path) -> None:
    recorded = read_recorded_run(record_run(tmp_path / "run", with_failure=True))
    assert recorded.num_steps == 4
    work = recorded.workload
    assert [len(group) for group in work.groups] == [2] * 4
    first, second = work.groups[0]
    expected = Call(
        wait=0.1, prompt_tokens=100, new_tokens=100, action_tokens=20, env=0.75, generate=first.calls[0].generate
    )
    assert first.calls == (expected,)
    assert second.calls[0].new_tokens == 0  # the group shares its prompt
    assert (work.weight_sync, work.other) == pytest.approx((0.3, 0.05))
    assert (work.update.base, work.update.per_token) == pytest.approx((0.2, 0.01))
    assert work.trained_share == pytest.approx(1.0)
    assert work.groups_factor == 1.0


def test_a_step_that_was_profiled_is_not_planned_from(tmp_path: Path) -> None:
    run = record_run(tmp_path / "run", num_steps=5)
    config = RunFolder(run).config
    config.write_text(config.read_text().replace("profile_step: 0", "profile_step: 3"))
    plain, profiled = read_recorded_run(record_run(tmp_path / "plain", num_steps=5)), read_recorded_run(run)
    assert (plain.num_steps, profiled.num_steps) == (4, 3)
    assert profiled.step_seconds == (plain.step_seconds[0], *plain.step_seconds[2:])


def test_the_recorded_setup_is_simulated_as_it_was_measured(tmp_path: Path) -> None:
    recorded = read_recorded_run(record_run(tmp_path / "run"))
    plan = make_plan(recorded, recorded.setup)
    assert plan.measured == pytest.approx(sum(recorded.step_seconds) / 4)
    assert abs(plan.model_error) < 0.1  # the steps that are drawn have other lengths


def test_rates_are_found_from_calls_side_by_side() -> None:
    """Episodes that begin together: one, two and four at once, with other lengths in each step."""
    steps = [
        [
            tuple(
                RecordedEpisode(
                    calls=(
                        Call(
                            wait=0.0,
                            prompt_tokens=new,
                            new_tokens=new,
                            action_tokens=tokens,
                            env=1.0,
                            generate=generate_seconds(new * beside, tokens, beside),
                        ),
                    )
                )
                for _ in range(beside)
            )
        ]
        for beside, new, tokens in [(1, 10, 5), (1, 80, 30), (2, 40, 9), (4, 25, 60), (4, 7, 3)]
    ]
    found = fit_engine(steps, slots=8)
    assert found.base == pytest.approx(RATES.base, rel=1e-4)
    assert found.per_request == pytest.approx(RATES.per_request, rel=1e-4)
    assert found.per_prompt_token == pytest.approx(RATES.per_prompt_token, rel=1e-4)
    assert found.per_call == pytest.approx(RATES.per_call, rel=1e-4)


def test_no_rate_is_negative() -> None:
    import numpy as np

    matrix = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert solve_nonnegative(matrix, np.array([3.0, 2.0, 1.0])) == pytest.approx([2.0, 0.0])
    assert solve_nonnegative(matrix, np.array([-1.0, -2.0, -3.0])) == [0.0, 0.0]


def test_updates_of_about_one_size_are_proportional_to_their_tokens() -> None:
    assert fit_update([100, 101], [1.0, 1.0]).base == 0.0
    assert fit_update([100, 100], [1.0, 3.0]).per_token == pytest.approx(0.02)


def test_episodes_take_slots_as_they_become_free() -> None:
    def one(seconds: float) -> RecordedEpisode:
        call = Call(wait=0.5, prompt_tokens=1, new_tokens=1, action_tokens=1, env=seconds, generate=1.0)
        return RecordedEpisode(calls=(call,))

    starts = [timed.start for timed in timeline([(one(1.0), one(5.0)), (one(1.0),)], slots=2)]
    assert starts == [0.5, 0.5, 3.0]


def test_calls_during_which_weights_changed_do_not_count_for_the_rates() -> None:
    call = Call(wait=0.0, prompt_tokens=0, new_tokens=0, action_tokens=10, env=0.0, generate=1.0)
    slow = replace(call, generate=50.0, over_update=True)
    group = tuple(RecordedEpisode(calls=(one,)) for one in (call, call, slow))
    found = fit_engine([[group]], slots=1)
    assert found.seconds_per_token(1) * 10 + found.per_call == pytest.approx(1.0)


@pytest.mark.parametrize("num_steps", [1, 2])
def test_a_run_with_too_few_steps_is_refused(tmp_path: Path, num_steps: int) -> None:
    with pytest.raises(DataError, match=rf"has {num_steps} training steps, {num_steps - 1} of them usable.*at least 2"):
        read_recorded_run(record_run(tmp_path / "run", num_steps))


def test_without_a_run_it_says_how_to_record_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no run is recorded in .*nowhere.*agent-r1 train RECIPE trainer\.steps=6"):
        read_recorded_run(tmp_path / "nowhere")


def test_a_record_without_times_is_refused(tmp_path: Path) -> None:
    path = record_run(tmp_path / "run")
    file = RunFolder(path).step_trajectories(3)
    file.write_text(file.read_text().replace('"generate"', '"elsewhere"'))
    with pytest.raises(DataError, match="no times of model calls"):
        read_recorded_run(path)


def test_steps_in_which_all_failed_are_refused(tmp_path: Path) -> None:
    path = record_run(tmp_path / "run")
    group = Group(
        task=Task(task_id="t", prompt=()),
        group_id=0,
        trajectories=(trajectory(0, 0, [], StopReason.ENV_ERROR),),
    )
    write_trajectories(RunFolder(path).step_trajectories(4), [group], policy_step=3)
    with pytest.raises(DataError, match="every rollout failed"):
        read_recorded_run(path)


# --- the plan --------------------------------------------------------------------------------------------------------


def test_the_bottleneck_is_the_part_whose_absence_saves_most(tmp_path: Path) -> None:
    """A step has about 1 s of generation, 0.75 s of tools and 1.8 s of update."""
    recorded = read_recorded_run(record_run(tmp_path / "run"))
    plan = make_plan(recorded, recorded.setup, repeats=2)
    assert plan.without[0].name == "updates"
    assert plan.bottleneck.startswith("The bottleneck is the learner's updates: without them a step would take ")
    slow_tools = make_plan(recorded, recorded.setup, tools=20.0, repeats=2)
    assert slow_tools.without[0].name == "tools"
    assert slow_tools.estimate.step_seconds == pytest.approx(plan.estimate.step_seconds + 19 * 0.75, rel=0.05)
    one_slot = make_plan(recorded, replace(recorded.setup, concurrency=1, group_size=8), tools=20.0, repeats=2)
    assert one_slot.without[0].name in ("tools", "slots")
    assert one_slot.changes[0].name == "rollout.concurrency=2"
    assert one_slot.changes[0].saves == pytest.approx(0.5, abs=0.1)


def test_parts_add_up_to_the_step_and_the_interval_holds_it(tmp_path: Path) -> None:
    recorded = read_recorded_run(record_run(tmp_path / "run"))
    estimate = make_plan(recorded, recorded.setup, repeats=2).estimate
    assert sum(estimate.parts.values()) == pytest.approx(estimate.step_seconds)
    low, high = estimate.interval
    assert low < estimate.step_seconds < high


def test_the_best_split_is_the_fastest(tmp_path: Path) -> None:
    recorded = read_recorded_run(record_run(tmp_path / "run"))
    plan = make_plan(recorded, replace(recorded.setup, max_staleness=1), devices=3, repeats=2)
    assert len(plan.splits) == 3
    assert plan.estimate.step_seconds == min(split.step_seconds for split in plan.splits)


def test_recorded_engines_and_learners_are_accounted_for(tmp_path: Path) -> None:
    path = record_run(tmp_path / "run")
    one, two = read_recorded_run(path), read_recorded_run(path, engines=2, learners=2)
    assert two.workload.update.per_token == pytest.approx(1.9 * one.workload.update.per_token)
    assert two.workload.rates.seconds_per_token(1) == pytest.approx(one.workload.rates.seconds_per_token(2), rel=0.01)


def command(path: Path, *arguments: str) -> tuple[int, str]:
    texts = ["plan", "model.path=none", f"run.folder={path.parent}", f"run.name={path.name}", *arguments]
    done = CliRunner().invoke(app, texts, env={"COLUMNS": "100"})
    return done.exit_code, done.output


@pytest.mark.whole
def test_the_command_prints_a_table_and_writes_json_and_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs agent-r1[plot]")
    path = record_run(tmp_path / "run")
    files = tmp_path / "plan.json", tmp_path / "plan.png"
    settings = ["rollout.groups_per_step=1", "rollout.group_size=2", "--staleness", "1"]
    code, output = command(path, *settings, "--gpus", "2", "--json", str(files[0]), "--plot", str(files[1]))
    assert code == 0, output
    assert "best" in output
    assert "The bottleneck is" in output
    assert f"from 4 steps of {path}" in output.replace("\n", "")
    written = json.loads(files[0].read_text())
    assert len(written["splits"]) == 2
    assert written["estimate"]["setup"]["max_staleness"] == 1
    assert written["bottleneck"] in output
    assert files[1].stat().st_size > 5_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engines", "2"], "--engines and --learners belong together"),
        (["--engines", "2", "--learners", "1", "--gpus", "3"], "leave out --engines and --learners"),
        (["--run", "no/such/run"], "no run is recorded in no/such/run"),
        (["rollout.group_sise=2"], "group_sise"),
    ],
)
def test_what_cannot_be_planned_is_said(tmp_path: Path, arguments: list[str], message: str) -> None:
    code, output = command(record_run(tmp_path / "run"), *arguments)
    assert code == 2
    assert message in " ".join(output.split())
    assert "Traceback" not in output


def test_a_setup_counts_its_devices() -> None:
    plain = Setup(groups_per_step=1, group_size=1)
    assert plain.num_devices == 1
    assert replace(plain, engines=3, learners=2, shared=False).num_devices == 5
