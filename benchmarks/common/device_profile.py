"""What a device did while something ran: kernels by kind and by name, and how long it had nothing to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

OTHER = "element by element"
KINDS = (
    (OTHER, ("triton_poi", "triton_red", "triton_per")),  # of the compiler: their names list what they fuse
    ("sample", ("summarise_kernel", "sample_kernel", "bound_kernel", "advance_kernel")),
    ("attention", ("decode_kernel", "prefill_kernel", "merge_kernel", "write_kernel", "append_kernel", "attention")),
    ("optimizer", ("multi_tensor_apply", "Adam")),
    ("copies", ("Memcpy", "Memset", "direct_copy", "aten::copy_")),
    ("matrix products", ("gemm", "nvjet", "cutlass", "sm90_xmma", "cublas", "splitKreduce", "mm", "linear")),
)
"""What is in a kernel's name, looked for in this order."""
LONGEST = 16
"""Kernels that are named."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One kernel, or operator."""

    name: str
    """As the profiler has it."""
    start: float
    """Microseconds."""
    end: float
    """Microseconds."""


@dataclass(frozen=True, kw_only=True)
class DeviceProfile:
    """What was found."""

    busy_seconds: float
    """Seconds in which the device computed something."""
    idle: float
    """Share of the profiled time, from the first kernel to the last, in which the device had nothing to do."""
    kinds: dict[str, float]
    """Share of the device's time by kind."""
    kernels: list[dict[str, Any]]
    """The longest: name, times, mean microseconds, share."""


def kind_of(name: str) -> str:
    """What a kernel does.

    >>> kind_of("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTN"), kind_of("triton_poi_fused_mul_silu_3")
    ('matrix products', 'element by element')
    """
    return next((kind for kind, marks in KINDS if any(mark in name for mark in marks)), OTHER)


def busy_time(pieces: Iterable[Piece]) -> float:
    """Microseconds in which at least one piece was computed.

    >>> busy_time([Piece(name="a", start=0, end=4), Piece(name="b", start=3, end=5), Piece(name="c", start=7, end=8)])
    6
    """
    total, reached = 0.0, float("-inf")
    for piece in sorted(pieces, key=lambda piece: piece.start):
        total += max(0.0, piece.end - max(piece.start, reached))
        reached = max(reached, piece.end)
    return total


def summarise(pieces: Sequence[Piece]) -> DeviceProfile:
    """Add pieces up."""
    kinds: dict[str, float] = {}
    by_name: dict[str, list[float]] = {}
    for piece in pieces:
        length = piece.end - piece.start
        kinds[kind_of(piece.name)] = kinds.get(kind_of(piece.name), 0.0) + length
        by_name.setdefault(piece.name, []).append(length)
    total = sum(kinds.values()) or 1.0
    span = max((piece.end for piece in pieces), default=0.0) - min((piece.start for piece in pieces), default=0.0)
    ranked = sorted(by_name.items(), key=lambda entry: -sum(entry[1]))[:LONGEST]
    return DeviceProfile(
        busy_seconds=busy_time(pieces) / 1e6,
        idle=1.0 - busy_time(pieces) / span if span else 0.0,
        kinds={kind: amount / total for kind, amount in sorted(kinds.items(), key=lambda entry: -entry[1])},
        kernels=[
            {"name": name, "times": len(each), "mean_us": sum(each) / len(each), "share": sum(each) / total}
            for name, each in ranked
        ],
    )


@contextmanager
def profiled(device: torch.device) -> Iterator[list[Piece]]:
    """A list that has, when the block ends, the kernels and copies of a GPU, else the operators that call no others.

    The profiler slows the host: times of the device are true, those of the whole are not.
    """
    on_gpu, pieces = device.type == "cuda", list[Piece]()
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        yield pieces
    for event in profiler.events() or ():
        if event.device_type == DeviceType.CUDA if on_gpu else not event.cpu_children:
            pieces.append(Piece(name=event.name, start=event.time_range.start, end=event.time_range.end))


def show_profile(found: DeviceProfile, console: Console) -> None:
    """The two tables."""
    kinds = Table("kind", "share")
    for kind, share in found.kinds.items():
        kinds.add_row(kind, f"{share:.1%}")
    kernels = Table("kernel", "times", "mean us", "share")
    for entry in found.kernels:
        kernels.add_row(entry["name"][:100], str(entry["times"]), f"{entry['mean_us']:.1f}", f"{entry['share']:.1%}")
    console.print(kinds, kernels)
