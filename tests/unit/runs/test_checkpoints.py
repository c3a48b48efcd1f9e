"""Checkpoints and run folders: nothing half there, nothing lost, each line once."""

from __future__ import annotations

import json
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from agent_r1.config import Config, from_yaml
from agent_r1.errors import CheckpointError, ConfigError
from agent_r1.files import replace_folder
from agent_r1.runs import RunFolder, open_run
from agent_r1.runs.checkpoints import find_damage, list_checkpoints, newest_readable
from agent_r1.training.checkpoints.files import RUN_ID, Checkpoint, load_checkpoint, save_checkpoint


def save(folder: Path, step: int, keep: int = 10) -> Path:
    return save_checkpoint(folder, step=step, state={"step": step, "weight": torch.full((3,), float(step))}, keep=keep)


def load_latest(folder: Path, say: Callable[[str], None] = lambda text: None) -> Checkpoint | None:
    """As a resumed run loads it; None when there is no checkpoint at all."""
    return load_checkpoint(*newest_readable(folder, say)) if list_checkpoints(folder) else None


def flip_a_bit(file: Path) -> None:
    """Of a weight: torch reads such a file without complaint."""
    content = bytearray(file.read_bytes())
    step = float(file.parent.name.removeprefix("step_"))
    place = content.find(struct.pack("<3f", step, step, step))
    assert place > 0
    content[place] ^= 1
    file.write_bytes(content)


# --- checkpoints ---------------------------------------------------------------------------------------------------


def test_a_state_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    state = {
        "weights": {"a": torch.randn(4, 3), "b": torch.randn(2).bfloat16()},
        "skips": [3, 1],
        "train_seconds": 1.5,
    }
    place = save_checkpoint(tmp_path / "checkpoints", step=12, state=state, keep=2)
    assert place == tmp_path / "checkpoints" / "step_12"
    loaded = load_latest(tmp_path / "checkpoints")
    assert loaded is not None
    assert loaded.step == 12
    assert torch.equal(loaded.state["weights"]["a"], state["weights"]["a"])  # type: ignore[index]
    assert torch.equal(loaded.state["weights"]["b"], state["weights"]["b"])  # type: ignore[index]
    assert loaded.state["skips"] == [3, 1]
    assert loaded.state["train_seconds"] == 1.5


def test_without_a_checkpoint_there_is_nothing_to_load(tmp_path: Path) -> None:
    assert load_latest(tmp_path) is None
    assert load_latest(tmp_path / "nothing") is None


def test_the_newest_is_the_one_of_the_highest_step_not_of_the_last_name(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        save(tmp_path, step)
    assert [step for step, _ in list_checkpoints(tmp_path)] == [2, 9, 10]
    loaded = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.step == 10
    assert loaded.state["weight"].tolist() == [10.0] * 3


@pytest.mark.parametrize(("keep", "left"), [(1, [10]), (2, [9, 10]), (5, [1, 2, 9, 10]), (0, [1, 2, 9, 10])])
def test_only_the_newest_are_kept(tmp_path: Path, keep: int, left: list[int]) -> None:
    for step in (1, 2, 9, 10):
        save(tmp_path, step, keep=keep)
    assert [step for step, _ in list_checkpoints(tmp_path)] == left


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 3)
    save_checkpoint(tmp_path, step=3, state={"weight": torch.ones(1)}, keep=2)
    loaded = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.state["weight"].tolist() == [1.0]


def test_a_half_written_checkpoint_is_ignored_and_the_next_save_clears_it(tmp_path: Path) -> None:
    save(tmp_path, 4)
    partial = tmp_path / ".step_5.partial"
    partial.mkdir()
    (partial / "state.pt").write_bytes(b"half a fi")
    loaded = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.step == 4
    save(tmp_path, 5)
    loaded = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.step == 5
    assert not partial.exists()


class DiesWhenSaved:
    def __reduce__(self) -> Any:
        raise KeyboardInterrupt


def test_a_crash_while_writing_loses_nothing(tmp_path: Path) -> None:
    save(tmp_path, 4)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, step=5, state={"weight": torch.ones(2), "bomb": DiesWhenSaved()}, keep=1)
    loaded = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.step == 4
    assert loaded.state["weight"].tolist() == [4.0] * 3


def test_a_crash_between_writing_and_renaming_loses_nothing(tmp_path: Path) -> None:
    save(tmp_path, 4)
    # All that a crash at that moment leaves behind: a complete checkpoint under its temporary name.
    save(tmp_path, 5).rename(tmp_path / ".step_5.partial")
    loaded = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.step == 4
    save(tmp_path, 5)
    assert [step for step, _ in list_checkpoints(tmp_path)] == [4, 5]


def test_a_replacement_that_fails_leaves_the_old_folder(tmp_path: Path) -> None:
    place = tmp_path / "hf"
    place.mkdir()
    (place / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError):
        replace_folder(tmp_path / "hf.partial", place)
    assert (place / "config.json").read_text() == "{}"


def test_a_folder_replaces_another_with_other_files(tmp_path: Path) -> None:
    place, beside = tmp_path / "hf", tmp_path / "hf.partial"
    for folder, name in ((place, "old"), (beside, "new")):
        folder.mkdir()
        (folder / name).write_text(name)
    replace_folder(beside, place)
    assert [file.name for file in place.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda file: file.unlink(), id="missing"),
        pytest.param(lambda file: file.write_bytes(b""), id="empty"),
        pytest.param(lambda file: file.write_bytes(b"not a checkpoint at all"), id="garbage"),
        pytest.param(lambda file: file.write_bytes(file.read_bytes()[:-200]), id="cut short"),
        pytest.param(lambda file: flip_a_bit(file), id="one bit of a weight"),
    ],
)
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(tmp_path: Path, damage: Any) -> None:
    save(tmp_path, 4)
    damage(save(tmp_path, 5) / "state.pt")
    said: list[str] = []
    loaded = load_latest(tmp_path, said.append)
    assert loaded is not None
    assert loaded.step == 4
    assert loaded.state["weight"].tolist() == [4.0] * 3
    [told] = said
    assert "step_5 is damaged" in told
    assert "renamed to step_5.corrupt; the run resumes from step 4" in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_4", "step_5.corrupt"]


def test_one_wrong_bit_anywhere_in_the_directory_of_a_checkpoint_is_found(tmp_path: Path) -> None:
    """Some of them make torch leave a tensor as it was in memory, without a word."""
    file = save(tmp_path, 5) / "state.pt"
    content = file.read_bytes()
    with zipfile.ZipFile(file) as archive:
        start = archive.start_dir
    assert find_damage(file.parent) is None
    for bit in range(8 * start, 8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        file.write_bytes(changed)
        assert find_damage(file.parent) is not None, bit


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"start": "x"}', b'{"start": -1}', b"\xff"])
def test_a_damaged_list_of_checksums_is_damage(tmp_path: Path, content: bytes) -> None:
    place = save(tmp_path, 5)
    (place / "state.json").write_bytes(content)
    assert find_damage(place) is not None


def test_a_checkpoint_that_was_copied_from_another_run_is_refused(tmp_path: Path) -> None:
    mine, other = (RunFolder(tmp_path / name) for name in ("mine", "other"))
    for folder in (mine, other):
        save_checkpoint(folder.checkpoints, step=2, state={RUN_ID: folder.path.name}, keep=1)
    mine.run_id.write_text("mine\n")
    assert load_latest(mine.checkpoints) is not None
    copied = shutil.copytree(other.checkpoints / "step_2", mine.checkpoints / "step_3")
    with pytest.raises(CheckpointError, match=r"step_3 was written by another run .*run_id other, not mine"):
        load_latest(mine.checkpoints)
    mine.run_id.unlink()  # of an earlier version
    assert load_checkpoint(3, copied).state == {RUN_ID: "other"}


def test_a_new_run_has_a_name_of_its_own_which_a_resumed_one_keeps(tmp_path: Path) -> None:
    first, _ = open_run(config_of(tmp_path))
    named = first.read_run_id()
    save(first.checkpoints, 1)
    resumed, resumes = open_run(config_of(tmp_path))
    assert (resumes, resumed.read_run_id()) == (True, named)
    fresh, _ = open_run(config_of(tmp_path, "run.resume=never"))
    assert fresh.read_run_id() not in (None, named)


def test_a_checkpoint_of_a_version_without_that_checksum_is_read(tmp_path: Path) -> None:
    place = save(tmp_path, 5)
    (place / "state.json").unlink()
    assert find_damage(place) is None
    content = bytearray((place / "state.pt").read_bytes())
    content[content.index(b"PK\x01\x02") + 8] ^= 1  # says that the part is encrypted
    (place / "state.pt").write_bytes(content)
    assert "encrypted" in str(find_damage(place))


def test_a_damaged_checkpoint_before_an_undamaged_one_is_left_alone(tmp_path: Path) -> None:
    flip_a_bit(save(tmp_path, 4) / "state.pt")
    save(tmp_path, 5)
    loaded = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.step == 5
    assert [step for step, _ in list_checkpoints(tmp_path)] == [4, 5]


def test_when_every_checkpoint_is_damaged_one_error_names_them_and_nothing_is_renamed(tmp_path: Path) -> None:
    for step in (4, 5):
        flip_a_bit(save(tmp_path, step) / "state.pt")
    with pytest.raises(CheckpointError, match=r"every checkpoint is damaged: .*step_5.*; .*step_4.*run\.resume=never"):
        load_latest(tmp_path)
    assert [step for step, _ in list_checkpoints(tmp_path)] == [4, 5]


def test_two_damaged_checkpoints_of_one_step_are_both_kept(tmp_path: Path) -> None:
    save(tmp_path, 4)
    for _ in range(2):
        flip_a_bit(save(tmp_path, 5) / "state.pt")
        load_latest(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_4", "step_5.corrupt", "step_5.corrupt1"]


def test_removing_an_unreadable_checkpoint_goes_on_from_the_one_before(tmp_path: Path) -> None:
    save(tmp_path, 4)
    broken = save(tmp_path, 5)
    shutil.rmtree(broken)
    loaded = load_latest(tmp_path)
    assert loaded is not None
    assert loaded.step == 4


# --- the run folder ------------------------------------------------------------------------------------------------


def logged(steps: list[int], cut: str = "") -> str:
    return "".join(json.dumps({"step": step, "reward/outcome": step / 10}) + "\n" for step in steps) + cut


def test_rewinding_drops_later_lines_and_files_and_the_summary(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics.write_text(logged([0, 1, 2, 3, 4]))
    folder.trajectories.mkdir()
    for name in ("1", "2", "3", "10", "eval_before"):
        (folder.trajectories / f"{name}.jsonl").write_text("{}\n")
    folder.summary.write_text("{}")
    folder.rewind(2)
    assert folder.metrics.read_text() == logged([0, 1, 2])
    assert sorted(file.stem for file in folder.trajectories.iterdir()) == ["1", "2", "eval_before"]
    assert not folder.summary.exists()


def test_rewinding_drops_a_last_line_that_was_cut(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics.write_text(logged([1, 2], cut='{"step": 3, "reward/outc'))
    assert [line["step"] for line in folder.read_metrics()] == [1, 2]
    folder.rewind(2)
    assert folder.metrics.read_text() == logged([1, 2])


def test_rewinding_keeps_the_evaluation_of_the_step_it_rewinds_to(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics.write_text(logged([1, 2, 2, 3]))
    folder.rewind(2)
    assert [line["step"] for line in folder.read_metrics()] == [1, 2, 2]


def test_rewinding_a_folder_without_logs_is_fine(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.rewind(0)
    assert folder.read_metrics() == []
    assert folder.read_summary() is None


# --- resuming or starting over -----------------------------------------------------------------------------------


def config_of(tmp_path: Path, *overrides: str) -> Config:
    given = OmegaConf.from_dotlist([f"run.folder={tmp_path}", "model.path=somewhere", "trainer.steps=10", *overrides])
    return from_yaml(OmegaConf.to_yaml(given))


def start_run(tmp_path: Path, *overrides: str, steps_done: int = 5, finished: bool = False) -> RunFolder:
    """A run that has been going for some steps, with a line of metrics to recognise it by."""
    config = config_of(tmp_path, *overrides)
    folder, goes_on = open_run(config)
    assert not goes_on
    folder.metrics.write_text(logged([steps_done]))
    save(folder.checkpoints, steps_done)
    if finished:
        folder.summary.write_text(json.dumps({"steps": config.trainer.steps}))
    return folder


def test_a_first_run_starts_afresh_and_writes_its_configuration(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    folder, goes_on = open_run(config)
    assert not goes_on
    assert folder.path == tmp_path / "run"
    assert from_yaml(folder.config.read_text()) == config


def test_auto_goes_on_with_an_unfinished_run_of_the_same_configuration(tmp_path: Path) -> None:
    start_run(tmp_path)
    folder, goes_on = open_run(config_of(tmp_path))
    assert goes_on
    assert folder.metrics.read_text() == logged([5])
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_goes_on_with_changed_code_of_its_recipe_and_says_which_files(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    (recipe / "reward_fn.py").write_text("PAID = 1\n")
    (recipe / "tools.py").write_text("")
    runs = tmp_path / "runs"
    start_run(runs, f"recipe={recipe}")
    moved = recipe.rename(tmp_path / "moved")  # the same files elsewhere are the same code
    assert open_run(config_of(runs, f"recipe={moved}"), say=pytest.fail)[1]
    (moved / "reward_fn.py").write_text("PAID = 20\n")
    (moved / "tools.py").unlink()
    (moved / "env.py").write_text("")
    (moved / "notes.md").write_text("no code")
    for mode in ("auto", "must"):
        told: list[str] = []
        assert open_run(config_of(runs, f"recipe={moved}", f"run.resume={mode}"), say=told.append)[1]
        assert told == [
            f"the recipe's code has changed since {runs / 'run'} began; the run continues with the new code:\n"
            "  - code env.py: no file -> 0 bytes, other content\n"
            "  - code reward_fn.py: 9 bytes -> 10 bytes, other content\n"
            "  - code tools.py: 0 bytes -> no file, other content"
        ]
    assert open_run(config_of(runs), say=pytest.fail)[1], "a program without a recipe"


def test_a_finished_run_is_moved_aside_and_not_deleted(tmp_path: Path) -> None:
    start_run(tmp_path, steps_done=10, finished=True)
    folder, goes_on = open_run(config_of(tmp_path))
    assert not goes_on
    assert not folder.metrics.exists()
    assert (tmp_path / "run.1" / "metrics.jsonl").read_text() == logged([10])
    assert len(list_checkpoints(tmp_path / "run.1" / "checkpoints")) == 1


def test_runs_moved_aside_get_a_number_each(tmp_path: Path) -> None:
    for _ in range(3):
        start_run(tmp_path, steps_done=10, finished=True)
    open_run(config_of(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.1", "run.2", "run.3"]


def test_a_finished_run_goes_on_when_more_steps_are_asked_for(tmp_path: Path) -> None:
    start_run(tmp_path, steps_done=10, finished=True)
    folder, goes_on = open_run(config_of(tmp_path, "trainer.steps=20"))
    assert goes_on
    # Written when the checkpoint was taken over: a resume that is refused must leave what was there.
    assert from_yaml(folder.config.read_text()).trainer.steps == 10


@pytest.mark.parametrize(
    "override",
    [
        "trainer.save_every=3",
        "trainer.keep_checkpoints=7",
        "trainer.keep_checkpoints=0",
        "tracking.record_every=2",
        "run.resume=must",
    ],
)
def test_what_a_run_only_writes_may_change_between_its_parts(tmp_path: Path, override: str) -> None:
    start_run(tmp_path)
    assert open_run(config_of(tmp_path, override))[1]


@pytest.mark.parametrize(
    "override",
    ["optimizer.learning_rate=1e-3", "trainer.seed=1", "algorithm.aggregation.name=token-mean", "rollout.group_size=4"],
)
def test_a_run_of_another_configuration_is_moved_aside(tmp_path: Path, override: str) -> None:
    start_run(tmp_path)
    folder, goes_on = open_run(config_of(tmp_path, override))
    assert not goes_on
    assert not folder.metrics.exists()
    assert (tmp_path / "run.1" / "metrics.jsonl").read_text() == logged([5])


def test_a_run_of_a_configuration_that_is_no_longer_understood_is_moved_aside(tmp_path: Path) -> None:
    old = start_run(tmp_path)
    text = old.config.read_text()
    assert text.count("algorithm:\n") == 1
    old.config.write_text(text.replace("algorithm:\n", "algorithm:\n  greedy_baseline: true\n"))
    told: list[str] = []
    folder, goes_on = open_run(config_of(tmp_path), say=told.append)
    assert not goes_on
    assert "has the key 'algorithm.greedy_baseline', which this version does not know" in told[0]
    assert (tmp_path / "run.1" / "metrics.jsonl").exists()
    assert not folder.metrics.exists()


def test_a_run_killed_before_its_first_checkpoint_starts_afresh(tmp_path: Path) -> None:
    folder, _ = open_run(config_of(tmp_path))
    folder.metrics.write_text(logged([1]))
    again, goes_on = open_run(config_of(tmp_path))
    assert not goes_on
    assert not again.metrics.exists()
    assert (tmp_path / "run.1" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("finished", "steps", "told"),
    [
        (True, 10, "holds a finished run. It is moved"),
        (True, 20, "holds a run without a checkpoint (its trainer.keep_checkpoints is 0). It is moved"),
        (False, 10, "holds a run without a checkpoint (its trainer.keep_checkpoints is 0). It is moved"),
    ],
)
def test_a_run_that_writes_no_checkpoints_is_moved_aside_and_the_reason_is_told(
    tmp_path: Path, finished: bool, steps: int, told: str
) -> None:
    shutil.rmtree(start_run(tmp_path, "trainer.keep_checkpoints=0", finished=finished).checkpoints)
    again = config_of(tmp_path, "trainer.keep_checkpoints=0", f"trainer.steps={steps}")
    said: list[str] = []
    folder, resumes = open_run(again, say=said.append)
    assert not resumes
    assert told in said[0]
    assert not folder.summary.exists()
    assert (tmp_path / "run.1" / "metrics.jsonl").exists()


def test_a_run_that_writes_no_checkpoints_cannot_be_made_to_resume(tmp_path: Path) -> None:
    shutil.rmtree(start_run(tmp_path, "trainer.keep_checkpoints=0", finished=True).checkpoints)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* \(its trainer\.keep_checkpoints is 0\)$"):
        open_run(config_of(tmp_path, "run.resume=must"))


def test_never_starts_afresh_and_keeps_the_old_run(tmp_path: Path) -> None:
    start_run(tmp_path)
    folder, goes_on = open_run(config_of(tmp_path, "run.resume=never"))
    assert not goes_on
    assert not folder.metrics.exists()
    assert (tmp_path / "run.1" / "metrics.jsonl").read_text() == logged([5])


def test_must_goes_on_even_with_another_configuration(tmp_path: Path) -> None:
    start_run(tmp_path)
    folder, goes_on = open_run(config_of(tmp_path, "run.resume=must", "optimizer.learning_rate=1e-3"))
    assert goes_on
    assert folder.metrics.read_text() == logged([5])


def test_must_refuses_when_there_is_nothing_to_go_on_with(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        open_run(config_of(tmp_path, "run.resume=must"))
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_way_to_resume_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.resume is 'perhaps'; known: auto, never, must"):
        open_run(config_of(tmp_path, "run.resume=perhaps"))
