"""Warm starts: as a run of their own, and as what a recipe's runs start from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_r1.config import from_yaml, load_config
from agent_r1.console import RunConsole
from agent_r1.errors import CheckpointError, ConfigError, DataError
from agent_r1.models import checkpoint_layers
from agent_r1.registry import recipe_folder
from agent_r1.runs import checksum
from agent_r1.training.sft import ensure_warm_start
from tests.helpers import commands
from tests.helpers.hand_made import token_variety
from tests.helpers.tiny_runs import RECIPE, tiny_overrides, write_tasks


@pytest.fixture
def recipe(tmp_path: Path, model_folder: Path) -> list[str]:
    """A run that starts from a warm start."""
    row = {"messages": [{"role": "user", "content": "What do 2 egg cost?"}, {"role": "assistant", "content": "6"}]}
    (tmp_path / "demonstrations.jsonl").write_text(json.dumps(row) + "\n")
    return tiny_overrides(
        tmp_path,
        model_folder,
        f"sft.folder={tmp_path}/warm",
        f"sft.data=[{tmp_path}/demonstrations.jsonl]",
        "sft.steps=4",
        "sft.learning_rate=0.01",
        "trainer.steps=1",
        "optimizer.learning_rate=1e-9",
    )


def weights_of(folder: Path) -> torch.Tensor:
    policy = AutoModelForCausalLM.from_pretrained(folder)
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])


@pytest.mark.whole
def test_a_run_starts_from_the_warm_start_that_it_makes(recipe: list[str], tmp_path: Path, model_folder: Path) -> None:
    commands.train(*recipe, quiet=True, reward=token_variety)
    warm = weights_of(tmp_path / "warm" / "hf")
    assert (weights_of(model_folder) - warm).abs().max() > 1e-3
    torch.testing.assert_close(weights_of(tmp_path / "tiny" / "hf"), warm, atol=1e-6, rtol=0)
    used = from_yaml((tmp_path / "tiny" / "config.yaml").read_text())
    assert (used.model.path, used.sft.folder) == (str(tmp_path / "warm" / "hf"), None)


@pytest.mark.whole
def test_all_runs_of_a_recipe_share_one_warm_start(recipe: list[str], tmp_path: Path) -> None:
    made = commands.sft(*recipe, quiet=True)
    assert made == tmp_path / "warm" / "hf"
    written = (made / "model.safetensors").stat().st_mtime_ns
    others = ["trainer.seed=7", "algorithm=ppo", "optimizer.weight_decay=0.1", "run.name=other"]
    commands.train(*recipe, *others, quiet=True, reward=token_variety)
    assert commands.sft(*recipe, quiet=True) == made
    assert (made / "model.safetensors").stat().st_mtime_ns == written


@pytest.mark.whole
@pytest.mark.parametrize("change", ["sft.steps=5", "model.tool_format=llama3"])
def test_a_warm_start_made_otherwise_is_moved_aside_and_made_anew(
    recipe: list[str], tmp_path: Path, change: str
) -> None:
    made = commands.sft(*recipe, quiet=True)
    written = (made / "model.safetensors").stat().st_mtime_ns
    assert commands.sft(*recipe, change, quiet=True) == made
    assert (tmp_path / "warm.1" / "hf" / "model.safetensors").stat().st_mtime_ns == written
    assert (made / "model.safetensors").stat().st_mtime_ns != written


@pytest.mark.parametrize("name", ["config.yaml", "demonstrations.sha256"])
def test_a_warm_start_whose_files_are_no_text_is_made_anew(recipe: list[str], tmp_path: Path, name: str) -> None:
    made = commands.sft(*recipe, quiet=True)
    (tmp_path / "warm" / name).write_bytes(b"\xff\xfe")
    assert commands.sft(*recipe, quiet=True) == made
    assert (tmp_path / "warm.1" / name).read_bytes() == b"\xff\xfe"
    assert (tmp_path / "warm" / name).read_text()


def test_a_warm_start_that_was_interrupted_is_made_anew(recipe: list[str], tmp_path: Path) -> None:
    (tmp_path / "warm").mkdir()
    (tmp_path / "warm" / "metrics.jsonl").write_text('{"step": 1, "loss/sft": 3.0}\n')
    made = commands.sft(*recipe, quiet=True)
    assert (made / "model.safetensors").is_file()


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1000])


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1000] ^= 1
    file.write_bytes(content)


DAMAGES = [
    pytest.param(cut_short, r"hf/model\.safetensors has [\d,]+ bytes, and [\d,]+ were written", id="cut short"),
    pytest.param(flip_a_bit, r"the checksum of hf/model\.safetensors is wrong", id="one bit"),
    pytest.param(Path.unlink, r"hf/model\.safetensors is missing", id="missing"),
]


@pytest.mark.parametrize(("damage", "told"), DAMAGES)
def test_a_damaged_warm_start_is_moved_aside_and_made_again(
    recipe: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None], told: str
) -> None:
    weights = commands.sft(*recipe, quiet=True) / "model.safetensors"
    whole = weights.read_bytes()
    damage(weights)
    commands.sft(*recipe, quiet=True)
    assert weights.read_bytes() == whole
    assert (tmp_path / "warm.1" / "hf").is_dir()
    assert re.search(rf"warm is damaged \({told}; to use files that you changed yourself, delete hf\.json", caplog.text)
    commands.sft(*recipe, quiet=True)
    assert not (tmp_path / "warm.2").exists()


@pytest.mark.parametrize(("damage", "told"), DAMAGES)
def test_a_damaged_warm_start_that_a_run_names_is_one_clear_error(
    recipe: list[str], tmp_path: Path, damage: Callable[[Path], None], told: str
) -> None:
    made = commands.sft(*recipe, "sft.folder=null", "run.name=warm", quiet=True)
    damage(made / "model.safetensors")
    run = [*recipe, "sft.folder=null", f"model.path={made}"]
    advice = rf"Restore it, or delete {made.parent} and make it again with agent-r1 sft; .* delete {made}\.json"
    with pytest.raises(CheckpointError, match=rf"the warm start {made} is damaged: {told}\. {advice}") as caught:
        commands.train(*run, "model.prepare=null", quiet=True)
    assert "\n" not in str(caught.value)
    with pytest.raises(CheckpointError, match=rf"delete {made.parent} and run the same command again; "):
        commands.evaluate(*run, "model.prepare=recipes.quickstart.shop:prepare_model", quiet=True)
    assert not (tmp_path / "tiny").exists()


@pytest.mark.parametrize("name", ["generation_config.json", "tokenizer_config.json"])
def test_a_warm_start_changed_on_purpose_is_used_without_its_checksums(
    recipe: list[str], tmp_path: Path, name: str
) -> None:
    file = commands.sft(*recipe, quiet=True) / name
    changed = file.read_text() + "\n"
    file.write_text(changed)
    (tmp_path / "warm" / "hf.json").unlink()
    commands.sft(*recipe, quiet=True)
    assert file.read_text() == changed


@pytest.mark.parametrize("content", [b"", b"[]", b'{"config.json": 1}', b"\xff"])
def test_a_warm_start_whose_checksums_cannot_be_read_is_made_again(
    recipe: list[str], tmp_path: Path, content: bytes
) -> None:
    commands.sft(*recipe, quiet=True)
    (tmp_path / "warm" / "hf.json").write_bytes(content)
    commands.sft(*recipe, quiet=True)
    assert (tmp_path / "warm.1" / "hf.json").read_bytes() == content


def test_the_files_of_a_warm_start_are_read_once_when_a_run_starts(
    recipe: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = commands.sft(*recipe, quiet=True)
    read: list[str] = []

    def counted(file: Path) -> list[int]:
        read.append(file.name)
        return checksum(file)

    monkeypatch.setattr("agent_r1.runs.checkpoints.checksum", counted)
    commands.train(*recipe, quiet=True, reward=token_variety)
    assert sorted(read) == sorted(file.name for file in made.iterdir())


@pytest.mark.whole
def test_a_warm_start_recomputes_activations_where_the_run_does(
    recipe: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = weights_of(commands.sft(*recipe, quiet=True))
    recomputed: list[object] = []
    monkeypatch.setattr("agent_r1.learner.models.checkpoint_layers", _counted(checkpoint_layers, recomputed))
    made = commands.sft(*recipe, f"sft.folder={tmp_path}/frugal", "trainer.gradient_checkpointing=true", quiet=True)
    assert len(recomputed) == 1
    torch.testing.assert_close(weights_of(made), plain, atol=1e-6, rtol=0)


def test_a_warm_start_warns_of_tags_that_it_cannot_teach(
    recipe: list[str], tmp_path: Path, model_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    untrained = tmp_path / "untrained"
    model, tokenizer = (kind.from_pretrained(model_folder) for kind in (AutoModelForCausalLM, AutoTokenizer))
    head = model.get_output_embeddings().weight.data
    head[tokenizer.pad_token_id] = head[tokenizer.eos_token_id]
    model.save_pretrained(untrained)
    tokenizer.save_pretrained(untrained)
    commands.sft(*recipe, f"model.path={untrained}", "sft.learning_rate=1e-5", quiet=True)
    assert "This warm start may be too small to teach" in caplog.text
    caplog.clear()
    commands.sft(*recipe, f"model.path={untrained}", quiet=True)
    assert "too small" not in caplog.text


def test_a_warm_start_of_random_weights_at_the_rate_of_a_pretrained_model_is_warned_of(
    recipe: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Before its second step, with settings that fit: those of a recipe are for a pretrained model and a GPU."""
    commands.sft(*recipe, "sft.learning_rate=1e-4")
    said = capsys.readouterr().out
    warning = next(line for line in said.splitlines() if "has random weights" in line)
    assert said.index(warning) < said.index("warm start: step 1/4")
    assert "sft.learning_rate=0.0001, 4 steps of" in warning
    settings = [word for word in warning.split() if re.fullmatch(r"sft\.\w+=[\de-]+", word)]
    assert load_config(None, [*settings, "model.path=any"]).sft.learning_rate == 3e-3


def test_a_warm_start_is_not_warned_of_random_weights_without_cause(
    recipe: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A rate for random weights, and a model that has learned."""
    warm = commands.sft(*recipe, "sft.learning_rate=3e-3", "sft.steps=20")
    changes = (f"model.path={warm}", "sft.learning_rate=1e-4", "sft.steps=1", "sft.folder=null", "run.name=again")
    commands.sft(*recipe, *changes)
    said = capsys.readouterr().out
    assert "warm start: step 1/1" in said
    assert "random weights" not in said


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # compilers warn among themselves
def test_compiled_layers_are_tuned_as_plain_ones_are(recipe: list[str], tmp_path: Path) -> None:
    plain = weights_of(commands.sft(*recipe, quiet=True))
    made = commands.sft(*recipe, f"sft.folder={tmp_path}/compiled", "trainer.compile=true", quiet=True)
    torch.testing.assert_close(weights_of(made), plain, atol=1e-4, rtol=0)


def _counted(function: Callable[[torch.nn.Module], None], calls: list[object]) -> Callable[[torch.nn.Module], None]:
    def counting(model: torch.nn.Module) -> None:
        calls.append(model)
        function(model)

    return counting


@pytest.mark.whole
def test_a_model_that_is_given_is_evaluated_as_it_is(recipe: list[str], tmp_path: Path, model_folder: Path) -> None:
    commands.evaluate(*recipe, model=model_folder, quiet=True)
    assert not (tmp_path / "warm").exists()
    commands.evaluate(*recipe, quiet=True)
    assert (tmp_path / "warm" / "hf").is_dir()


def test_demonstrations_that_are_missing_are_named(recipe: list[str], tmp_path: Path) -> None:
    (tmp_path / "demonstrations.jsonl").unlink()
    with pytest.raises(DataError, match=r"there is no data file .*demonstrations\.jsonl"):
        commands.train(*recipe, "data.prepare=null", quiet=True)


def test_demonstrations_that_are_missing_are_prepared_as_the_rows_are(
    recipe: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    written = (tmp_path / "demonstrations.jsonl").read_text()
    (tmp_path / "demonstrations.jsonl").unlink()
    (tmp_path / "demonstrations_of_a_test.py").write_text(
        f"from pathlib import Path\n\n\ndef make(config):\n    Path(config.sft.data[0]).write_text({written!r})\n"
    )
    commands.sft(*recipe, "data.prepare=demonstrations_of_a_test:make", quiet=True)
    assert (tmp_path / "warm" / "hf").is_dir()


def test_a_check_without_trials_warm_starts_nothing(recipe: list[str], tmp_path: Path) -> None:
    report = commands.check(*recipe, trials=False, quiet=True)
    assert not report.problems
    assert not (tmp_path / "warm").exists()
    commands.check(*recipe, groups=1, members=1, quiet=True)
    assert (tmp_path / "warm" / "hf").is_dir()


def test_the_model_path_of_an_evaluation_is_evaluated_as_it_is(tmp_path: Path, model_folder: Path) -> None:
    tasks = write_tasks(tmp_path / "tasks.jsonl")
    (tmp_path / "base.yaml").write_text(
        "defaults: [agent_r1, algorithm: grpo, _self_]\n"
        f"model: {{path: {tmp_path}/own}}\n"
        f"data: {{train: [{tasks}], agent_name: single_step}}\n"
        f"sft: {{folder: {tmp_path}/warm, data: [{tasks}]}}\n"
        "rollout: {max_tokens: 8}\n"
    )
    commands.evaluate(str(tmp_path), f"model.path={model_folder}", "eval.max_tasks=1", quiet=True)
    assert not (tmp_path / "warm").exists()


def test_runs_that_start_together_make_one_warm_start(recipe: list[str], tmp_path: Path) -> None:
    config = load_config(RECIPE, recipe[1:])
    with recipe_folder(RECIPE), ThreadPoolExecutor() as together:
        contexts = [copy_context() for _ in range(2)]
        made = [together.submit(one.run, ensure_warm_start, config, RunConsole(quiet=True)) for one in contexts]
    assert [one.result().model.path for one in made] == [str(tmp_path / "warm" / "hf")] * 2
    assert not (tmp_path / "warm.1").exists()
    assert len((tmp_path / "warm" / "metrics.jsonl").read_text().splitlines()) == 4


@pytest.mark.whole
def test_other_demonstrations_in_the_same_file_make_another_warm_start(recipe: list[str], tmp_path: Path) -> None:
    commands.sft(*recipe, quiet=True)
    file = tmp_path / "demonstrations.jsonl"
    file.write_text(file.read_text().replace("2 egg", "3 egg"))
    commands.sft(*recipe, quiet=True)
    assert (tmp_path / "warm.1").is_dir()


@pytest.mark.whole
def test_a_warm_start_does_not_write_into_a_run(recipe: list[str], tmp_path: Path) -> None:
    commands.train(*recipe, "trainer.steps=2", "sft.folder=null", quiet=True, reward=token_variety)
    (tmp_path / "tiny" / "summary.json").unlink()  # as if it had been killed
    commands.sft(*recipe, "trainer.steps=2", "sft.folder=null", quiet=True)
    assert (tmp_path / "tiny.1" / "checkpoints").is_dir()
    assert not (tmp_path / "tiny" / "checkpoints").exists()


def test_a_warm_start_without_demonstrations_is_refused_before_anything_is_made(recipe: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"sft\.folder is set and sft\.data is empty"):
        commands.train(*recipe, "sft.data=[]", quiet=True)
