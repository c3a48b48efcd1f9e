"""Loading a model with its tokenizer, without a recipe."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from agent_r1.engines.local import LocalEngine
from agent_r1.errors import ConfigError
from agent_r1.models import build_tiny_model, load_model
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


def test_a_gguf_file_loads_and_is_unpacked_once(cache: Path, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), CHATML)
    first = load_model(file)
    written = (Path(first.path) / "config.json").stat().st_mtime_ns
    assert Path(first.path).is_relative_to(cache)
    assert load_model(file).path == first.path
    assert (Path(first.path) / "config.json").stat().st_mtime_ns == written
