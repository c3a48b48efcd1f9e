"""Sharded tensors: made of whole ones, made whole again in buckets, and their norm.

FSDP splits the first dimension as `torch.chunk` does: 5 rows over 2 ranks are 3 and 2, over 4 ranks 2, 2, 1 and 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

BUCKET_BYTES = 256 * 2**20
"""About how much is gathered at once: tensor by tensor, the latency of each would be most of the time; all at once, a
GPU would need room for the whole model a second time."""

_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name since torch 2.13


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is split over the ranks."""
    return isinstance(tensor, DTensor)


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor; a tensor that is not sharded is its own part."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def sharded(whole: Tensor, like: DTensor) -> DTensor:
    """A whole tensor, split and placed as another one is. Every rank has the whole tensor, on any device."""
    if whole.shape != like.shape:
        raise ValueError(f"a tensor of shape {tuple(whole.shape)} where {tuple(like.shape)} is expected")
    mesh = like.device_mesh
    part = chunk(whole, mesh.size(), mesh.get_local_rank()).to(local(like).device)
    return _as_dtensor(part.clone(), mesh, whole.shape, like.stride())


def empty_shard(shape: torch.Size, dtype: torch.dtype, mesh: DeviceMesh, device: torch.device) -> DTensor:
    """A sharded tensor to be filled."""
    whole = torch.empty(shape, dtype=dtype, device="meta")
    part = chunk(whole, mesh.size(), mesh.get_local_rank())
    return _as_dtensor(torch.empty(part.shape, dtype=dtype, device=device), mesh, shape, whole.stride())


def _as_dtensor(part: Tensor, mesh: DeviceMesh, shape: torch.Size, stride: tuple[int, ...]) -> DTensor:
    return DTensor.from_local(part, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)


def chunk(whole: Tensor, size: int, rank: int) -> Tensor:
    """The rows that one of `size` ranks has.

    >>> [chunk(torch.arange(5), 4, rank).tolist() for rank in range(4)]
    [[0, 1], [2, 3], [4], []]
    """
    rows = -(-len(whole) // size)
    return whole[min(rank * rows, len(whole)) : min((rank + 1) * rows, len(whole))]


def gathered(named: Iterable[tuple[str, Tensor]], *, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """The tensors made whole on `device`, in order; those that are not sharded pass. Every rank takes part: all of them
    must take the same tensors. A tensor with several names is gathered once, and stays one tensor."""
    entries = list(named)
    times: dict[int, int] = {}
    for _, tensor in entries:
        times[id(tensor)] = times.get(id(tensor), 0) + 1
    tied: dict[int, Tensor] = {}
    start = 0
    while start < len(entries):
        end, room = start, BUCKET_BYTES
        while end < len(entries) and (end == start or room > 0):
            room -= entries[end][1].numel() * entries[end][1].element_size()
            end += 1
        new = {id(tensor): tensor for _, tensor in entries[start:end] if is_sharded(tensor) and id(tensor) not in tied}
        whole = dict(zip(new, _gather([cast(DTensor, tensor) for tensor in new.values()], device), strict=True))
        tied |= {key: tensor for key, tensor in whole.items() if times[key] > 1}
        for name, tensor in entries[start:end]:
            yield name, whole.get(id(tensor), tied.get(id(tensor), tensor))
        start = end


def _gather(tensors: list[DTensor], device: torch.device) -> list[Tensor]:
    """Whole tensors, gathered in one message per type."""
    result: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        members = [index for index, tensor in enumerate(tensors) if tensor.dtype == dtype]
        mesh = tensors[members[0]].device_mesh
        size, group = mesh.size(), mesh.get_group()
        rows = {index: -(-tensors[index].shape[0] // size) if tensors[index].dim() else 1 for index in members}
        sizes = [rows[index] * max(1, tensors[index].shape[1:].numel()) for index in members]
        flat_parts = torch.zeros(sum(sizes), dtype=dtype, device=device)
        for index, part in zip(members, torch.split(flat_parts, sizes), strict=True):
            flat = local(tensors[index]).detach().reshape(-1)
            part[: len(flat)] = flat
        all_parts = torch.empty(size * len(flat_parts), dtype=dtype, device=device)
        _all_gather(all_parts, flat_parts, group=group)
        parts = torch.split(all_parts.view(size, len(flat_parts)), sizes, dim=1)
        for index, part in zip(members, parts, strict=True):
            shape = tensors[index].shape
            result[index] = part.reshape(-1)[: shape.numel()].clone().view(shape)
    return [result[index] for index in range(len(tensors))]


@torch.no_grad()
def square_sums(tensors: Iterable[Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    """The sums of all squares of this rank's parts of the sharded tensors, and of the tensors that are not sharded."""
    sums = [torch.zeros((), device=device), torch.zeros((), device=device)]
    for kind in (True, False):
        parts = [local(tensor) for tensor in tensors if is_sharded(tensor) == kind]
        if parts:
            norms = torch._foreach_norm(parts, dtype=torch.float32)
            sums[not kind] = torch.stack([norm.to(device) for norm in norms]).square().sum()
    return sums[0], sums[1]


def gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """The gradients that are there."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
