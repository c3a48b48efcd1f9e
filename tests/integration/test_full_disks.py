"""Disks that are full: what was learned is not lost, nothing half written stays, and one message says what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import LlamaForCausalLM
from typer.testing import CliRunner

from agent_r1.cli import app
from agent_r1.config import Config, LoraConfig
from agent_r1.errors import StorageError
from agent_r1.files import atomic_write, free_bytes, size_in_words, write_atomically
from agent_r1.learner.critics import Critic
from agent_r1.learner.learner import TorchLearner
from agent_r1.models.export import export_model, stored_bytes
from agent_r1.models.lora import add_adapters
from agent_r1.runs.checkpoints import list_checkpoints
from agent_r1.runs.folder import RunFolder
from agent_r1.runs.tracking import JsonlTracker, read_metrics
from agent_r1.training.checkpoints.disk_space import disk_space_warning
from agent_r1.training.checkpoints.files import save_checkpoint
from tests.helpers import commands
from tests.helpers.full_disks import files_of_at_most, half_written, small_disk
from tests.helpers.hand_made import TOKEN_GAE, experience_of, make_learner, random_group
from tests.helpers.tiny_runs import tiny_overrides, write_tasks
from tests.integration.test_runs import same_weights, score_variety
from tests.unit.runs.test_checkpoints import load_latest

CHECKPOINT_TOO_LARGE = 250_000
"""The tiny model has 135 kB, its checkpoint three times that."""
MODEL_TOO_LARGE = 100_000


# --- one file ---------------------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_written_says_where_how_much_room_there_is_and_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "summary.json"
    write_atomically(file, "old")
    with files_of_at_most(1000), pytest.raises(StorageError) as caught:
        write_atomically(file, "x" * 5000)
    caught.match(
        rf"{file} cannot be written \(File too large\): [\d.]+ \w+ are free there, and it needs 5\.0 kB\. Raise"
    )
    assert file.read_text() == "old"
    assert half_written(tmp_path) == []


def test_a_full_disk_says_so(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "16k") as disk:
        with pytest.raises(
            StorageError, match=r"\(No space left on device\): 16\.4 kB are free .* 50\.0 kB\. Free some space"
        ):
            write_atomically(disk / "file", "x" * 50_000)
        assert list(disk.iterdir()) == []


def test_a_place_that_is_no_folder_says_so(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(
        StorageError, match=r"\((Not a directory|File exists)\).*Make it writable, or choose another place"
    ):
        write_atomically(tmp_path / "runs" / "config.yaml", "a: 1")


@pytest.mark.parametrize("error", [ValueError("no number"), RuntimeError("no gradient"), KeyboardInterrupt()])
def test_an_error_that_is_not_about_writing_stays_what_it_is_and_leaves_nothing(
    tmp_path: Path, error: BaseException
) -> None:
    partial = tmp_path / "x.partial"
    with pytest.raises(type(error)) as caught, atomic_write(tmp_path / "x", partial=partial):  # noqa: PT012
        partial.mkdir()
        raise error
    assert caught.value is error
    assert not partial.exists()


def test_room_is_told_of_places_that_are_not_there_yet(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        assert free_bytes(disk / "runs" / "a" / "hf") == 65_536
    assert free_bytes(Path("no/such/folder")) == pytest.approx(free_bytes(Path.cwd()), rel=0.1)


@pytest.mark.parametrize(
    ("size", "words"), [(900, "900 bytes"), (400_000, "400 kB"), (15_285_056_768, "15.3 GB"), (4 * 10**15, "4000 TB")]
)
def test_sizes_are_told_in_words(size: int, words: str) -> None:
    assert size_in_words(size) == words


# --- checkpoints, models, metrics -------------------------------------------------------------------------------------

STATES: Mapping[str, Callable[[], dict[str, Any]]] = {
    "one tensor": lambda: {"weight": torch.ones(100_000)},
    "many tensors": lambda: {"weights": [torch.ones(1000) for _ in range(100)]},  # torch's zip writer has the last word
}


@pytest.mark.parametrize("name", STATES)
def test_a_checkpoint_that_cannot_be_written_leaves_those_before_it_and_nothing_else(tmp_path: Path, name: str) -> None:
    save_checkpoint(tmp_path, step=4, state={"weight": torch.full((3,), 4.0)}, keep=1)
    with files_of_at_most(200_000), pytest.raises(StorageError, match=r"step_5 cannot .*File too large.* needs 400 kB"):
        save_checkpoint(tmp_path, step=5, state=STATES[name](), keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step_4"]
    loaded = load_latest(tmp_path, torch.device("cpu"))
    assert loaded is not None
    assert loaded.state["weight"].tolist() == [4.0] * 3


@pytest.mark.parametrize("name", STATES)
def test_a_full_disk_has_its_room_back_after_a_checkpoint_that_did_not_fit(tmp_path: Path, name: str) -> None:
    with small_disk(tmp_path / "disk", "200k") as disk:
        free = free_bytes(disk)
        with pytest.raises(StorageError, match=r"No space left on device.* needs 400 kB\. Free some space"):
            save_checkpoint(disk / "checkpoints", step=5, state=STATES[name](), keep=1)
        assert free_bytes(disk) == free


def test_what_a_killed_run_left_half_written_is_cleared_at_another_step_too(tmp_path: Path) -> None:
    (tmp_path / ".step_30.partial").mkdir()
    (tmp_path / ".step_30.partial" / "state.pt").write_bytes(b"half a fi")
    save_checkpoint(tmp_path, step=32, state={}, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step_32"]


def test_a_state_needs_the_room_of_its_tensors_each_once() -> None:
    tied = torch.zeros(10)
    state = {"a": tied, "b": tied.view(2, 5), "moments": [{0: (torch.zeros(3), torch.zeros(4).bfloat16())}], "n": 1}
    assert stored_bytes(state) == 40 + 12 + 8


@pytest.mark.parametrize("limit", [pytest.param(MODEL_TOO_LARGE, id="weights"), pytest.param(10_000, id="tokenizer")])
def test_a_model_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, tiny_model: LlamaForCausalLM, tokenizer: Any, limit: int
) -> None:
    """Weights and tokenizer are written by two libraries, and each has exceptions of its own."""
    export_model(tiny_model, tokenizer, tmp_path / "hf")
    if limit == 10_000:
        tiny_model = tiny_model.bfloat16()
        tiny_model.resize_token_embeddings(8)
        tiny_model.model.layers = tiny_model.model.layers[:0]
        assert stored_bytes(tiny_model.state_dict()) < limit
    with files_of_at_most(limit), pytest.raises(StorageError, match=r"hf cannot be written \(File too large\)"):
        export_model(tiny_model, tokenizer, tmp_path / "hf")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]
    assert load_file(tmp_path / "hf" / "model.safetensors").keys() > {"model.layers.0.mlp.up_proj.weight"}


def test_a_line_of_metrics_that_does_not_fit_is_told_and_written_when_there_is_room(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    tracker = JsonlTracker(file)
    tracker.log(1, {"reward/outcome": 0.5})
    with (
        files_of_at_most(file.stat().st_size + 10),
        pytest.raises(StorageError, match=r"metrics\.jsonl cannot be written"),
    ):
        tracker.log(2, {"reward/outcome": 0.6})
    assert [line["step"] for line in read_metrics(file)] == [1]
    tracker.close()
    assert [line["step"] for line in read_metrics(file)] == [1, 2]


def test_metrics_on_a_disk_that_stays_full_are_one_error(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.symlink_to("/dev/full")
    tracker = JsonlTracker(file)
    with pytest.raises(StorageError, match="No space left on device"):
        tracker.log(1, {"reward/outcome": 0.5})
    tracker.close()


# --- whole runs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path, model_folder: Path) -> list[str]:
    held_out = write_tasks(tmp_path / "held_out.jsonl", count=2)
    return tiny_overrides(tmp_path, model_folder, f"data.eval=[{held_out}]", "eval.before=false")


def missing_checkpoints(folder: Path) -> list[int]:
    return [line["step"] for line in read_metrics(folder / "metrics.jsonl") if "error/failed_checkpoints" in line]


@pytest.mark.whole
def test_a_run_trains_through_checkpoints_that_cannot_be_written_and_ends_with_its_model(
    run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], uninterrupted: Callable[..., Path]
) -> None:
    commands.train(*run, "trainer.steps=1", quiet=True, reward=score_variety)
    folder = tmp_path / "tiny"
    with files_of_at_most(CHECKPOINT_TOO_LARGE):
        summary = commands.train(*run, reward=score_variety)
    assert same_weights(uninterrupted(), folder)
    assert summary.success_after is not None
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step_1"]
    assert half_written(folder) == []
    assert missing_checkpoints(folder) == [2, 3, 4]
    said, written = capsys.readouterr().out, json.loads((folder / "summary.json").read_text())["warnings"]
    for step in (2, 3, 4):
        assert said.count(f"step_{step} cannot be written") == 1
        assert sum(f"step_{step} cannot be written" in warning for warning in written) == 1
    assert said.count("less room is needed with a smaller trainer.keep_checkpoints (it is 2)") == 3


@pytest.mark.whole
def test_a_run_resumes_from_the_checkpoint_before_one_that_could_not_be_written(
    run: list[str], tmp_path: Path, uninterrupted: Callable[..., Path]
) -> None:
    commands.train(*run, "trainer.steps=1", quiet=True, reward=score_variety)
    with files_of_at_most(CHECKPOINT_TOO_LARGE):
        commands.train(*run, "trainer.steps=3", quiet=True, reward=score_variety)
    commands.train(*run, quiet=True, reward=score_variety)
    folder = tmp_path / "tiny"
    assert [step for step, _ in list_checkpoints(folder / "checkpoints")] == [3, 4]
    assert missing_checkpoints(folder) == []
    assert [line["step"] for line in read_metrics(folder / "metrics.jsonl")] == [1, 1, 2, 3, 4, 4]
    assert same_weights(uninterrupted(), folder)


@pytest.mark.whole
def test_a_save_after_one_that_failed_is_tried_again(run: list[str], tmp_path: Path) -> None:
    """The limit is lifted while step 3 is rolled out."""
    scored: list[int] = []
    with files_of_at_most(CHECKPOINT_TOO_LARGE) as lift:

        def score_and_lift(task: Any, episode: Any) -> float:
            scored.append(1)
            if len(scored) > 2 * 8:
                lift()
            return score_variety(task, episode)

        commands.train(*run, quiet=True, reward=score_and_lift)
    assert [step for step, _ in list_checkpoints(tmp_path / "tiny" / "checkpoints")] == [3, 4]
    assert missing_checkpoints(tmp_path / "tiny") == [1, 2]


@pytest.mark.whole
def test_a_disk_that_fills_up_costs_checkpoints_and_not_the_model(
    run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Room for two checkpoints and the model. What will happen is said before the first step."""
    with small_disk(tmp_path / "disk", "1200k") as disk:
        summary = commands.train(*run, f"run.folder={disk}", "tracking.record_every=0", reward=score_variety)
        folder = disk / "tiny"
        assert [step for step, _ in list_checkpoints(folder / "checkpoints")] == [1, 2]
        assert missing_checkpoints(folder) == [3, 4]
        assert half_written(disk) == []
        assert (folder / "hf" / "model.safetensors").is_file()
        assert summary.steps == 4
        resumed = load_latest(folder / "checkpoints", torch.device("cpu"))
        assert resumed is not None
        assert resumed.step == 2
    said = capsys.readouterr().out
    assert said.index("the run will need 1.3 MB") < said.index("1.2 MB are free there") < said.index("step 1/4")
    assert said.count("No space left on device") == 2


@pytest.mark.whole
def test_a_model_that_cannot_be_written_is_one_clear_error_on_the_command_line(run: list[str], tmp_path: Path) -> None:
    with files_of_at_most(MODEL_TOO_LARGE):
        result = CliRunner().invoke(app, ["train", *run, "trainer.steps=2"])
    folder = tmp_path / "tiny"
    assert result.exit_code == 2
    assert result.output.count("error: ") == 1
    assert f"error: {folder / 'hf'} cannot be written (File too large)" in result.output
    assert "There is no checkpoint: the same command starts over" in result.output
    assert "Traceback" not in result.output
    assert half_written(folder) == []
    assert not (folder / "hf").exists()
    assert json.loads((folder / "summary.json").read_text())["model"] is None
    assert "eval/all/greedy" in read_metrics(folder / "metrics.jsonl")[-1]


@pytest.mark.whole
def test_a_run_whose_model_did_not_fit_writes_it_when_started_again(
    run: list[str], tmp_path: Path, uninterrupted: Callable[..., Path]
) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk:
        scored: list[int] = []

        def score_while_the_disk_fills(task: Any, episode: Any) -> float:
            """In the last step all but the room of the checkpoint goes, and so the model's."""
            scored.append(1)
            if len(scored) == 3 * 8 + 1:
                (disk / "other").write_bytes(b"x" * (free_bytes(disk) - 480_000))
            return score_variety(task, episode)

        on_disk = [*run, f"run.folder={disk}", "trainer.save_every=100", "tracking.record_every=0"]
        with pytest.raises(StorageError, match=r"hf cannot .* The last checkpoint is that of step 4: the same command"):
            commands.train(*on_disk, quiet=True, reward=score_while_the_disk_fills)
        assert half_written(disk) == []
        (disk / "other").unlink()
        scored.clear()
        assert commands.train(*on_disk, quiet=True, reward=score_while_the_disk_fills).steps == 4
        assert len(scored) == 2  # the evaluation: nothing was trained again
        assert same_weights(uninterrupted(), disk / "tiny")


@pytest.mark.whole
def test_metrics_that_cannot_be_written_stop_the_run_which_says_what_is_kept(run: list[str], tmp_path: Path) -> None:
    commands.train(*run, "trainer.steps=2", "data.eval=[]", quiet=True, reward=score_variety)
    size = (tmp_path / "tiny" / "metrics.jsonl").stat().st_size
    more = [*run, "data.eval=[]", "trainer.steps=40", "trainer.save_every=1000", "tracking.record_every=0"]
    with (
        files_of_at_most(3 * size),
        pytest.raises(
            StorageError,
            match=r"metrics\.jsonl cannot be written .* The last checkpoint is that of step 2: the same command",
        ),
    ):
        commands.train(*more, quiet=True, reward=score_variety)


@pytest.mark.whole
def test_a_run_that_stops_for_its_metrics_saves_what_it_learned_where_that_has_room(
    run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = JsonlTracker.log

    def full_for_a_moment(tracker: JsonlTracker, step: int, metrics: Mapping[str, float]) -> None:
        if step == 3:
            raise StorageError("metrics.jsonl cannot be written")
        whole(tracker, step, metrics)

    monkeypatch.setattr(JsonlTracker, "log", full_for_a_moment)
    with pytest.raises(StorageError, match=r"The last checkpoint is that of step 3"):
        commands.train(*run, "trainer.save_every=100", quiet=True, reward=score_variety)
    assert [step for step, _ in list_checkpoints(tmp_path / "tiny" / "checkpoints")] == [3]


def test_an_evaluation_whose_figures_cannot_be_written_is_one_clear_error(run: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    result = CliRunner().invoke(app, ["eval", *run, "--json", str(tmp_path / "file" / "figures.json")])
    assert result.exit_code == 2
    assert "greedy" in result.output
    assert "figures.json cannot be written" in result.output


# --- the room that a run will need ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["whole weights", "a critic", "adapters"])
def test_a_checkpoint_is_about_as_large_as_was_foreseen(
    tmp_path: Path, tiny_model: LlamaForCausalLM, form: str
) -> None:
    if form == "adapters":
        pytest.importorskip("peft")
        add_adapters(tiny_model, LoraConfig(rank=32), seed=0)
    learner = (
        make_learner(tiny_model, estimator=TOKEN_GAE, critic=Critic(tiny_model))
        if form == "a critic"
        else make_learner(tiny_model)
    )
    foreseen = learner.checkpoint_bytes()
    learner.learn_sync(experience_of(*random_group(tiny_model, 0, [1.0, 0.0])), step=0)
    place = save_checkpoint(tmp_path, step=1, state=learner.state_dict(), keep=1)
    assert (place / "state.pt").stat().st_size == pytest.approx(foreseen, rel=0.1)


@dataclass
class Known:
    """A learner of whom only the weights are known."""

    policy: nn.Module
    critic: nn.Module | None = None

    checkpoint_bytes = TorchLearner.checkpoint_bytes
    model_bytes = TorchLearner.model_bytes


def foreseen(folder: Path, num_weights: int, critic: int = 0, **trainer: int) -> str | None:
    """What is said about a model of so many weights, which nobody has to hold."""
    config = Config()
    for key, value in {"steps": 100, "save_every": 10, "keep_checkpoints": 2, **trainer}.items():
        setattr(config.trainer, key, value)
    sizes = [nn.Linear(size, 1, bias=False, device="meta") for size in (num_weights, critic) if size]
    learner: Any = Known(*sizes)
    return disk_space_warning(config, learner, RunFolder(folder))


def test_a_run_with_too_little_room_is_told_both_figures_and_the_keys(tmp_path: Path) -> None:
    said = foreseen(tmp_path, 10**15)
    assert said is not None
    assert f"need 40000 TB in {tmp_path} (3 x 12000 TB for checkpoints, 4000 TB for the model)" in said
    assert re.search(r"and [\d.]+ [kMGT]B are free there", said)
    assert "trainer.keep_checkpoints is 2" in said
    assert "trainer.save_every is 10" in said
    assert "\n" not in said


def test_a_run_without_checkpoints_needs_room_for_its_model_alone(tmp_path: Path) -> None:
    said = foreseen(tmp_path, 10**15, keep_checkpoints=0)
    assert said is not None
    assert f"the run will need 4000 TB in {tmp_path} for its model and " in said
    assert "for checkpoints" not in said


def test_a_run_with_enough_room_is_told_nothing(tmp_path: Path) -> None:
    assert foreseen(tmp_path, 1000) is None


@pytest.mark.parametrize(
    ("there", "trainer", "more"),
    [
        ([], {}, 3),
        ([], {"keep_checkpoints": 1}, 2),
        ([], {"save_every": 1000}, 1),
        ([], {"save_every": 60}, 2),
        ([10, 20], {}, 1),
        ([90, 100], {}, 0),
    ],
)
def test_as_many_checkpoints_are_foreseen_as_will_be_there_at_once(
    tmp_path: Path, there: list[int], trainer: dict[str, int], more: int
) -> None:
    for step in there:
        save_checkpoint(tmp_path / "checkpoints", step=step, state={}, keep=9)
    said = foreseen(tmp_path, 10**15, **trainer)
    assert said is not None
    assert f"({more} x 12000 TB for checkpoints" in said


def test_a_critic_of_its_own_counts(tmp_path: Path) -> None:
    assert "3 x 24000 TB" in (foreseen(tmp_path, 10**15, critic=10**15) or "")
