"""Critics: estimates of the value of the state before an action.

| `algorithm.critic.kind` | trunk | head |
|---|---|---|
| `closed_form` | the policy's, unchanged | solved from sums over batches; nothing is trained |
| `own` | a copy of the policy's, trained | trained by gradient, initialised in closed form |
| `shared` | the policy's, the value loss reaches it | the same |
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from agent_r1.algorithms import RidgeValues
from agent_r1.config import CriticConfig
from agent_r1.learner.packing.samples import MicroBatch
from agent_r1.learner.packing.trie_attention import last_hidden
from agent_r1.models import ImagePass


class Critic(nn.Module):
    """Values the state after each token: a separate copy of the policy's trunk with one linear output."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.trunk: nn.Module = copy.deepcopy(cast(Any, policy).get_decoder())
        self.head = _value_head(policy)
        # In a tuple, so that it is not registered as a submodule.
        self._unregistered_policy: tuple[nn.Module] = (policy,)

    def images(self) -> ImagePass:
        """A pass over images with the policy's tower and projector, which the value loss does not train."""
        return ImagePass(self._unregistered_policy[0], trained=False)

    def hidden(self, batch: MicroBatch) -> Tensor:
        """The hidden states of a micro-batch [rows, width, hidden]."""
        return last_hidden(self.trunk, batch)

    def value_of(self, hidden: Tensor) -> Tensor:
        """The values of hidden states."""
        return _values(self.head, hidden)


class SharedCritic(nn.Module):
    """A value head on the policy's trunk. Its only parameters are the head's: only the head is saved.

    `hidden` sends no gradient to the policy. The policy's own pass gives its hidden states to `value_of`, with
    gradient.
    """

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        # In a tuple, so that it is not registered as a submodule.
        self._unregistered_policy: tuple[nn.Module] = (policy,)
        self.head = _value_head(policy)

    @property
    def trunk(self) -> nn.Module:
        """The policy's decoder."""
        decoder: nn.Module = cast(Any, self._unregistered_policy[0]).get_decoder()
        return decoder

    def images(self) -> ImagePass:
        """A pass over images, without gradient."""
        return ImagePass(self._unregistered_policy[0], trained=False)

    def hidden(self, batch: MicroBatch) -> Tensor:
        """The hidden states of a micro-batch [rows, width, hidden], without gradient."""
        with torch.no_grad():
            return last_hidden(self.trunk, batch)

    def value_of(self, hidden: Tensor, trunk_weight: float = 1.0) -> Tensor:
        """The values of hidden states; `trunk_weight` scales the gradient into the trunk, not into the head."""
        return _values(self.head, hidden.detach() + trunk_weight * (hidden - hidden.detach()))


def _value_head(policy: nn.Module) -> nn.Linear:
    """Initialised to zero: an untrained critic must not invent differences between states."""
    parameter = next(policy.parameters())
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    head = nn.Linear(_hidden_size(policy), 1, device=parameter.device, dtype=dtype)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


VALUE_REACH = 256
"""About how far one optimizer step can move a value, in learning rates, whatever the model's width and the size of its
hidden states. A step changes every weight of the head by about the rate, so a value by the rate times the sum of a
hidden state's entries. Without scaling these are 600 in SmolLM2-135M and 3,900 in Qwen2.5-Coder-1.5B: a rate of 1e-4
would let the second's values jump by 0.4 in each step, where rewards are between 0 and 1."""


def _values(head: nn.Linear, hidden: Tensor) -> Tensor:
    features = features_of(hidden.to(head.weight.dtype))
    values: Tensor = head(features * _reach(hidden.shape[-1])).squeeze(-1).float()
    return values


def _reach(width: int) -> float:
    """The factor on features before a head that is trained by gradient reads them."""
    return VALUE_REACH / width


def features_of(hidden: Tensor) -> Tensor:
    """Hidden states normalised to a common size: the input of every value head."""
    return nn.functional.rms_norm(hidden, (hidden.shape[-1],))


def correct_head(head: nn.Linear, hidden_M: Tensor, errors_M: Tensor, group_M: Tensor, *, share: float) -> bool:
    """Move a head that is trained by gradient part of the way to where its errors are explained in closed form.

    `errors_M` are returns minus values. Where only their mean generalises from one group to the others, the ridge is
    infinite and only the bias moves. Returns False when no error is finite.
    """
    device = _float64_device(hidden_M.device)
    ridge = RidgeValues(head.in_features, decay=1.0, device=device)
    ridge.fit(features_of(hidden_M.float()).to(device), errors_M.to(device), group_M.to(device))
    if not ridge.is_fitted:
        return False
    solved = ridge.head()
    with torch.no_grad():
        head.weight.add_((share / _reach(head.in_features)) * solved.weights[None].to(head.weight))
        head.bias.add_(share * solved.bias.reshape(1).to(head.bias))
    return True


def _float64_device(device: torch.device) -> torch.device:
    """The device on which normal equations are solved: some accelerators have no float64."""
    return device if device.type == "cuda" else torch.device("cpu")


DECAY = 0.7
"""The factor on earlier batches' sums per batch, for a critic in closed form."""


class ClosedFormCritic:
    """A value head on the policy's trunk, solved from sums instead of trained: it has no model and no optimizer.

    See `agent_r1.algorithms.ridge`. No gradient reaches the policy. Where states within a step are valued too
    (`within_steps`), the head also reads the hidden state at the beginning of the step: in the middle of a call a
    hidden state encodes the next characters and little about how the episode will end.
    """

    def __init__(self, policy: nn.Module, *, within_steps: bool) -> None:
        device = _float64_device(next(policy.parameters()).device)
        self.trunk: nn.Module = cast(Any, policy).get_decoder()
        self._policy = policy
        self.within_steps = within_steps
        width = _hidden_size(policy) * (2 if within_steps else 1)
        self.ridge = RidgeValues(width, decay=DECAY, device=device)

    def hidden(self, batch: MicroBatch) -> Tensor:
        """The hidden states of a micro-batch [rows, width, hidden], without gradient."""
        with torch.no_grad():
            return last_hidden(self.trunk, batch)

    def images(self) -> ImagePass:
        """A pass over images, without gradient."""
        return ImagePass(self._policy, trained=False)

    def fit(self, hidden_M: Tensor, begin_M: Tensor, returns_M: Tensor, episode_M: Tensor) -> tuple[Tensor, Tensor]:
        """Fit to a batch's states. Returns their values [M] on the CPU, none fitted to its own episode's return, and
        the values that the earlier batches alone would have given them.

        `begin_M` is the index of the state at the beginning of each one's step.
        """
        device = self.ridge.errors.device
        features_M = features_of(hidden_M.float()).to(device)
        if self.within_steps:
            features_M = torch.cat([features_M, features_M[begin_M.to(device)]], 1)
        earlier_M = self.ridge.predict(features_M)
        return self.ridge.fit(features_M, returns_M.to(device), episode_M.to(device)).cpu(), earlier_M.cpu()

    def value_of(self, hidden: Tensor) -> Tensor:
        """The values of states in which a step begins, fitted to all batches so far; 0 before the first."""
        features = features_of(hidden.float()).to(self.ridge.errors.device)
        return self.ridge.predict(torch.cat([features, features], -1) if self.within_steps else features)

    def state_dict(self) -> dict[str, Any]:
        """The sums over the batches so far."""
        return self.ridge.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.ridge.load_state_dict(state)


TrainedCritic = Critic | SharedCritic
"""A critic that learns by gradient steps."""

AnyCritic = TrainedCritic | ClosedFormCritic


def make_critic(policy: nn.Module, settings: CriticConfig, *, within_steps: bool) -> AnyCritic:
    """The critic that `algorithm.critic.kind` names, for a policy that has no adapters yet.

    `within_steps`: the estimator needs values before all action tokens, not only before the first of a step.
    """
    if settings.kind == "closed_form":
        return ClosedFormCritic(policy, within_steps=within_steps)
    return SharedCritic(policy) if settings.kind == "shared" else Critic(policy)


def _hidden_size(policy: nn.Module) -> int:
    return int(cast(Any, policy).config.get_text_config().hidden_size)
