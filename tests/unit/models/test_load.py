"""Loading a model with its tokenizer, without a recipe."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from agent_r1.chat import generation_stop_ids
from agent_r1.engines.local import LocalEngine
from agent_r1.errors import ConfigError
from agent_r1.models import build_tiny_model, load_model, load_policy
from agent_r1.models.pretrained import _check_layers
from agent_r1.types import Observation, SamplingParams
from tests.unit.models.test_gguf import CHATML, cache, tiny_llama, write_gguf

__all__ = ["cache"]

ROWS = [{"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "ba"}]}] * 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "hf"
    build_tiny_model(ROWS, path)
    return path


def test_a_model_folder_loads_with_what_is_needed_to_talk_to_it(folder: Path) -> None:
    loaded = load_model(folder)
    assert loaded.context_length == 512
    assert not loaded.model.training
    renderer = loaded.renderer()
    assert renderer.stop_ids == (loaded.tokenizer.eos_token_id,)
    prompt = renderer.render(Observation(messages=({"role": "user", "content": "ab"},)))
    completion = asyncio.run(LocalEngine(loaded.model).generate(prompt.token_ids, SamplingParams(max_tokens=3)))
    assert completion.token_ids


def test_weights_keep_their_stored_type_unless_another_is_named(folder: Path) -> None:
    types = [
        next(load_model(folder, dtype=dtype, device="cpu").model.parameters()).dtype for dtype in ("auto", "bfloat16")
    ]
    assert types == [torch.float32, torch.bfloat16]


def test_a_model_folder_without_a_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    tiny_llama().save_pretrained(tmp_path / "bare")
    with pytest.raises(ConfigError, match=r"the tokenizer of '.*bare' cannot be loaded"):
        load_model(tmp_path / "bare")


def test_a_folder_without_a_model_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the model '.*' cannot be loaded"):
        load_model(tmp_path)


def truncated(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: os.truncate(folder / name, size)


def with_config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))

    return change


def without_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.0.mlp.down_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def another_shape(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = torch.zeros(3)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def lfs_pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n")


def index_of_another_folder(folder: Path) -> None:
    names = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder.parent / "other.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "../other.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def adapter_alone(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Path("file")}, protocol=2))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (without_a_weight, r"1 of its weights are in none of its files \(model.layers.0.mlp.down_proj.weight\)"),
        (with_config(num_hidden_layers=9), r"of its weights are in none of its files \(model.layers.*, \.\.\.\)"),
        (
            with_config(vocab_size=999),
            r"embed_tokens\.weight is .* and \[999, 128\] by config\.json",
        ),
        (with_config(num_attention_heads=7), "the model '.*' cannot be loaded"),
        (
            truncated("model.safetensors", 1000),
            r"model\.safetensors \(1,000 bytes\) is cut short or damaged: .*download",
        ),
        (lfs_pointer, r"model\.safetensors is only a pointer of Git LFS; .*git lfs pull"),
        (another_shape, r"1 of its weights .*: model\.norm\.weight is \[3\] in the files and \[128\] by config\.json"),
        (
            with_config(num_hidden_layers=2),
            r"18 weights of layers that its config\.json does not have",
        ),
        (with_config(num_hidden_layers=0), r"says num_hidden_layers=0"),
        (with_config(max_position_embeddings=-1), r"says max_position_embeddings=-1"),
        (
            index_of_another_folder,
            r"index\.json names the file \.\./other\.safetensors, which is not in the model's folder",
        ),
        (
            adapter_alone,
            r"it is an adapter for org/base, without its weights\. Take the folder with the merged weights",
        ),
        (pickled, "the model '.*' cannot be loaded .UnpicklingError"),
        (truncated("config.json", 20), "the model '.*' cannot be loaded"),
        (lambda folder: (folder / "config.json").write_text("[]"), "the model '.*' cannot be loaded"),
        (truncated("tokenizer.json", 100), "the tokenizer of '.*' cannot be loaded"),
        (
            lambda folder: (folder / "tokenizer_config.json").write_text("null"),
            "the tokenizer of '.*' cannot be loaded",
        ),
    ],
    ids=[
        "weight",
        "layers",
        "vocabulary",
        "heads",
        "weights",
        "pointer",
        "shape",
        "fewer layers",
        "no layers",
        "context",
        "index",
        "adapter",
        "pickle",
        "config",
        "no config",
        "tokenizer",
        "null",
    ],
)
def test_a_damaged_model_folder_is_one_error_that_names_it(
    folder: Path, tmp_path: Path, damage: Callable[[Path], object], told: str
) -> None:
    shutil.copytree(folder, tmp_path / "hf")
    damage(tmp_path / "hf")
    with pytest.raises(ConfigError, match=told):
        load_model(tmp_path / "hf", device="cpu")


def layer_that_predicts_further(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    further = {name.replace(".0.", ".1."): weight.clone() for name, weight in weights.items() if ".layers.0." in name}
    save_file({**weights, **further}, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_layer_that_predicts_the_token_after_the_next_is_left_out(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "hf")
    with_config(num_hidden_layers=1)(tmp_path / "hf")
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if re.search(r"layers\.[1-9]", name) is None}
    save_file(kept, tmp_path / "hf" / "model.safetensors", metadata={"format": "pt"})
    layer_that_predicts_further(tmp_path / "hf")
    with pytest.raises(
        ConfigError, match=r"weights of layers that its config\.json does not have \(model\.layers\.1\."
    ):
        load_model(tmp_path / "hf", device="cpu")
    with_config(num_nextn_predict_layers=1)(tmp_path / "hf")
    assert load_model(tmp_path / "hf", device="cpu").model.config.num_hidden_layers == 1


def test_a_weight_that_one_of_the_layers_does_without_is_left_out() -> None:
    """Such as keys and values, where a layer shares those of another."""
    model = torch.nn.ModuleDict(
        {"layers": torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Linear(1, 1, bias=False)])}
    )
    cast(Any, model).config = LlamaConfig(num_hidden_layers=2)
    _check_layers("shared", model, ["layers.1.bias"])
    with pytest.raises(ConfigError, match=r"1 weights of layers that .* does not have \(layers\.2\.bias"):
        _check_layers("cut", model, ["layers.1.bias", "layers.2.bias"])


def test_packed_weights_are_not_said_to_have_a_wrong_shape(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "hf")
    another_shape(tmp_path / "hf")
    with_config(quantization_config={"quant_method": "gptq", "bits": 4})(tmp_path / "hf")
    with pytest.raises(ConfigError, match=r"the model '.*' cannot be loaded") as told:
        load_model(tmp_path / "hf", device="cpu")
    assert "of another shape" not in str(told.value)


def test_a_damaged_generation_config_is_an_error_and_a_missing_one_is_not(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "hf")
    file = tmp_path / "hf" / "generation_config.json"
    file.write_text('{"eos_token_id": [1,')
    with pytest.raises(ConfigError, match=r"generation_config\.json cannot be read"):
        load_model(tmp_path / "hf", device="cpu").renderer()
    file.unlink()
    assert load_model(tmp_path / "hf", device="cpu").renderer().stop_ids


def test_a_policy_whose_weights_are_not_finite_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "hf")
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, tmp_path / "hf" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"logits of nan or inf: its weights are damaged"):
        load_policy(str(tmp_path / "hf"), dtype="float32", device=torch.device("cpu"))


@pytest.mark.parametrize("eos", ["x", ["a"], [-3], [True]], ids=str)
def test_an_end_of_turn_that_is_no_id_is_refused_with_its_file(folder: Path, tmp_path: Path, eos: Any) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    with pytest.raises(ConfigError, match=r"generation_config\.json: eos_token_id must be the id of a token"):
        generation_stop_ids(tmp_path)


def test_a_gguf_file_loads_and_is_unpacked_once(cache: Path, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), CHATML)
    first = load_model(file)
    written = (Path(first.path) / "config.json").stat().st_mtime_ns
    assert Path(first.path).is_relative_to(cache)
    assert load_model(file).path == first.path
    assert (Path(first.path) / "config.json").stat().st_mtime_ns == written
