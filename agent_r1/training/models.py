"""Loading and exporting the policy; critics."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from agent_r1.engines.local.fused import fuse_projections
from agent_r1.errors import ConfigError
from agent_r1.storage import storing
from agent_r1.training.checkpoint import replace_folder, stored_bytes
from agent_r1.training.lora import merged_weights
from agent_r1.training.rows import MicroBatch
from agent_r1.training.visibility import TRIE_ATTENTION, last_hidden


def choose_device(name: str) -> torch.device:
    """`auto` is a GPU when there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def load_policy(path: str, *, dtype: str, device: torch.device, trust_remote_code: bool = False) -> nn.Module:
    """A causal language model from a Hugging Face folder or id."""
    from transformers import AutoModelForCausalLM

    try:
        with no_progress_bars():
            model = AutoModelForCausalLM.from_pretrained(
                path,
                dtype=getattr(torch, dtype),
                trust_remote_code=trust_remote_code,
                attn_implementation=TRIE_ATTENTION,
            )
    except (OSError, ValueError) as error:
        raise ConfigError(f"the model '{path}' cannot be loaded: {error}") from error
    # Dropout, if the model has any, would make every score of the same tokens a different one.
    return cast(nn.Module, model).to(device).eval()


def checkpoint_layers(model: nn.Module) -> None:
    """Recompute each decoder layer going backward instead of keeping what it computed.

    Layers do so only in training mode; only they are put into it, so that dropout stays off.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    cast(Any, model).gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True


def compile_layers(decoder: nn.Module) -> None:
    """Compile each layer of a decoder in place; a whole model would take far longer to compile.

    Projections of the same input become one product first: compiled, joining their weights costs nothing.
    """
    fuse_projections(decoder, trained=True)
    # All layers of all models of a run share one piece of code: leave room for its variants (with and without gradient,
    # adapters on and off, one shape and any shape).
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    for layer in cast(Any, decoder).layers:
        layer.compile()


class Critic(nn.Module):
    """Values the state after each token: a language model's trunk of its own with one linear output."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.trunk: nn.Module = copy.deepcopy(cast(Any, policy).get_decoder())
        self.head = _value_head(policy)

    def hidden(self, batch: MicroBatch) -> Tensor:
        """The hidden states of a micro-batch [rows, width, hidden]."""
        return last_hidden(self.trunk, batch)

    def value_of(self, hidden: Tensor) -> Tensor:
        """The values of hidden states."""
        return _values(self.head, hidden)


class SharedCritic(nn.Module):
    """A value head on the policy's own trunk. Only the head is its own: it alone is saved and counted as parameters.

    Asked for `hidden` states it takes the trunk as given: no gradient reaches the policy. The policy's own pass shows
    its hidden states to `value_of`, with gradient.
    """

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self._borrowed: tuple[nn.Module] = (cast(Any, policy).get_decoder(),)  # a tuple: not a part of this module
        self.head = _value_head(policy)

    @property
    def trunk(self) -> nn.Module:
        """The policy's decoder."""
        return self._borrowed[0]

    def hidden(self, batch: MicroBatch) -> Tensor:
        """The hidden states of a micro-batch [rows, width, hidden], taken as given: without gradient."""
        with torch.no_grad():
            return last_hidden(self.trunk, batch)

    def value_of(self, hidden: Tensor, trunk_weight: float = 1.0) -> Tensor:
        """The values of hidden states; the weight is that of what flows back into the trunk, not into the head."""
        return _values(self.head, hidden.detach() + trunk_weight * (hidden - hidden.detach()))


def _value_head(policy: nn.Module) -> nn.Linear:
    """From zero: an untrained critic must not invent differences between states."""
    parameter = next(policy.parameters())
    hidden_size = int(cast(Any, policy).config.get_text_config().hidden_size)
    head = nn.Linear(hidden_size, 1, device=parameter.device, dtype=parameter.dtype)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


VALUE_REACH = 256
"""About how far one optimizer step can move a value, in learning rates, however wide the model is and however large its
hidden states are. A step changes every weight of the head by about the rate, so a value by the rate times the sum of a
hidden state's entries. Taken as they come these are 600 in SmolLM2-135M and 3,900 in Qwen2.5-Coder-1.5B: a rate of 1e-4
would let the second's values jump by 0.4 in each step, where rewards are between 0 and 1."""


def _values(head: nn.Linear, hidden: Tensor) -> Tensor:
    width = hidden.shape[-1]
    features = nn.functional.rms_norm(hidden, (width,)) * (VALUE_REACH / width)
    values: Tensor = head(features).squeeze(-1).float()
    return values


@contextmanager
def no_progress_bars() -> Iterator[None]:
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
    # What is merged waits on the CPU: a second copy might not fit beside the models of a run.
    weights = dict(merged_weights(policy, device=torch.device("cpu")))
    with storing(folder, partial=beside, num_bytes=stored_bytes(weights)), no_progress_bars():
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        cast(Any, policy).save_pretrained(beside, state_dict=weights)
        tokenizer.save_pretrained(beside)
        replace_folder(beside, folder)
