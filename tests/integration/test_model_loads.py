"""A model is read once: its weights, its tokenizer, and by us its configuration."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import agent_r1
from tests.helpers import commands
from tests.helpers.tiny_runs import tiny_overrides

LIBRARY = str(Path(agent_r1.__file__).parent)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the library read each part; what transformers reads inside of one call is not counted."""
    counts: Counter[str] = Counter()

    def counted(name: str, load: Callable[..., Any]) -> Callable[..., Any]:
        def from_pretrained(*args: Any, **kwargs: Any) -> Any:
            counts[name] += sys._getframe(1).f_code.co_filename.startswith(LIBRARY)
            return load(*args, **kwargs)

        return from_pretrained

    for cls in (AutoConfig, AutoModelForCausalLM, AutoTokenizer):
        monkeypatch.setattr(cls, "from_pretrained", counted(cls.__name__, cls.from_pretrained))
    return counts


ONCE = {"AutoConfig": 1, "AutoModelForCausalLM": 1, "AutoTokenizer": 1}


def test_an_evaluation_reads_its_model_once(tmp_path: Path, model_folder: Path, loads: Counter[str]) -> None:
    commands.evaluate(*tiny_overrides(tmp_path, model_folder), quiet=True)
    assert loads == ONCE


def test_a_check_reads_its_model_once(tmp_path: Path, model_folder: Path, loads: Counter[str]) -> None:
    commands.check(*tiny_overrides(tmp_path, model_folder), groups=1, members=2, quiet=True)
    assert loads == ONCE


def test_training_reads_its_model_once_and_its_dtype_again_for_the_export(
    tmp_path: Path, model_folder: Path, loads: Counter[str]
) -> None:
    commands.train(*tiny_overrides(tmp_path, model_folder), "trainer.steps=1", quiet=True)
    assert loads == ONCE | {"AutoConfig": 2}
