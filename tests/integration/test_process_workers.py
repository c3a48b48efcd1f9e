"""`rollout.workers=processes` for real: the same run, killed workers, signals, wrong input."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import agent_r1
from agent_r1.errors import ConfigError, WorkersError
from agent_r1.images import pictures_in
from agent_r1.rewards import reward_functions
from tests.helpers import commands
from tests.helpers.forks import forks
from tests.helpers.seeing_runs import seeing_recipe, seeing_run
from tests.helpers.tiny_runs import RECIPE
from tests.helpers.tiny_vlms import make_tiny_vlm
from tests.helpers.worker_runs import comparable, metrics_of, name_of, processes_below, recipe_in, tiny_run, wait_for
from tests.integration.test_runs import same_weights

pytestmark = pytest.mark.whole

WORKERS = ["rollout.workers=processes", "rollout.processes.num_workers=2"]


def test_workers_without_torch_make_the_same_run_and_one_that_is_killed_changes_nothing(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward_functions.add("of_another_run", lambda task, episode: 0.0, replaceable=True)  # no worker needs it
    recipe = recipe_in(tmp_path)
    plain, apart, killed = (tmp_path / name for name in ("plain", "apart", "killed"))
    commands.train(recipe, *tiny_run(plain, model_folder), quiet=True)
    commands.train(recipe, *tiny_run(apart, model_folder, *WORKERS), quiet=True)
    marker = tmp_path / "kill"
    marker.touch()
    monkeypatch.setenv("TEST_KILL_ONCE", str(marker))
    commands.train(recipe, *tiny_run(killed, model_folder, *WORKERS), quiet=True)
    expected = agent_r1.load_trajectories(plain / "tiny")
    assert len(expected) == 2 * 2 * 6
    for folder in (apart, killed):
        trajectories = agent_r1.load_trajectories(folder / "tiny")
        assert comparable(trajectories) == comparable(expected)
        assert same_weights(plain / "tiny", folder / "tiny")
        assert {trajectory.reward_parts["torch"] for trajectory in trajectories} == {0.0}
        pids = {trajectory.reward_parts["pid"] for trajectory in trajectories}
        assert os.getpid() not in pids
        assert len(pids) == 2 or folder == killed  # its second worker may come too late for this short run
    assert not marker.exists()
    counts = [(line["error/lost_workers"], line["error/lost_rollouts"]) for line in metrics_of(killed / "tiny")]
    assert counts[0][0] == 1
    assert counts[0][1] >= 1
    assert counts[1] == (0, 0)
    assert [line["error/lost_workers"] for line in metrics_of(apart / "tiny")] == [0, 0]


def test_pictures_travel_and_workers_make_the_same_run_with_a_model_that_reads_images(tmp_path: Path) -> None:
    """The run with workers is first: its process knows no picture but by them. The critic reads the prompts behind
    episodes that were cut, whose last pictures no request had."""
    recipe, model = seeing_recipe(tmp_path), make_tiny_vlm("smolvlm", tmp_path / "model")
    critic = ["algorithm=ppo", "algorithm.critic.bootstrap=true"]
    workers = [*WORKERS[:1], "rollout.processes.num_workers=1"]
    commands.train(recipe, *seeing_run(recipe, tmp_path / "apart", model, *critic, *workers), quiet=True)
    commands.train(recipe, *seeing_run(recipe, tmp_path / "plain", model, *critic), quiet=True)
    expected, found = (agent_r1.load_trajectories(tmp_path / name / "seeing") for name in ("plain", "apart"))
    assert len(expected) == 2 * 2 * 3
    assert all(len(list(pictures_in(each.steps[-1].observation.messages or ()))) == 3 for each in expected)
    assert comparable(found) == comparable(expected)
    assert same_weights(tmp_path / "plain" / "seeing", tmp_path / "apart" / "seeing")
    assert os.getpid() not in {each.reward_parts["pid"] for each in found}
    images = [
        sorted(path.name for path in (tmp_path / name).rglob("trajectories/images/*")) for name in ("plain", "apart")
    ]
    assert images[0] == images[1] != []


def test_a_reward_that_crashes_its_worker_every_time_ends_the_run_with_one_line_and_a_checkpoint(
    tmp_path: Path, model_folder: Path
) -> None:
    recipe = recipe_in(tmp_path)
    text = (recipe / "reward_fn.py").read_text()
    crash = "    if episode.steps[0].policy_versions[0] > 0:\n        os._exit(3)\n    return {"
    (recipe / "reward_fn.py").write_text(text.replace("    return {", crash))
    settings = [*WORKERS, "rollout.processes.max_losses=2", "trainer.save_every=100", "rollout.processes.num_workers=1"]
    with pytest.raises(WorkersError, match=r"lost 4 times in a row .* ended with exit code 3") as caught:
        commands.train(recipe, *tiny_run(tmp_path / "runs", model_folder, *settings), quiet=True)
    assert "\n" not in str(caught.value)
    assert [path.name for path in sorted((tmp_path / "runs" / "tiny" / "checkpoints").iterdir())] == ["step_1"]


def test_a_recipe_that_is_changed_before_a_worker_is_replaced_ends_the_run(tmp_path: Path, model_folder: Path) -> None:
    recipe = recipe_in(tmp_path)
    file = recipe / "reward_fn.py"
    change = f"    with open({str(file)!r}, 'a') as file:\n        file.write('# Another reward.')\n    os._exit(3)\n"
    file.write_text(file.read_text().replace("    return {", change + "    return {"))
    workers = [*WORKERS[:1], "rollout.processes.num_workers=1"]
    with pytest.raises(WorkersError, match=r"reward_fn.py was changed while a run uses it.* Undo the change") as caught:
        commands.train(recipe, *tiny_run(tmp_path / "runs", model_folder, *workers), quiet=True)
    assert "\n" not in str(caught.value)


def test_a_recipe_that_breaks_in_its_worker_alone_is_one_clear_error(tmp_path: Path, model_folder: Path) -> None:
    recipe = recipe_in(tmp_path)
    text = (recipe / "words.py").read_text()
    broken = f"import os\nif os.getpid() != {os.getpid()}:\n    raise ValueError('not in this process')\n"
    (recipe / "words.py").write_text(broken + text)
    with pytest.raises(WorkersError, match=r"a rollout worker cannot start: .*not in this process") as caught:
        commands.train(recipe, *tiny_run(tmp_path / "runs", model_folder, *WORKERS), quiet=True)
    assert "\n" not in str(caught.value)


def test_an_object_that_cannot_be_sent_is_named(tmp_path: Path, model_folder: Path) -> None:
    overrides = tiny_run(tmp_path / "runs", model_folder, *WORKERS)
    with pytest.raises(WorkersError, match=r"cannot be sent to the workers: .*name them as module:attribute"):
        commands.train(recipe_in(tmp_path), *overrides, quiet=True, reward={"here": lambda task, episode: 1.0})


def test_a_gateway_with_a_port_of_its_own_is_refused(tmp_path: Path, model_folder: Path) -> None:
    overrides = tiny_run(tmp_path / "runs", model_folder, *WORKERS, "agent.port=8123")
    with pytest.raises(ConfigError, match=r"agent\.port=8123 .* with rollout\.workers=processes every worker"):
        commands.train(recipe_in(tmp_path), *overrides, quiet=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_interrupted_or_killed_leaves_no_process_behind(
    tmp_path: Path, model_folder: Path, number: signal.Signals
) -> None:
    """Ctrl-C reaches the whole process group, as from a terminal."""
    folder = tmp_path / "runs"
    overrides = tiny_run(folder, model_folder, "trainer.steps=500", "trainer.save_every=500", *WORKERS)
    metrics = folder / "tiny" / "metrics.jsonl"
    run = forks().start(["agent-r1", "train", str(RECIPE), *overrides], cwd=tmp_path, merged=True)
    try:
        wait_for(lambda: (metrics.exists() and metrics.read_text()) or run.poll() is not None, 300)
        started = processes_below(run.pid)
        if number == signal.SIGINT:
            os.killpg(run.pid, number)
        else:
            run.send_signal(number)
        output, _ = run.communicate(timeout=120)
    finally:
        run.close()
    assert sum("process_child" in name for name in started.values()) == 2
    if number != signal.SIGKILL:
        assert run.returncode == 128 + number, output[-3000:]
        assert "the same command resumes from there" in output
    wait_for(lambda: not [name for pid, name in started.items() if name_of(pid) == name], 60)
