"""Fixtures: a real tokenizer with a tool template and a real, tiny model, made once per session.

Torch and transformers are imported by the processes that run tests. The first process of pytest-xdist runs none, and
starts the others once it has read this file.
"""

from __future__ import annotations

import gc
import os
import random
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.helpers.fuzzing import cases

if TYPE_CHECKING:
    from transformers import LlamaConfig, LlamaForCausalLM

    from agent_r1.chat import ChatRenderer

# In models this small threads only wait for each other. The variable is for the processes that tests start: a run and
# the run it is compared with must use the same number.
os.environ["OMP_NUM_THREADS"] = "1"

# A busy machine may take a second for the first draw, which says nothing about the strategy.
settings.register_profile("tests", max_examples=cases(100), suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def pytest_configure(config: pytest.Config) -> None:
    """Import them before warnings are errors: those of other packages are not ours."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # where the tests run in a shell's background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        gc.disable()  # until the tests are collected: there are millions of new objects, and hardly any garbage
        import torch
        from transformers import LlamaForCausalLM  # noqa: F401

        from tests.helpers import forks

        torch.set_num_threads(1)
        forks.prepare()


def pytest_collection_finish() -> None:
    """Objects of libraries and tests, millions, live to the end: no pass of the garbage collector looks at them."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """The quickstart's tokenizer: hermes tool calls, `<|im_end|>` closes a turn."""
    from agent_r1.models.tiny import train_tokenizer
    from recipes.quickstart.shop import demonstration, draw_basket

    rng = random.Random(0)
    return train_tokenizer([demonstration(draw_basket(rng), rng) for _ in range(300)])


@pytest.fixture(scope="session")
def renderer(tokenizer: Any) -> ChatRenderer:
    from agent_r1.chat import ChatRenderer

    return ChatRenderer(tokenizer)


@pytest.fixture
def tiny_model(tokenizer: Any) -> LlamaForCausalLM:
    """A random model of a few thousand parameters; the same weights every time."""
    import torch
    from transformers import LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(tiny_config(tokenizer))


@pytest.fixture(scope="session")
def model_folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model and its tokenizer as a Hugging Face folder."""
    import torch
    from transformers import LlamaForCausalLM

    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    LlamaForCausalLM(tiny_config(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def uninterrupted(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Trains a tiny run of four steps without interruption, once per session and set of overrides; gives its folder."""
    from tests.helpers import commands
    from tests.helpers.tiny_runs import score_variety, tiny_overrides

    @cache
    def train(*overrides: str) -> Path:
        folder = tmp_path_factory.mktemp("uninterrupted")
        commands.train(*tiny_overrides(folder, model_folder, *overrides), quiet=True, reward=score_variety)
        return folder / "tiny"

    return train


def tiny_config(tokenizer: Any) -> LlamaConfig:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
