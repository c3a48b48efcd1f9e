"""Loading the policy and building a critic."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from agent_r1.errors import ConfigError
from agent_r1.training.checkpoint import replace_folder


def choose_device(name: str) -> torch.device:
    """`auto` is a GPU when there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def load_policy(path: str, *, dtype: str, device: torch.device, trust_remote_code: bool = False) -> nn.Module:
    """A causal language model from a Hugging Face folder or id."""
    from transformers import AutoModelForCausalLM

    try:
        with _no_progress_bars():
            model = AutoModelForCausalLM.from_pretrained(
                path, dtype=getattr(torch, dtype), trust_remote_code=trust_remote_code, attn_implementation="sdpa"
            )
    except (OSError, ValueError) as error:
        raise ConfigError(f"the model '{path}' cannot be loaded: {error}") from error
    # Dropout, if the model has any, would make every score of the same tokens a different one.
    return cast(nn.Module, model).to(device).eval()


class Critic(nn.Module):
    """The trunk of a language model with one linear output: the value of the state after each token."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        base = cast(Any, policy)
        self.trunk: nn.Module = copy.deepcopy(base.get_decoder())
        parameter = next(policy.parameters())
        hidden = int(base.config.get_text_config().hidden_size)
        # From zero: an untrained critic must not invent differences between states.
        self.head = nn.Linear(hidden, 1, device=parameter.device, dtype=parameter.dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Values [rows, tokens] in float32."""
        hidden = self.trunk(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        values: Tensor = self.head(hidden).squeeze(-1).float()
        return values


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Reading and writing a local file needs no bar, and one would break into ours."""
    from transformers.utils import logging

    active = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if active:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def export_model(policy: nn.Module, tokenizer: Any, folder: Path) -> None:
    """Write a Hugging Face folder that `from_pretrained` (and vLLM, and `model.path`) can open."""
    beside = folder.with_name(f"{folder.name}.partial")
    beside.mkdir(parents=True, exist_ok=True)
    with _no_progress_bars():
        cast(Any, policy).save_pretrained(beside)
    tokenizer.save_pretrained(beside)
    replace_folder(beside, folder)
