"""`ShardedLearner`: the learner of a run on several ranks. It computes what `TorchLearner` computes.

Every rank has the whole batch and computes the same credit; the passes are shared out (`ShardPeers`), and weights,
gradients and optimizer state are split (`shard_models`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from agent_r1.algorithms import Algorithm
from agent_r1.config import Config
from agent_r1.errors import ConfigError
from agent_r1.learner.critics import Critic
from agent_r1.learner.learner import TorchLearner
from agent_r1.learner.models import make_models, tune_layers
from agent_r1.learner.sharded.balance import token_cost
from agent_r1.learner.sharded.models import plain_class, shard_models
from agent_r1.learner.sharded.ranks import Ranks
from agent_r1.learner.sharded.shard_peers import ShardPeers
from agent_r1.learner.sharded.tensors import empty_shard, gathered, is_sharded, sharded
from agent_r1.learner.weight_growth import WeightGrowth
from agent_r1.models import (
    Rounding,
    base_fingerprint,
    export_policy,
    merged_weights,
    restore_state,
    saved_state,
    vision_family,
)
from agent_r1.types import SamplingParams

CPU = torch.device("cpu")


class ShardedLearner(TorchLearner):
    """The learner of several processes: each of them has one, and all call the same methods in the same order."""

    def __init__(
        self, *, ranks: Ranks, mesh: DeviceMesh, peers: ShardPeers, base: Tensor | None, **settings: Any
    ) -> None:
        self._ranks = ranks
        self._mesh = mesh
        self._peers = peers
        self._base = base
        super().__init__(**settings)

    def _measured_growth(self) -> WeightGrowth:
        return WeightGrowth(self.policy, norm=self._peers.norm, whole=_full_tensor)

    # --- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state of a learner of one process, with sharded tensors in the place of whole ones."""
        state = super().state_dict()
        for name in ("policy_optimizer", "critic_optimizer"):
            if name in state:
                state[name] = _in_one_group(state[name])
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of any number of ranks: its tensors may be whole or sharded as this rank's are."""
        own_state = dict(state)
        policy, critic = self.policy.state_dict(), self.critic
        if "adapters" in state["policy"]:
            own_state["policy"] = {**state["policy"], "adapters": _as_shards(state["policy"]["adapters"], policy)}
        else:
            own_state["policy"] = _as_shards(state["policy"], policy)
        own_state["policy_optimizer"] = _for_optimizer(state["policy_optimizer"], self.policy_optimizer)
        if isinstance(critic, Critic):
            own_state["critic"] = _as_shards(state["critic"], critic.state_dict())
        if self.critic_optimizer is not None:
            own_state["critic_optimizer"] = _for_optimizer(state["critic_optimizer"], self.critic_optimizer)
        super().load_state_dict(own_state)

    def _saved_policy(self) -> dict[str, Any]:
        return saved_state(self.policy, base=self._base)

    def _restore_policy(self, saved: Mapping[str, Any]) -> None:
        restore_state(self.policy, saved, base=self._base)

    def empty_shard(self, shape: torch.Size, dtype: torch.dtype) -> DTensor:
        """A tensor of a saved state, split over the ranks, to be filled."""
        return empty_shard(shape, dtype, self._mesh, CPU)

    # --- what the training loop needs to know ----------------------------------------------------------------------

    def weights(self, *, unmerged: Collection[str] = ()) -> Iterator[tuple[str, Tensor]]:
        """The policy's weights, whole, gathered in buckets: every rank must take all of them."""
        return merged_weights(self.policy, apart=unmerged, gathered=self._gathered)

    def _gathered(self, named: Any) -> Iterator[tuple[str, Tensor]]:
        return gathered(named, device=self.device)

    def export(
        self, folder: Path, *, tokenizer: Any, config: Config, sampling: SamplingParams | None = None
    ) -> Rounding | None:
        """The first rank writes the policy, of weights that all have gathered; every rank returns or raises alike."""
        whole: dict[str, Tensor] = {}
        copies: dict[int, Tensor] = {}
        for name, tensor in self.weights():
            if self._ranks.is_first:
                whole[name] = copies.setdefault(tensor.data_ptr(), tensor.detach().to(CPU, copy=True))
        return self._ranks.by_first(
            lambda: export_policy(_plain(self.policy, whole), tokenizer, folder, config, sampling=sampling)
        )

    def checkpoint_bytes(self) -> int:
        """About the size of a checkpoint, of all ranks together."""
        modules = [module for module in (self.policy, self.critic) if isinstance(module, nn.Module)]
        return 3 * sum(_bytes(weight) for module in modules for weight in module.parameters() if weight.requires_grad)

    def model_bytes(self) -> int:
        """The size of the whole policy."""
        return sum(_bytes(weight) for weight in self.policy.parameters())


def make_sharded_learner(config: Config, policy: nn.Module, algorithm: Algorithm, ranks: Ranks) -> ShardedLearner:
    """The learner of a run on several ranks; the policy is whole on every rank, and is sharded in place."""
    settings = config.trainer.sharding
    family = vision_family(cast(Any, policy).config)
    if family is not None:
        raise ConfigError(
            f"model.path={config.model.path} is a {family.name}, and models that read images are trained on one rank; "
            "start the run without torchrun"
        )
    models = make_models(config, policy, algorithm)
    if settings.cpu_offload:
        for module in (models.policy, models.reference, models.critic):
            if isinstance(module, nn.Module):
                module.to(CPU)
    base = base_fingerprint(policy) if config.model.lora.rank else None
    tune_layers(config, models)
    mesh = init_device_mesh(models.compute.device.type, (ranks.size,))
    hidden_size = int(cast(Any, policy).config.get_text_config().hidden_size)
    peers = ShardPeers(mesh, ranks.objects, token_cost(hidden_size))
    models = replace(models, compute=replace(models.compute, peers=peers))
    shard_models(models, mesh, settings)
    return ShardedLearner(
        ranks=ranks,
        mesh=mesh,
        peers=peers,
        base=base,
        models=models,
        algorithm=algorithm,
        optimizer=config.optimizer,
        max_skipped_updates=config.trainer.max_skipped_updates,
        total_steps=config.trainer.steps,
        seed=config.trainer.seed,
    )


def _plain(policy: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """The policy as a model that is not sharded and has no adapters, on the CPU."""
    with torch.device("meta"):
        plain = plain_class(policy)(cast(Any, policy).config)
    plain.load_state_dict(dict(weights), assign=True)
    cast(Any, plain).tie_weights()
    cast(Any, plain).generation_config = getattr(policy, "generation_config", None)
    return plain


def _full_tensor(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _as_shards(saved: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, Any]:
    """Saved tensors split as the current ones are."""
    return {name: _like(tensor, current.get(name)) for name, tensor in saved.items()}


def _like(saved: Any, current: Any) -> Any:
    if isinstance(current, DTensor) and isinstance(saved, Tensor) and not is_sharded(saved):
        return sharded(saved, current)
    return saved


def _in_one_group(state: Mapping[str, Any]) -> dict[str, Any]:
    """An optimizer's state with all parameters in one group, as one process has it."""
    groups = state["param_groups"]
    indices = [index for group in groups for index in group["params"]]
    return {"state": state["state"], "param_groups": [{**groups[0], "params": indices}]}


def _for_optimizer(state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """A saved state with the groups of this optimizer, and its means split as the parameters are."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    [settings] = state["param_groups"]
    if len(settings["params"]) != len(parameters):
        raise ValueError(f"{len(settings['params'])} parameters were trained, where this run trains {len(parameters)}")
    groups = [
        {**settings, "params": group["params"], "fused": optimizer_group.get("fused")}
        for group, optimizer_group in zip(optimizer.state_dict()["param_groups"], optimizer.param_groups, strict=True)
    ]
    entries = {
        index: {
            name: value if name == "step" else _like(value, parameters[int(index)]) for name, value in entry.items()
        }
        for index, entry in state["state"].items()
    }
    return {"state": entries, "param_groups": groups}
