"""The `Learner` protocol: experience in, weights out. All that the training loop knows of a learner."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from agent_r1.config import Config
from agent_r1.learner.experience import Experience
from agent_r1.models import Rounding
from agent_r1.types import SamplingParams, TrajectoryCredit

OnCredit = Callable[[Sequence[TrajectoryCredit]], None]
"""Called once per training step, after its last update, with the credit of all trajectories."""


class Learner(Protocol):
    """Anything that can train the policy.

    metrics = await learner.learn(experience, step=0)
    await engine.update_weights(learner.weights(unmerged=engine.adapters), version=1)
    """

    async def learn(self, experience: Experience, *, step: int, on_credit: OnCredit | None = None) -> dict[str, float]:
        """Make all updates of training step `step` (from 0); returns metrics. With `on_credit`, what the updates
        computed per token is kept and given to it; without, recording costs nothing. A batch without an action token
        has no credit to give.

        The event loop keeps running meanwhile. When the caller is cancelled, the update is finished first: weights
        never change after this has returned or raised. Raises `DivergenceError` after too many updates in a row that
        were not finite.
        """
        ...

    def weights(self, *, unmerged: Collection[str] = ()) -> Iterable[tuple[str, Tensor]]:
        """The policy's current weights under the plain model's names, LoRA adapters merged. A layer named in `unmerged`
        gives its plain `weight`, `lora_A` and `lora_B` (scaled) instead."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to continue as if it had never stopped: nested mappings and lists of tensors and
        plain numbers, as `torch.save` takes them. Tensors are the learner's own, not copies."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; its tensors may be on any device."""
        ...

    def export(
        self, folder: Path, *, tokenizer: Any, config: Config, sampling: SamplingParams | None = None
    ) -> Rounding | None:
        """Write the policy to a Hugging Face folder; returns what rounding the weights cost, None if nothing was
        rounded. Raises `StorageError` or `ExportError`."""
        ...

    def check_growth(self) -> None:
        """Raise `DivergenceError` when the policy's weights have exploded since the run was started or resumed."""
        ...

    def checkpoint_bytes(self) -> int:
        """About the size of a saved `state_dict`, also before the first update."""
        ...

    def model_bytes(self) -> int:
        """The size of the policy's weights."""
        ...

    def memory(self) -> float | None:
        """The most GPU memory that this process has held so far, in GB; None on a CPU."""
        ...
