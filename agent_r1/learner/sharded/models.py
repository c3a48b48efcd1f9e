"""Shards the models of a run over ranks, with FSDP2: weights, gradients and optimizer state.

Every decoder layer is a unit whose weights are gathered when it computes, and the rest of the model (embeddings, last
norm, head) is the root. The head belongs to the root also where it is tied to the embeddings: a root on the decoder
alone would untie it. Gradients are summed over the ranks, never averaged: the weight of a token in the loss is fixed
for the whole update before it is shared out. Value heads stay whole on every rank, and their gradients are summed when
the update is clipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from agent_r1.config import ShardingConfig
from agent_r1.learner.critics import Critic
from agent_r1.learner.models import Models
from agent_r1.learner.sharded.roots import ROOT_CALL
from agent_r1.models import train_in_float32


def shard_models(models: Models, mesh: DeviceMesh, settings: ShardingConfig) -> None:
    """Shard policy, reference and critic in place; they are whole on every rank, and copied from each other already."""
    for module in (models.policy, models.critic):
        if isinstance(module, nn.Module):
            train_in_float32(module)
    _shard_root(models.policy, cast(Any, models.policy).get_decoder(), mesh, settings)
    if models.reference is not None and models.reference is not models.policy:
        _shard_root(models.reference, cast(Any, models.reference).get_decoder(), mesh, settings)
    if isinstance(models.critic, Critic):
        _shard_root(models.critic, models.critic.trunk, mesh, settings, whole=set(models.critic.head.parameters()))


def _shard_root(
    root: nn.Module,
    decoder: nn.Module,
    mesh: DeviceMesh,
    settings: ShardingConfig,
    whole: set[nn.Parameter] | None = None,
) -> None:
    offload: OffloadPolicy = CPUOffloadPolicy() if settings.cpu_offload else OffloadPolicy()
    for layer in cast(Any, decoder).layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=settings.reshard_after_forward, offload_policy=offload)
    fully_shard(root, mesh=mesh, offload_policy=offload, ignored_params=whole)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            # A factor of 1 alone asks for a reduction that gloo does not have.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    setattr(root, ROOT_CALL, _run)
    register_fsdp_forward_method(root, ROOT_CALL)
    gather_around: Callable[[Callable[[], Any]], Any] = getattr(root, ROOT_CALL)

    def call(work: Callable[[], Any]) -> Any:
        result = gather_around(work)
        if not torch.is_grad_enabled():
            cast(Any, root).reshard()  # after a pass with gradient the backward pass does it
        return result

    for module in (root, decoder):
        setattr(module, ROOT_CALL, call)


def _run(work: Callable[[], Tensor]) -> Tensor:
    return work()


def plain_class(model: nn.Module) -> type[nn.Module]:
    """The class of a model before it was sharded."""
    kinds = [kind for kind in type(model).__mro__ if issubclass(kind, nn.Module)]
    return next(kind for kind in kinds if not issubclass(kind, FSDPModule))
