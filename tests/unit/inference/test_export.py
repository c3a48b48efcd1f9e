"""Exports: what transformers and peft load from them, their model card, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_r1.errors import CheckpointError, ConfigError, ExportError
from agent_r1.inference import export_agent

IDS = torch.tensor([[5, 17, 40, 9, 12, 33]])
LORA = ("model.lora.rank=2", "model.lora.targets=[q_proj, v_proj]", "optimizer.learning_rate=0.05")
EVAL = "data.eval=${data.train}"


@pytest.fixture
def run(uninterrupted: Callable[..., Path], tmp_path: Path) -> Path:
    return shutil.copytree(uninterrupted(EVAL, "eval.every=3"), tmp_path / "tiny")


@pytest.fixture
def lora_run(uninterrupted: Callable[..., Path], tmp_path: Path) -> Path:
    return shutil.copytree(uninterrupted(*LORA), tmp_path / "tiny_lora")


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def front_matter(folder: Path) -> dict[str, Any]:
    _, head, _ = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(head)


@pytest.mark.whole
def test_the_final_model_is_exported_bit_for_bit_with_its_tokenizer(run: Path, tmp_path: Path) -> None:
    done = export_agent(run, tmp_path / "out" / "shopper")
    assert done.step is None
    assert torch.equal(logits(load(done.folder)), logits(load(run / "hf")))
    assert AutoTokenizer.from_pretrained(done.folder).chat_template == (run / "hf" / "chat_template.jinja").read_text()
    assert not list(done.folder.parent.glob("*.partial"))


@pytest.mark.whole
def test_the_checkpoint_of_the_last_step_is_the_final_model_and_an_earlier_one_is_not(
    run: Path, tmp_path: Path
) -> None:
    last, earlier = (export_agent(run, tmp_path / f"step{step}", step=step) for step in (4, 3))
    assert (last.step, earlier.step) == (4, 3)
    final = logits(load(run / "hf"))
    assert torch.equal(logits(load(last.folder)), final)
    assert not torch.equal(logits(load(earlier.folder)), final)


@pytest.mark.whole
def test_adapters_apart_equal_the_merged_model(lora_run: Path, tmp_path: Path, model_folder: Path) -> None:
    peft = pytest.importorskip("peft")
    apart = export_agent(lora_run, tmp_path / "apart", lora="apart")
    merged = export_agent(lora_run, tmp_path / "merged")
    settings = json.loads((apart.folder / "adapter_config.json").read_text())
    assert sorted(settings["target_modules"]) == ["q_proj", "v_proj"]
    assert (settings["r"], settings["task_type"], settings["inference_mode"]) == (2, "CAUSAL_LM", True)
    assert not (apart.folder / "model.safetensors").exists()
    base = load(model_folder)
    plain = logits(base)
    with_adapters = logits(peft.PeftModel.from_pretrained(base, apart.folder))
    torch.testing.assert_close(with_adapters, logits(load(merged.folder)), rtol=1e-4, atol=1e-5)
    assert (with_adapters - plain).abs().max() > 1e-3, "the adapters were trained"
    assert front_matter(apart.folder)["library_name"] == "peft"
    assert "PeftModel.from_pretrained" in (apart.folder / "README.md").read_text()


def test_the_cards_figures_are_those_of_the_summary(run: Path, tmp_path: Path) -> None:
    folder = export_agent(run, tmp_path / "shopper", licence="apache-2.0").folder
    card = (folder / "README.md").read_text()
    summary = json.loads((run / "summary.json").read_text())
    for name in ("greedy", "reward"):
        before, after = (summary[key][f"eval/all/{name}"] for key in ("metrics_before", "metrics"))
        assert f"| all/{name} | {before:.4g} | {after:.4g} |" in card
    assert "agent-r1 eval " in card
    assert "--model shopper" in card
    matter = front_matter(folder)
    assert matter["license"] == "apache-2.0"
    assert matter["library_name"] == "transformers"
    assert {"agent-r1", "grpo"} <= set(matter["tags"])


@pytest.mark.whole
def test_the_card_of_a_step_has_the_figures_of_that_step_or_none(run: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    [at_three] = [line for line in lines if line["step"] == 3 and "eval/all/greedy" in line]
    card = (export_agent(run, tmp_path / "step3", step=3).folder / "README.md").read_text()
    assert f"| {at_three['eval/all/greedy']:.4g} |\n" in card.partition("| all/greedy |")[2]
    assert "after training step 3" in card
    (run / "metrics.jsonl").write_text("")
    card = (export_agent(run, tmp_path / "again", step=3).folder / "README.md").read_text()
    assert "was not evaluated at this step" in card


def test_a_card_without_a_licence_asks_for_it(run: Path, tmp_path: Path) -> None:
    folder = export_agent(run, tmp_path / "shopper").folder
    assert "license" not in front_matter(folder)
    assert "state it here" in (folder / "README.md").read_text()
    assert str(tmp_path) not in (folder / "README.md").read_text(), "no path of this machine"


def test_a_model_is_exported_with_a_card_of_its_own(model_folder: Path, tmp_path: Path) -> None:
    folder = export_agent(model_folder, tmp_path / "copy").folder
    assert torch.equal(logits(load(folder)), logits(load(model_folder)))
    assert "exported with Agent-R1" in (folder / "README.md").read_text()


@pytest.mark.whole
def test_the_hf_folder_of_a_run_is_that_run(run: Path, tmp_path: Path) -> None:
    card = (export_agent(run / "hf", tmp_path / "copy").folder / "README.md").read_text()
    assert "## Figures" in card


def test_an_existing_folder_is_replaced_only_by_force_and_only_when_it_is_a_model(
    model_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    export_agent(model_folder, out)
    (out / "mine.txt").write_text("x")
    with pytest.raises(ExportError, match="out exists"):
        export_agent(model_folder, out)
    assert (out / "mine.txt").exists()
    export_agent(model_folder, out, force=True)
    assert not (out / "mine.txt").exists()
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "chapter.txt").write_text("x")
    with pytest.raises(ExportError, match="something else than a model"):
        export_agent(model_folder, other, force=True)
    assert (other / "chapter.txt").read_text() == "x"


@pytest.mark.parametrize("place", [".", "hf", ".."])
def test_nothing_that_is_exported_is_replaced(run: Path, place: str) -> None:
    with pytest.raises(ExportError, match="holds what is exported"):
        export_agent(run, run / place, force=True)
    assert (run / "hf" / "config.json").is_file()


def test_what_cannot_be_exported_is_refused_with_the_reason(run: Path, model_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="trained without LoRA"):
        export_agent(run, out, lora="apart")
    with pytest.raises(ConfigError, match="Name the run"):
        export_agent(model_folder, out, lora="apart")
    with pytest.raises(ConfigError, match="only a run has checkpoints"):
        export_agent(model_folder, out, step=3)
    with pytest.raises(CheckpointError, match="no checkpoint of step 99"):
        export_agent(run, out, step=99)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ExportError, match="not a folder"):
        export_agent(run, tmp_path / "file")
    assert not out.exists()


def test_adapters_of_a_run_without_checkpoints_are_refused_with_the_reason(lora_run: Path, tmp_path: Path) -> None:
    shutil.rmtree(lora_run / "checkpoints")
    with pytest.raises(CheckpointError, match=r"has its model \(hf/\) and no checkpoint, .*keep_checkpoints=1"):
        export_agent(lora_run, tmp_path / "out", lora="apart")


def test_an_export_that_fails_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(source: Any, target: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", broken)
    with pytest.raises(OSError, match="No space left on device"):
        export_agent(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob("*.partial"))
