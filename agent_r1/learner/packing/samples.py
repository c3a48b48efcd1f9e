"""Samples and micro-batches, and the reference packing: padded rows, one per step.

Padded rows are simple, so faster packings are tested against them. A step's row is its prompt followed by its action;
only action tokens are scored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from agent_r1.errors import ConfigError
from agent_r1.images import ImageSpan
from agent_r1.learner.packing.image_tokens import BatchImages, refuse_image_targets, take_images
from agent_r1.models import ImagePass
from agent_r1.types import TokenIds


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One row of tokens and which of them the model is trained on."""

    token_ids: TokenIds
    """All tokens of the row."""
    action_positions: tuple[int, ...]
    """The positions, in order, of the tokens that carry loss. Never 0: the first token follows nothing."""

    @classmethod
    def of_step(cls, prompt_ids: TokenIds, action_ids: TokenIds) -> Sample:
        """The row of one step: the prompt carries no loss, the action does.

        >>> Sample.of_step((1, 2), (3,))
        Sample(token_ids=(1, 2, 3), action_positions=(2,))
        """
        total = len(prompt_ids) + len(action_ids)
        return cls(token_ids=prompt_ids + action_ids, action_positions=tuple(range(len(prompt_ids), total)))

    def with_prefix(self, prefix: TokenIds) -> Sample:
        """The sample with more context before it.

        >>> Sample.of_step((1, 2), (3,)).with_prefix((9,))
        Sample(token_ids=(9, 1, 2, 3), action_positions=(3,))
        """
        if not prefix:
            return self
        shifted = tuple(position + len(prefix) for position in self.action_positions)
        return Sample(token_ids=prefix + self.token_ids, action_positions=shifted)

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, kw_only=True, slots=True)
class MicroBatch:
    """Several samples as one padded matrix, and where their action tokens are.

    Steps with prompts [1, 2] and [4] and actions [3] and [5, 6]:

        input_ids      [[1, 2, 3], [4, 5, 6]]
        rows_N, columns_N   (0, 1), (1, 0), (1, 1): the position *before* each action token, which predicts it
        targets_N      [3, 5, 6]
        tokens_N       [0, 1, 2]: the tokens' indices in the whole batch

    Which tokens attend to which is given by `attention_mask` for plain rows and by `ends` for tries (see `trie.py`).
    """

    input_ids: Tensor
    """[rows, width]; padded on the right."""
    rows_N: Tensor
    """The row of each action token."""
    columns_N: Tensor
    """The column before each action token."""
    action_columns_N: Tensor
    """The column of each action token itself."""
    targets_N: Tensor
    """The action tokens."""
    tokens_N: Tensor
    """Each action token's index in the whole batch's flat arrays."""
    attention_mask: Tensor | None = None
    """1 on tokens, made from lengths: an id that happens to equal the padding is still a token."""
    position_ids: Tensor | None = None
    """Depths in a trie; None: columns."""
    ends: Tensor | None = None
    """Where each token's subtree ends in its row."""
    image_places: Tensor | None = None
    """The flat indices of image tokens, in order; None without images. Their ids are 0."""
    image_spans: tuple[ImageSpan, ...] = ()
    """The images they belong to, in the same order."""
    image_rows: Tensor | None = None
    """Their embeddings; set before a model reads the micro-batch (`with_images`)."""
    rope_ids: Tensor | None = None
    """[3, rows, width]: positions in two dimensions, where the model needs them for images."""

    def to(self, device: torch.device) -> MicroBatch:
        """The micro-batch on a device; `tokens_N` stays on the CPU, where it indexes arrays."""
        moved: dict[str, Any] = {
            entry.name: send(getattr(self, entry.name), device)
            for entry in fields(self)
            if entry.name not in ("tokens_N", "image_spans") and getattr(self, entry.name) is not None
        }
        return replace(self, **moved)

    def placing(self, images: BatchImages | None) -> MicroBatch:
        """The micro-batch with the places and positions of its image tokens."""
        if images is None:
            return self
        return replace(self, image_places=images.places, image_spans=images.spans, rope_ids=images.positions)

    def with_images(self, images: ImagePass) -> MicroBatch:
        """The micro-batch with the embeddings of its images."""
        if not self.image_spans:
            return self
        return replace(self, image_rows=images.rows(self.image_spans))


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device. It is copied from pinned memory, so the host does not wait for a busy GPU."""
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


Packer = Callable[[Sequence[Sample], Sequence[int]], Iterable[MicroBatch]]
"""From samples and the indices of the chosen ones to micro-batches; the result is iterated once."""


def pack(samples: Sequence[Sample], chosen: Sequence[int], *, max_tokens: int) -> list[MicroBatch]:
    """The chosen samples as micro-batches of at most `max_tokens` tokens, padding included.

    Rows of similar length are packed together. A sample that is longer than the budget is a `ConfigError`.
    """
    refuse_too_long(samples, chosen, max_tokens)
    starts = first_tokens(samples)
    batches: list[MicroBatch] = []
    current: list[int] = []
    for index in sorted((i for i in chosen if samples[i].action_positions), key=lambda i: (-len(samples[i]), i)):
        if current and (len(current) + 1) * len(samples[current[0]]) > max_tokens:
            batches.append(_collate(samples, current, starts))
            current = []
        current.append(index)
    if current:
        batches.append(_collate(samples, current, starts))
    return batches


def refuse_too_long(samples: Sequence[Sample], chosen: Sequence[int], max_tokens: int) -> None:
    """Raise `ConfigError` for a sample that is longer than a micro-batch."""
    longest = max((len(samples[index]) for index in chosen if samples[index].action_positions), default=0)
    if longest > max_tokens:
        raise ConfigError(f"a step of {longest} tokens does not fit trainer.micro_batch_tokens={max_tokens}; raise it")


def first_tokens(samples: Sequence[Sample]) -> list[int]:
    """Where each sample's action tokens begin in the flat arrays."""
    starts, total = [], 0
    for sample in samples:
        starts.append(total)
        total += len(sample.action_positions)
    return starts


def _collate(samples: Sequence[Sample], indices: Sequence[int], starts: Sequence[int]) -> MicroBatch:
    width = max(len(samples[index]) for index in indices)
    input_ids = torch.zeros(len(indices), width, dtype=torch.long)
    attention_mask = torch.zeros(len(indices), width, dtype=torch.long)
    rows, columns, targets, tokens = [], [], [], []
    for row, index in enumerate(indices):
        sample = samples[index]
        actions = torch.tensor(sample.action_positions)
        input_ids[row, : len(sample)] = torch.tensor(sample.token_ids)
        attention_mask[row, : len(sample)] = 1
        rows.append(torch.full((len(actions),), row))
        columns.append(actions - 1)
        targets.append(input_ids[row, actions])
        tokens.append(torch.arange(starts[index], starts[index] + len(actions)))
    members = ((row, samples[index].token_ids, slice(len(samples[index]))) for row, index in enumerate(indices))
    images = take_images(input_ids.numpy(), None, members)
    targets_N = torch.cat(targets)
    if images is not None:
        refuse_image_targets(targets_N)
    return MicroBatch(
        input_ids=input_ids,
        attention_mask=attention_mask,
        rows_N=torch.cat(rows),
        columns_N=torch.cat(columns),
        action_columns_N=torch.cat(columns) + 1,
        targets_N=targets_N,
        tokens_N=torch.cat(tokens),
    ).placing(images)
