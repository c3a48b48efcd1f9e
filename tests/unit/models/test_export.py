"""Exports: what is written, what rounding cost, and that a failed one costs a run nothing else."""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaForCausalLM
from typer.testing import CliRunner

from agent_r1.chat.tokenizer import load_renderer
from agent_r1.cli import app
from agent_r1.config import Config, LoraConfig, ModelConfig
from agent_r1.errors import DivergenceError, ExportError, StorageError, raising
from agent_r1.learner.weight_growth import LARGEST_GROWTH, WeightGrowth
from agent_r1.models import export as models
from agent_r1.models.export import export_dtype, export_model, export_policy
from agent_r1.models.lora import add_adapters, merged_weights
from agent_r1.models.precision import train_in_float32
from agent_r1.types import SamplingParams
from tests.helpers import commands
from tests.helpers.hand_made import sharpened, token_variety
from tests.helpers.tiny_runs import tiny_overrides, write_tasks

FOREIGN: dict[str, dict[str, Any]] = {
    "a temperature without sampling": {"temperature": 0.6, "top_p": 0.9, "top_k": 20},
    "penalties": {"do_sample": True, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "max_new_tokens": 2048},
    "beams without beams": {"num_beams": 1, "early_stopping": True, "length_penalty": 2.0},
}


def with_generation(folder: Path, to: Path, settings: dict[str, Any]) -> Path:
    shutil.copytree(folder, to)
    written = json.loads((folder / "generation_config.json").read_text())
    (to / "generation_config.json").write_text(json.dumps(written | settings))
    return to


@pytest.fixture
def run(tmp_path: Path, model_folder: Path) -> Callable[..., list[str]]:
    """The overrides of a run with an evaluation at its end."""

    def overrides(*extra: str, model: Path = model_folder) -> list[str]:
        held_out = write_tasks(tmp_path / "held_out.jsonl", count=2)
        evaluated = [f"data.eval=[{held_out}]", "eval.before=false", "trainer.steps=1"]
        return tiny_overrides(tmp_path, model, *evaluated, *extra)

    return overrides


def summary_of(folder: Path) -> dict[str, Any]:
    written: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return written


# --- generation -------------------------------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize("kind", FOREIGN)
def test_a_run_from_a_foreign_generation_config_exports_how_it_was_trained(
    kind: str, run: Callable[..., list[str]], tmp_path: Path, model_folder: Path
) -> None:
    model = with_generation(model_folder, tmp_path / "model", FOREIGN[kind] | {"eos_token_id": [2, 3]})
    summary = commands.train(*run("rollout.temperature=0.8", "rollout.top_k=40", model=model), quiet=True)
    assert summary.success_after is not None
    assert summary.model == str(tmp_path / "tiny" / "hf")
    exported = GenerationConfig.from_pretrained(summary.model)
    assert (exported.do_sample, exported.temperature, exported.top_k, exported.top_p) == (True, 0.8, 40, 1.0)
    assert exported.repetition_penalty in (None, 1.0)
    assert exported.no_repeat_ngram_size in (None, 0)
    assert exported.max_new_tokens is None
    assert exported.eos_token_id == [2, 3]
    assert {2, 3} <= set(load_renderer(summary.model).stop_ids)


def test_generation_settings_in_a_models_configuration_do_not_stop_its_export(
    tiny_model: LlamaForCausalLM, tokenizer: Any, tmp_path: Path
) -> None:
    tiny_model.config.repetition_penalty = 1.3
    tiny_model.config.temperature = 0.5
    export_model(tiny_model, tokenizer, tmp_path / "hf", sampling=SamplingParams(temperature=1.0))
    assert not json.loads((tmp_path / "hf" / "config.json").read_text()).get("repetition_penalty")
    assert GenerationConfig.from_pretrained(tmp_path / "hf").temperature == 1.0


# --- types ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def bfloat16_folder(tokenizer: Any, tiny_model: LlamaForCausalLM, tmp_path: Path) -> Path:
    export_model(sharpened(tiny_model), tokenizer, tmp_path / "base", dtype=torch.bfloat16)
    return tmp_path / "base"


@pytest.mark.parametrize(
    ("stored", "chosen", "exported"),
    [
        (torch.float32, "float32", torch.float32),
        (torch.float32, "bfloat16", torch.float32),
        (torch.bfloat16, "float32", torch.float32),
        (torch.bfloat16, "bfloat16", torch.bfloat16),
        (torch.float16, "bfloat16", torch.float32),
    ],
    ids=str,
)
def test_an_export_is_never_coarser_than_its_base_model(
    tokenizer: Any,
    tiny_model: LlamaForCausalLM,
    tmp_path: Path,
    stored: torch.dtype,
    chosen: str,
    exported: torch.dtype,
) -> None:
    export_model(tiny_model, tokenizer, tmp_path / "base", dtype=stored)
    assert export_dtype(Config(model=ModelConfig(path=str(tmp_path / "base"), dtype=chosen))) == exported
    shutil.rmtree(tmp_path / "base")
    assert export_dtype(Config(model=ModelConfig(path=str(tmp_path / "base"), dtype=chosen))) == getattr(torch, chosen)


def test_a_folder_says_the_type_it_is_written_in_and_keeps_weights_tied(
    tiny_model: LlamaForCausalLM, tokenizer: Any, tmp_path: Path
) -> None:
    export_model(tiny_model, tokenizer, tmp_path / "hf", dtype=torch.bfloat16)
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert "lm_head.weight" not in tensors
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["dtype"] == "bfloat16"
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype="auto")
    assert loaded.dtype == torch.bfloat16
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert tiny_model.dtype == torch.float32


def test_others_may_read_the_weights_if_they_may_read_the_configuration(
    tiny_model: LlamaForCausalLM, tokenizer: Any, tmp_path: Path
) -> None:
    export_model(tiny_model, tokenizer, tmp_path / "hf")
    modes = {file.stat().st_mode for file in (tmp_path / "hf").iterdir()}
    assert modes == {(tmp_path / "hf" / "config.json").stat().st_mode}


def moved_policy(folder: Path, step: float, *, lora: bool) -> nn.Module:
    """What training made of a model: every weight, or what its adapters add up to, moved by about `step`."""
    policy: nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    if lora:
        add_adapters(policy, LoraConfig(rank=4, alpha=4.0), seed=0)
    train_in_float32(policy)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if parameter.requires_grad and "lora_A" not in name:
                parameter.add_(step * torch.randn_like(parameter))
    return policy


@pytest.mark.whole
@pytest.mark.parametrize("lora", [False, True], ids=["all weights", "adapters"])
def test_the_cost_of_rounding_is_told(tokenizer: Any, bfloat16_folder: Path, tmp_path: Path, lora: bool) -> None:
    config = Config(model=ModelConfig(path=str(bfloat16_folder), dtype="bfloat16"))
    shares = []
    for step in (1e-5, 1e-2):
        policy = moved_policy(bfloat16_folder, step, lora=lora)
        rounding = export_policy(policy, tokenizer, tmp_path / "hf", config)
        assert rounding is not None
        shares.append(rounding.share)
        # The slow way: read all three from where they are.
        start, end = (AutoModelForCausalLM.from_pretrained(f).state_dict() for f in (bfloat16_folder, tmp_path / "hf"))
        exact = dict(merged_weights(policy))
        lost = math.hypot(*(float((end[name].float() - exact[name].float()).norm()) for name in exact))
        moved = math.hypot(*(float((exact[name].float() - start[name].float()).norm()) for name in exact))
        assert rounding.share == pytest.approx(lost / moved, rel=1e-3)
        assert str(rounding).startswith("rounding the exported weights to bfloat16 changed them by")
    assert shares[0] > 0.7
    assert shares[1] < 0.3
    config.model.dtype = "float32"
    assert export_policy(policy, tokenizer, tmp_path / "hf", config) is None
    exported = load_file(tmp_path / "hf" / "model.safetensors")
    assert all(torch.equal(tensor, exact[name].float()) for name, tensor in exported.items())


@pytest.mark.whole
def test_a_run_says_once_what_rounding_cost(
    run: Callable[..., list[str]], bfloat16_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = run("model.dtype=bfloat16", "optimizer.learning_rate=1e-5", model=bfloat16_folder)
    summary = commands.train(*overrides, reward=token_variety)
    assert summary.export_rounding is not None
    assert summary.export_rounding > 0.5
    assert summary_of(tmp_path / "tiny")["export_rounding"] == summary.export_rounding
    said = " ".join(capsys.readouterr().out.split())
    assert said.count(f"rounding the exported weights to bfloat16 changed them by {summary.export_rounding:.1%}") == 1
    exact = commands.train(*overrides, "model.dtype=float32", "run.name=exact", reward=token_variety)
    assert exact.export_rounding is None
    assert "rounding" not in capsys.readouterr().out


# --- exports that fail ------------------------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize("error", [ValueError("the settings are odd"), RuntimeError("shared memory"), KeyError("x")])
def test_whatever_fails_in_an_export_the_run_keeps_its_results(
    run: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(LlamaForCausalLM, "save_pretrained", refuse)
    with pytest.raises(
        ExportError, match=rf"hf cannot be exported \({type(error).__name__}.*checkpoint is that of step 1"
    ):
        commands.train(*run(), quiet=True, reward=token_variety)
    written = summary_of(tmp_path / "tiny")
    assert written["success_after"] is not None
    assert written["model"] is None
    assert sum("hf cannot be exported" in warning for warning in written["warnings"]) == 1
    assert not (tmp_path / "tiny" / ".hf.partial").exists()
    monkeypatch.undo()
    summary = commands.train(*run(), quiet=True, reward=token_variety)  # the same command: only the export is missing
    assert summary.model is not None
    assert summary.steps == 1
    assert len(list((tmp_path).glob("tiny*"))) == 1
    lines = (tmp_path / "tiny" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines if "reward/outcome" in line] == [1]


@pytest.mark.whole
def test_a_run_whose_export_fails_does_not_end_as_a_success(
    run: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise ValueError("the settings are odd")

    monkeypatch.setattr(LlamaForCausalLM, "save_pretrained", refuse)
    result = CliRunner().invoke(app, ["train", *run()])
    assert result.exit_code != 0
    assert "the settings are odd" in result.output
    assert "Traceback" not in result.output


def test_an_export_that_fails_leaves_the_one_before_it(
    tiny_model: LlamaForCausalLM, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_model(tiny_model, tokenizer, tmp_path / "hf")
    monkeypatch.setattr(models, "replace_folder", lambda beside, folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_model(tiny_model, tokenizer, tmp_path / "hf")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_our_own_errors_stay_what_they_are_and_all_others_get_a_name() -> None:
    with pytest.raises(StorageError, match="full"), raising(ExportError, "hf cannot be exported"):
        raise StorageError("full")
    named = r"hf cannot be exported \(KeyError: 'lm_head'\)"
    with pytest.raises(ExportError, match=named), raising(ExportError, "hf cannot be exported"):
        raise KeyError("lm_head")


# --- weights that explode ---------------------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize("lora", [[], ["model.lora.rank=2"]], ids=["all weights", "adapters"])
@pytest.mark.parametrize("rate", [1e6, 1e30])
def test_weights_that_explode_stop_the_run_and_are_not_exported(
    run: Callable[..., list[str]], tmp_path: Path, lora: list[str], rate: float
) -> None:
    overrides = run(f"optimizer.learning_rate={rate}", "trainer.steps=3", *lora)
    with pytest.raises(DivergenceError, match=r"exploded: .*lower optimizer\.learning_rate \(it is 1e\+"):
        commands.train(*overrides, quiet=True, reward=token_variety)
    assert not (tmp_path / "tiny" / "hf").exists()
    assert not (tmp_path / "tiny" / "summary.json").exists()


def test_a_warm_start_that_explodes_is_not_exported(tmp_path: Path, model_folder: Path) -> None:
    demonstrations = tmp_path / "demonstrations.jsonl"
    row = {"messages": [{"role": "user", "content": "What do 2 egg cost?"}, {"role": "assistant", "content": "6"}]}
    demonstrations.write_text(json.dumps(row) + "\n")
    overrides = tiny_overrides(tmp_path, model_folder, f"sft.data=[{demonstrations}]", "sft.steps=4")
    with pytest.raises(DivergenceError, match=r"lower sft\.learning_rate \(it is 1000\)"):
        commands.sft(*overrides, "sft.learning_rate=1000", quiet=True)
    assert not (tmp_path / "tiny" / "hf").exists()


def test_weights_that_are_not_finite_have_exploded(tiny_model: LlamaForCausalLM) -> None:
    growth = WeightGrowth(tiny_model)
    growth.check(rate=1.0)
    with torch.no_grad():
        tiny_model.model.norm.weight[0] = float("nan")
    with pytest.raises(DivergenceError, match="they are not finite"):
        growth.check(rate=1.0)


@pytest.mark.parametrize("lora", [False, True], ids=["all weights", "adapters"])
def test_the_size_is_the_norm_of_the_weights_the_model_adds_up_to(tiny_model: LlamaForCausalLM, lora: bool) -> None:
    policy = copy.deepcopy(tiny_model)
    if lora:
        add_adapters(policy, LoraConfig(rank=4, alpha=8.0), seed=0)
    growth = WeightGrowth(policy)
    plain = {name: weight.double() for name, weight in tiny_model.named_parameters()}
    assert growth._size() == pytest.approx(math.hypot(*(float(weight.detach().norm()) for weight in plain.values())))
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter))
    merged = dict(merged_weights(policy))
    changes = [merged[name].double() - plain[name].detach() for name in plain]
    if lora:  # the norms of frozen and added weights, as if orthogonal
        expected = math.hypot(growth._frozen, *(float(change.norm()) for change in changes))
    else:
        expected = math.hypot(*(float(merged[name].double().norm()) for name in plain))
    assert growth._size() == pytest.approx(expected, rel=1e-4)


def test_growth_of_ten_times_is_not_an_explosion(tiny_model: LlamaForCausalLM) -> None:
    growth = WeightGrowth(tiny_model)
    for factor, explodes in ((10.0, False), (LARGEST_GROWTH, True)):
        with torch.no_grad():
            for parameter in tiny_model.parameters():
                parameter.mul_(factor)
        if explodes:
            with pytest.raises(DivergenceError, match="1e\\+03 times as large as at the start"):
                growth.check(rate=1.0)
        else:
            growth.check(rate=1.0)
