"""`ShardPeers`: several processes that compute one update together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from agent_r1.learner.packing.samples import MicroBatch
from agent_r1.learner.sharded.balance import Cost, share_out
from agent_r1.learner.sharded.peers import Peers
from agent_r1.learner.sharded.tensors import gradients, is_sharded, local, square_sums

ValueT = TypeVar("ValueT")


class ShardPeers(Peers):
    """The ranks of a mesh. `objects` is a group that exchanges tensors of the host (gloo)."""

    def __init__(self, mesh: DeviceMesh, objects: dist.ProcessGroup, cost: Cost) -> None:
        self._mesh = mesh
        self._objects = objects
        self._cost = cost
        self._rank, self._size = mesh.get_local_rank(), mesh.size()

    def share(self, batches: Iterable[MicroBatch]) -> list[MicroBatch]:
        """This rank's micro-batches; see `share_out`."""
        return share_out(batches, rank=self._rank, size=self._size, cost=self._cost)

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, a new tensor."""
        result = tensor.detach().clone()
        dist.all_reduce(result, group=self._group_of(result))
        return result

    def totals(self, sums: Mapping[str, float], *, equal: Sequence[str] = ()) -> dict[str, float]:
        """Sums by name over all ranks; see `Peers.totals`."""
        result: dict[str, float] = {}
        for number, entries in enumerate(self._everyone(dict(sums))):
            for name, amount in entries.items():
                if name not in equal:
                    result[name] = result.get(name, 0.0) + amount
                elif number == 0:
                    result[name] = amount
        return result

    def placed(self, rows: Tensor, at: Tensor, count: int) -> Tensor:
        """The rows of all ranks: each row is one rank's, and adding zeros changes nothing."""
        whole = rows.new_zeros(count, *rows.shape[1:])
        whole[at] = rows
        dist.all_reduce(whole, group=self._group_of(whole))
        return whole

    def together(self, passes: list[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
        """The passes of all ranks: the n-th of each belongs to the same update, in which every token is one rank's."""
        own_passes = [tuple(tensor.cpu() for tensor in entry) for entry in passes]
        return [entry for entries in zip(*self._everyone(own_passes), strict=True) for entry in entries]

    def clip(self, parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
        """Sum the gradients of whole parameters over the ranks, then clip all gradients by their common norm."""
        all_gradients = gradients(parameters)
        for gradient in all_gradients:
            if not is_sharded(gradient):
                dist.all_reduce(gradient, group=self._group_of(gradient))
        device = local(all_gradients[0]).device
        shards, whole = square_sums(all_gradients, device)
        dist.all_reduce(shards, group=self._group_of(shards))
        norm = (shards + whole).sqrt()
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_([local(gradient) for gradient in all_gradients], factor)
        return norm

    def norm(self, tensors: list[Any]) -> float:
        """The norm of all numbers of some tensors, as one would have it; infinite where one is not finite."""
        if not tensors:
            return 0.0
        shards, whole = (amount.double() for amount in square_sums(tensors, local(tensors[0]).device))
        dist.all_reduce(shards, group=self._group_of(shards))
        root = float((shards + whole).sqrt())
        return root if root == root else float("inf")

    def _everyone(self, value: ValueT) -> list[ValueT]:
        values: list[Any] = [None] * self._size
        dist.all_gather_object(values, value, group=self._objects)
        return cast(list[ValueT], values)

    def _group_of(self, tensor: Tensor) -> dist.ProcessGroup:
        return self._mesh.get_group() if tensor.device.type == self._mesh.device_type else self._objects
