"""FSDP2 on one GPU (NCCL, one rank): gradients, the engine's weights and checkpoints are those of a plain learner."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from agent_r1.config import load_config
from agent_r1.learner.sharded import Ranks, open_ranks
from tests.helpers.sharded_cases import CASES, flat, loaded, make_case, run_case, save

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32:UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
]
FLOAT32 = "trainer.precision=float32"


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    with open_ranks(load_config(None, ["model.path=none", "trainer.sharding.mode=on"])) as opened:
        yield opened


@pytest.mark.parametrize("case", [case for case in CASES if case != "nan"])
def test_one_rank_has_the_gradients_of_the_plain_learner(case: str, ranks: Ranks) -> None:
    plain = run_case(case, None, FLOAT32, device="cuda")
    found = run_case(case, ranks, FLOAT32, device="cuda")
    for name, expected in plain["gradients"].items():
        assert float(expected.abs().max()) > 0, f"{name} has no gradient"
        difference = float((found["gradients"][name] - expected).abs().max())
        assert difference <= 1e-3 * float(expected.abs().max()), name
    assert found["metrics"] == pytest.approx(plain["metrics"], rel=1e-2, abs=1e-3)
    assert list(found["weights"]) == list(plain["weights"])


@pytest.mark.parametrize("extra", ["trainer.compile=true", "trainer.sharding.cpu_offload=true"])
def test_compiled_and_offloaded_models_learn(extra: str, ranks: Ranks) -> None:
    found = run_case("tied", ranks, extra, device="cuda")
    assert all(float(gradient.abs().max()) > 0 for gradient in found["gradients"].values())
    assert found["skips"] == 0


def test_an_update_that_is_not_finite_is_skipped(ranks: Ranks) -> None:
    assert run_case("nan", ranks, device="cuda")["skips"] == 1


@pytest.mark.parametrize("case", ["tied", "lora", "own_critic"])
def test_checkpoints_of_a_rank_and_of_a_plain_learner_are_the_same(case: str, ranks: Ranks, tmp_path: Path) -> None:
    learner, experience = make_case(case, ranks, device="cuda")
    learner.learn_sync(experience, step=0)
    saved = flat(learner.state_dict())
    save(learner, tmp_path, ranks)
    for reader in (None, ranks):
        state = flat(loaded(case, tmp_path, reader, device="cuda")[0].state_dict())
        different = [
            name
            for name, value in saved.items()
            if isinstance(value, torch.Tensor) and not torch.equal(value.cpu(), state[name].cpu())
        ]
        assert not different
