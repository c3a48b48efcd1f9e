"""Timing updates, and holding the gradient on token tries against the one on padded rows."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn

from agent_r1.config import Config, load_config
from agent_r1.learner import Experience, TorchLearner, make_compute
from agent_r1.learner.packing import MicroBatch
from agent_r1.models import checkpoint_layers, choose_device, compile_layers
from benchmarks.common.sample_models import SampleModel
from benchmarks.common.workloads import grpo_learner


@cache
def training_config(model: SampleModel, overrides: tuple[str, ...]) -> Config:
    """A run's configuration, for the keys that decide how an update is computed."""
    return load_config(None, [f"model.path='{model.source}'", *overrides])


def with_trainer(config: Config, **keys: Any) -> Config:
    """The same with other keys of `trainer`."""
    return replace(config, trainer=replace(config.trainer, **keys))


def make_learner(model: SampleModel, config: Config) -> TorchLearner:
    """A learner as a training run with this configuration makes it."""
    if config.model.lora.rank:
        raise ValueError("model.lora: these rows train all weights, and their FLOPs are counted so")
    policy = model.load(getattr(torch, config.model.dtype), choose_device(config.trainer.device))
    if config.trainer.compile:
        compile_layers(cast(Any, policy).get_decoder())
    if config.trainer.gradient_checkpointing:
        checkpoint_layers(policy)
    return grpo_learner(policy, make_compute(config, policy))


def packed(learner: TorchLearner, experience: Experience) -> list[MicroBatch]:
    """What goes through the model in one update."""
    return list(learner.models.compute.pack(experience.samples, range(len(experience.samples))))


def update_seconds(learner: TorchLearner, experience: Experience, repeats: int) -> list[float]:
    """Seconds of whole updates (credit, packing, passes, optimizer), after one that compiles and warms up."""
    learner.learn_sync(experience, step=0)
    return [_seconds(lambda: learner.learn_sync(experience, step=0)) for _ in range(repeats)]


def _seconds(work: Callable[[], Any]) -> float:
    synchronise()
    started = time.perf_counter()
    work()
    synchronise()
    return time.perf_counter() - started


def synchronise() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def median_and_fastest(seconds: Sequence[float]) -> dict[str, float]:
    """How long it takes."""
    return {"seconds": statistics.median(seconds), "fastest_seconds": min(seconds)}


# --- gradients ------------------------------------------------------------------------------------------------------


class _Keeper(torch.optim.Optimizer):
    """In place of an optimizer: keeps the gradients and leaves the weights alone."""

    def __init__(self, policy: nn.Module) -> None:
        super().__init__(policy.parameters(), {"lr": 0.0})
        self._names = [name for name, _ in policy.named_parameters()]
        self.gradients: dict[str, Tensor] = {}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Keep."""
        parameters = self.param_groups[0]["params"]
        self.gradients = {
            name: parameter.grad.detach().clone()
            for name, parameter in zip(self._names, parameters, strict=True)
            if parameter.grad is not None
        }


def gradients(learner: TorchLearner, experience: Experience) -> dict[str, Tensor]:
    """The gradients of one update, by parameter; the weights stay as they are."""
    keeper = _Keeper(learner.policy)
    learner.policy_optimizer = keeper  # type: ignore[assignment]
    learner.learn_sync(experience, step=0)
    return keeper.gradients


def gradient_errors(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """||found - expected|| / ||expected|| of each parameter. A gradient of exactly 0 can only be met exactly."""
    errors = {}
    for name, reference in expected.items():
        difference, size = float((found[name] - reference).norm()), float(reference.norm())
        errors[name] = difference / size if size else (0.0 if difference == 0 else float("inf"))
    return errors


def trie_gradient_errors(model: SampleModel, config: Config, experience: Experience) -> dict[str, float]:
    """How far the gradient on tries is from the one on one padded row per step, in plain float32."""
    exact = with_trainer(config, precision="float32", compile=False)
    plain = replace(exact, model=replace(config.model, dtype="float32"))
    learner = make_learner(model, plain)
    with _full_float32():
        on_tries = gradients(_packing(learner, plain, "trie"), experience)
        on_rows = gradients(_packing(learner, plain, "rows"), experience)
    return gradient_errors(on_tries, on_rows)


def _packing(learner: TorchLearner, config: Config, packing: str) -> TorchLearner:
    """The same policy with batches packed in this way and gradients left unclipped."""
    compute = make_compute(with_trainer(config, packing=packing), learner.policy)
    return grpo_learner(learner.policy, compute, gradient_clip=math.inf)


@contextmanager
def _full_float32() -> Iterator[None]:
    """No TF32: its rounding would hide what is compared."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
