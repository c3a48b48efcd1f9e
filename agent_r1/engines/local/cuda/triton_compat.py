"""Triton where it is installed, registration of torch operators, sizes.

Without triton the kernel modules still import; only a launch fails.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

HAS_TRITON = importlib.util.find_spec("triton") is not None
# Any, because triton ships no types; None where it is missing. Kernels resolve both names when they compile.
triton: Any = importlib.import_module("triton") if HAS_TRITON else None
tl: Any = importlib.import_module("triton.language") if HAS_TRITON else None
if TYPE_CHECKING:
    tensor: TypeAlias = Any
    constexpr: TypeAlias = Any
elif HAS_TRITON:
    tensor, constexpr = tl.tensor, tl.constexpr
else:
    tensor = constexpr = None

P = ParamSpec("P")
T = TypeVar("T")


def kernel(function: Callable[..., Any]) -> Any:
    """`triton.jit` if triton is installed; otherwise the plain function, which is never called."""
    return triton.jit(function) if HAS_TRITON else function


def operator(
    fake: Callable[..., Tensor | None], mutates: tuple[str, ...] = ()
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Register a torch operator; `fake` gives the result's shape to a tracer.

    `torch.library.custom_op` would do the same but checks every call in Python, which costs more than the launch.
    """

    def register(function: Callable[P, T]) -> Callable[P, T]:
        name = function.__name__
        schema = torch.library.infer_schema(function, mutates_args=mutates)
        torch.library.define(f"agent_r1::{name}", schema)
        torch.library.impl(f"agent_r1::{name}", ("CUDA", "CPU"), function)
        torch.library.register_fake(f"agent_r1::{name}", fake)
        return cast("Callable[P, T]", getattr(torch.ops.agent_r1, name).default)

    return register


def next_power_of_2(number: int) -> int:
    """The smallest power of two that is at least `number`: 5 gives 8."""
    return 1 << (number - 1).bit_length()
