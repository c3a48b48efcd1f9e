"""Resuming: what differs is said, what has changed is noticed, and what does not fit is one clear error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaForCausalLM
from typer.testing import CliRunner

from agent_r1.cli import app
from agent_r1.config import Config, config_differences
from agent_r1.errors import AgentR1Error, CheckpointError, ConfigError, DataError
from agent_r1.runs import fingerprints, read_runs
from agent_r1.runs.checkpoints import list_checkpoints, seal_state
from agent_r1.runs.fingerprints import fingerprint, model_fingerprints
from agent_r1.runs.tracking import read_metrics
from tests.conftest import tiny_config
from tests.helpers import commands
from tests.helpers.tiny_runs import tiny_overrides
from tests.integration.test_runs import same_weights, score_variety

pytestmark = pytest.mark.whole


@pytest.fixture
def run(tmp_path: Path, model_folder: Path) -> list[str]:
    return tiny_overrides(tmp_path, model_folder)


def train(*run: str, **parts: Any) -> Any:
    return commands.train(*run, reward=score_variety, **parts)


def part_of(run: list[str], steps: int = 2) -> None:
    """A run that stopped early, as if it had been killed."""
    train(*run, f"trainer.steps={steps}", quiet=True)
    (Path(run[1].removeprefix("run.folder=")) / "tiny" / "summary.json").unlink()


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# --- another configuration --------------------------------------------------------------------------------------------


def test_differences_are_told_key_by_key_old_before_new() -> None:
    old, new = Config(), Config()
    new.optimizer.learning_rate = 0.5
    new.env = {"name": "tool", "tools": ["price"]}
    new.model.path = "other"
    told = config_differences(old, new)
    assert "env.tools: (not set) -> ['price']" in told
    assert f"model.path: {old.model.path} -> other" in told
    assert f"optimizer.learning_rate: {old.optimizer.learning_rate} -> 0.5" in told
    assert len(told) == 3
    assert config_differences(new, new) == []


def test_another_configuration_says_what_differs_and_where_the_old_run_goes(
    run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part_of(run)
    train(*run, "optimizer.learning_rate=0.001", "rollout.group_size=3")
    told = capsys.readouterr().out
    assert "a checkpoint of step 2 that differs from this one" in told
    assert re.search(r"- optimizer\.learning_rate: \S+ -> 0\.001", told)
    assert "- rollout.group_size: 4 -> 3" in told
    assert f"It is moved to {tmp_path / 'tiny.1'}, and a new run starts" in told
    assert "run.resume=must" in told
    assert [step for step, _ in list_checkpoints(tmp_path / "tiny.1" / "checkpoints")] == [1, 2]


def test_a_dry_run_says_what_would_happen_and_moves_nothing(run: list[str], tmp_path: Path) -> None:
    part_of(run)
    result = CliRunner().invoke(app, ["train", *run, "rollout.group_size=3", "--dry-run"])
    assert "rollout.group_size: 4 -> 3" in result.output
    assert not (tmp_path / "tiny.1").exists()


def test_a_device_that_is_not_here_moves_no_finished_run(
    run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    part_of(run)
    with pytest.raises(ConfigError, match="there is no device cuda"):
        train(*run, "run.resume=never", "trainer.device=cuda")
    assert not (tmp_path / "tiny.1").exists()


def test_must_says_what_differs_and_resumes(run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part_of(run)
    train(*run, "optimizer.learning_rate=0.001", "run.resume=must")
    told = capsys.readouterr().out
    assert "with another configuration" in told
    assert "-> 0.001" in told
    assert "resuming from step 2" in told
    assert not (tmp_path / "tiny.1").exists()


# --- other data, another model ----------------------------------------------------------------------------------------


def other_rows(tmp_path: Path, model: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(file.read_text().replace("egg", "tea", 1))


def other_weights(tmp_path: Path, model: Path) -> None:
    file = model / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def other_template(tmp_path: Path, model: Path) -> None:
    (model / "generation_config.json").write_text('{"temperature": 0.5, "do_sample": true}')


@pytest.fixture
def own_model(run: list[str], tmp_path: Path, model_folder: Path) -> list[str]:
    """The run with a model of its own, which may change."""
    (tmp_path / "model").mkdir()
    for file in model_folder.iterdir():
        (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
    return [*run, f"model.path={tmp_path}/model"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (other_rows, r"data\.train .*tasks\.jsonl: \d+ bytes -> \d+ bytes, other content"),
        (other_weights, r"model\.path .*model\.safetensors: .*other content"),
        (other_template, r"model\.path .*generation_config\.json: .*other content"),
    ],
)
def test_changed_data_or_model_under_the_same_path_begins_a_new_run_and_is_said(
    own_model: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Path, Path], None],
    named: str,
) -> None:
    part_of(own_model)
    change(tmp_path, tmp_path / "model")
    with pytest.raises(CheckpointError, match=rf"(?s)run\.resume=must, but data or model .*{named}.*Restore it"):
        train(*own_model, "run.resume=must", quiet=True)
    train(*own_model)
    assert re.search(named, capsys.readouterr().out)
    assert (tmp_path / "tiny.1" / "checkpoints").is_dir()


def test_a_copy_of_the_data_and_the_model_is_the_same(own_model: list[str], tmp_path: Path) -> None:
    part_of(own_model)
    for file in (tmp_path / "tasks.jsonl", *(tmp_path / "model").iterdir()):
        content = file.read_bytes()
        file.unlink()
        file.write_bytes(content)
    train(*own_model, quiet=True)
    assert not (tmp_path / "tiny.1").exists()


def test_a_run_without_fingerprints_resumes_and_gets_them(run: list[str], tmp_path: Path) -> None:
    part_of(run)
    (tmp_path / "tiny" / "fingerprints.json").unlink()
    train(*run, quiet=True)
    assert not (tmp_path / "tiny.1").exists()
    assert (tmp_path / "tiny" / "fingerprints.json").is_file()


def test_a_changed_model_makes_another_warm_start(own_model: list[str], tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "2 egg?"}, {"role": "assistant", "content": "6"}]}
    (tmp_path / "demonstrations.jsonl").write_text(json.dumps(row) + "\n")
    warm = [f"sft.folder={tmp_path}/warm", f"sft.data=[{tmp_path}/demonstrations.jsonl]", "sft.steps=1"]
    commands.sft(*own_model, *warm, quiet=True)
    commands.sft(*own_model, *warm, quiet=True)
    assert not (tmp_path / "warm.1").exists()
    other_weights(tmp_path, tmp_path / "model")
    commands.sft(*own_model, *warm, quiet=True)
    assert (tmp_path / "warm.1").is_dir()


@given(size=st.integers(0, 400), place=st.floats(0, 0.999), seed=st.integers(0, 2**16))
def test_a_change_of_a_small_file_changes_its_fingerprint(
    tmp_path_factory: pytest.TempPathFactory, size: int, place: float, seed: int
) -> None:
    file = tmp_path_factory.mktemp("f") / "file"
    content = bytearray((seed * index) % 251 for index in range(size))
    file.write_bytes(content)
    before = fingerprint(file)
    assert fingerprint(file) == before
    changed = content + b"x"
    if size:
        changed = bytearray(content)
        changed[int(place * size)] ^= 1
    file.write_bytes(changed)
    assert fingerprint(file) != before


def test_of_a_large_file_length_ends_and_blocks_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprints, "_WHOLE_BYTES", 1000)
    monkeypatch.setattr(fingerprints, "_BLOCK_BYTES", 10)
    file = tmp_path / "weights"
    content = bytes(range(256)) * 40
    seen = set()
    for changed in (content, b"x" + content[1:], content[:-1] + b"x", content + b"x", bytes(len(content))):
        file.write_bytes(changed)
        seen.add(fingerprint(file))
    assert len(seen) == 5


def test_a_model_that_is_neither_folder_nor_cached_has_no_fingerprint() -> None:
    assert model_fingerprints("nobody/has-such-a-model") == {}
    assert model_fingerprints("no hub name at all//") == {}


# --- what does not fit, and what cannot be read -----------------------------------------------------------------------


def empty_summary(folder: Path) -> None:
    (folder / "summary.json").write_text("")


def summary_without_steps(folder: Path) -> None:
    (folder / "summary.json").write_text('{"steps": "many"}')


def metrics_not_utf8(folder: Path) -> None:
    content = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(b"\xff\xfe" + content)


def metrics_nested_too_deeply(folder: Path) -> None:
    content = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(b"[" * 100_000 + b"\n" + content)


def metrics_without_steps(folder: Path) -> None:
    content = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(b"{}\n" + content)


def all_corrupt(folder: Path) -> None:
    for path in (folder / "checkpoints").iterdir():
        (path / "state.pt").write_bytes(b"")


def foreign_checkpoint(folder: Path) -> None:
    newest = list_checkpoints(folder / "checkpoints")[-1][1]
    torch.save({"weights": torch.ones(1)}, newest / "state.pt")
    seal_state(newest)


def checkpoint_without_collector(folder: Path) -> None:
    """As versions before overlapping rollouts wrote it."""
    newest = list_checkpoints(folder / "checkpoints")[-1][1]
    state = torch.load(newest / "state.pt", weights_only=True)
    del state["collector"]
    torch.save(state, newest / "state.pt")
    (newest / "state.json").unlink()


@pytest.mark.parametrize("mode", ["auto", "must"])
@pytest.mark.parametrize(
    ("damage", "kind", "words"),
    [
        (empty_summary, CheckpointError, ["summary.json is not the summary of a run", "delete it"]),
        (summary_without_steps, CheckpointError, ["summary.json is not the summary of a run"]),
        (metrics_not_utf8, DataError, ["line 1 of", "metrics.jsonl", "UTF-8"]),
        (metrics_nested_too_deeply, DataError, ["line 1 of", "metrics.jsonl"]),
        (metrics_without_steps, DataError, ["line 1 of", "metrics.jsonl", "with a step"]),
        (all_corrupt, CheckpointError, ["every checkpoint is damaged", "step_2", "run.resume=never"]),
        (foreign_checkpoint, CheckpointError, ["is not the checkpoint of a run"]),
        (checkpoint_without_collector, CheckpointError, ["of this version: it lacks collector", "run.resume=never"]),
    ],
)
def test_what_cannot_be_read_is_one_clear_line_and_nothing_is_changed(
    run: list[str],
    tmp_path: Path,
    mode: str,
    damage: Callable[[Path], None],
    kind: type[AgentR1Error],
    words: list[str],
) -> None:
    part_of(run)
    damage(tmp_path / "tiny")
    before = everything(tmp_path)
    with pytest.raises(kind) as caught:
        train(*run, f"run.resume={mode}", quiet=True)
    told = str(caught.value)
    assert all(word in told for word in words)
    assert "\n" not in told
    assert everything(tmp_path) == before


def test_must_with_an_algorithm_that_has_a_critic_more_or_less_is_one_clear_line(
    run: list[str], tmp_path: Path
) -> None:
    part_of(run)
    before = everything(tmp_path)
    with pytest.raises(CheckpointError, match=r"written with another algorithm or version: .*lacks critic") as caught:
        train(*run, "algorithm=ppo", "run.resume=must", quiet=True)
    assert "\n" not in str(caught.value)
    assert everything(tmp_path) == before


def test_must_with_a_model_of_another_shape_is_one_clear_line(run: list[str], tmp_path: Path, tokenizer: Any) -> None:
    part_of(run)
    shape = tiny_config(tokenizer)
    shape.hidden_size = 64
    LlamaForCausalLM(shape).save_pretrained(tmp_path / "wide")
    tokenizer.save_pretrained(tmp_path / "wide")
    before = everything(tmp_path / "tiny")
    with pytest.raises(CheckpointError, match="is of another shape than this run's model") as caught:
        train(*run, f"model.path={tmp_path}/wide", "run.resume=must", quiet=True)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert everything(tmp_path / "tiny") == before


def test_a_corrupt_newest_checkpoint_resumes_from_the_one_before_bit_for_bit(
    run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*run, "run.name=whole", quiet=True)
    part_of(run, steps=3)
    newest = tmp_path / "tiny" / "checkpoints" / "step_3" / "state.pt"
    newest.write_bytes(newest.read_bytes()[:-100])
    train(*run)
    told = capsys.readouterr().out
    assert "step_3 is damaged" in told
    assert "resumes from step 2" in told
    assert same_weights(tmp_path / "whole", tmp_path / "tiny")
    assert [line["step"] for line in read_metrics(tmp_path / "tiny" / "metrics.jsonl")] == [1, 2, 3, 4]
    assert (tmp_path / "tiny" / "checkpoints" / "step_3.corrupt").is_dir()


# --- metrics ----------------------------------------------------------------------------------------------------------


@given(lines=st.integers(0, 4), cut=st.binary(min_size=1, max_size=20))
def test_only_a_last_line_may_be_cut(tmp_path_factory: pytest.TempPathFactory, lines: int, cut: bytes) -> None:
    file = tmp_path_factory.mktemp("m") / "metrics.jsonl"
    whole = b"".join(b'{"step": %d}\n' % step for step in range(lines))
    cut = cut.replace(b"\n", b"x") if cut.strip() else b"x"
    file.write_bytes(whole + cut)
    assert [line["step"] for line in read_metrics(file)] == list(range(lines))
    file.write_bytes(cut + b'\n{"step": 7}\n')
    with pytest.raises(DataError, match="line 1 of"):
        read_metrics(file)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff"])
def test_a_report_of_a_run_with_a_broken_summary_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    (tmp_path / "summary.json").write_bytes(content)
    with pytest.raises(DataError, match=r"summary\.json is not"):
        read_runs([tmp_path])
