"""Micro-batches shared out over ranks: equally many each, nothing lost, nothing twice, the costs of a round alike."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch

from agent_r1.config import load_config
from agent_r1.errors import ConfigError
from agent_r1.learner.packing import MicroBatch, Packer, Sample, pack, pack_tries
from agent_r1.learner.sharded import Ranks, open_ranks
from agent_r1.learner.sharded.balance import empty_like, halved, share_out, token_cost
from agent_r1.models import fuse_projections
from agent_r1.training.ranks import check_ranks
from tests.helpers.hand_made import random_ids
from tests.helpers.sharded_cases import make_policy

COST = token_cost(16)


def some_samples(count: int) -> list[Sample]:
    rng = random.Random(count)
    return [
        Sample.of_step(random_ids(rng, rng.randint(2, 60)), random_ids(rng, rng.randint(1, 9))) for _ in range(count)
    ]


@pytest.mark.parametrize(
    "packer",
    [
        partial(pack, max_tokens=120),
        partial(pack_tries, max_tokens=120, row_tokens=80),
        partial(pack_tries, max_tokens=256, row_tokens=80, width_multiple=64, end_to_end=True),
    ],
)
@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_every_token_is_one_ranks_and_all_ranks_compute_as_often(packer: Packer, size: int, count: int) -> None:
    samples = some_samples(count)
    whole = list(packer(samples, range(count)))
    shares = [share_out(whole, rank=rank, size=size, cost=COST) for rank in range(size)]
    assert len({len(share) for share in shares}) == 1
    tokens = torch.cat([batch.tokens_N for share in shares for batch in share])
    assert sorted(tokens.tolist()) == list(range(sum(len(sample.action_positions) for sample in samples)))
    for batch in (batch for share in shares for batch in share):
        ids = batch.input_ids[batch.rows_N, batch.action_columns_N]
        assert torch.equal(ids, batch.targets_N)
        assert batch.columns_N.shape == batch.tokens_N.shape


def batch_of(rows: int, width: int) -> MicroBatch:
    samples = [Sample.of_step((1,) * (width - 1), (2,)) for _ in range(rows)]
    [batch] = pack(samples, range(rows), max_tokens=rows * width)
    return batch


def test_a_round_has_micro_batches_of_neighbouring_cost() -> None:
    batches = [batch_of(1, width) for width in (90, 10, 80, 20, 50, 40)]
    shares = [share_out(batches, rank=rank, size=2, cost=COST) for rank in range(2)]
    widths = [[batch.input_ids.shape[1] for batch in share] for share in shares]
    assert widths == [[90, 40, 20], [80, 50, 10]]


def test_cost_is_tokens_times_length_not_a_count() -> None:
    assert COST(batch_of(1, 400)) > 1.5 * COST(batch_of(4, 100))


def test_one_micro_batch_of_several_rows_is_cut_for_all_ranks() -> None:
    shares = [share_out([batch_of(8, 30)], rank=rank, size=4, cost=COST) for rank in range(4)]
    assert [len(share[0].input_ids) for share in shares] == [2, 2, 2, 2]


def test_tries_in_one_row_are_cut_where_one_begins() -> None:
    samples = [Sample.of_step((n, 1, 2), (3, 4)) for n in range(10, 18)]
    whole = list(pack_tries(samples, range(8), max_tokens=100, row_tokens=5, width_multiple=8, end_to_end=True))
    assert [batch.input_ids.shape for batch in whole] == [(1, 40)]
    shares = [share_out(whole, rank=rank, size=4, cost=COST) for rank in range(4)]
    for [batch] in shares:
        assert batch.input_ids.tolist() == [[batch.input_ids[0, 0], 1, 2, 3, 4, batch.input_ids[0, 5], 1, 2, 3, 4]]
        assert batch.ends is not None
        assert batch.ends.tolist() == [[5] * 5 + [10] * 5]
        assert batch.columns_N.tolist() == [2, 3, 7, 8]


def test_what_depends_on_its_beginning_is_not_cut() -> None:
    samples = [Sample.of_step((1, 2, 3), (n,)) for n in range(10, 14)]
    [whole] = pack_tries(samples, range(4), max_tokens=100, width_multiple=16, end_to_end=True)
    assert halved(whole) is None
    first, second = (share_out([whole], rank=rank, size=2, cost=COST)[0] for rank in range(2))
    assert (len(first.tokens_N), len(second.tokens_N)) == (4, 0)
    assert halved(empty_like(whole)) is None


def test_an_empty_micro_batch_is_one_row_without_action_tokens() -> None:
    empty = empty_like(batch_of(3, 5))
    assert empty.input_ids.shape == (1, 5)
    assert not len(empty.tokens_N)


def test_a_fused_projection_reads_the_weights_that_its_parts_have_now() -> None:
    """Sharding replaces the parameters of modules; those from before would get the gradients otherwise."""
    policy = make_policy()
    assert fuse_projections(policy, trained=True) == 4
    part = policy.model.layers[0].self_attn.q_proj
    hidden = torch.randn(1, 3, 32)
    before = part._product.whole(hidden)
    part.weight = torch.nn.Parameter(2 * part.weight.detach())
    assert torch.allclose(part._product.whole(hidden)[..., :32], 2 * before[..., :32], atol=1e-6)


class TwoRanks(Ranks):
    size = 2


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("rollout.max_staleness=1", "rollout.max_staleness=1 with engine.name=local"),
        ("agent.remote=true", "agent.remote=true"),
        ("agent.port=8000", "agent.port=8000"),
    ],
)
def test_what_several_ranks_cannot_do_is_refused_by_name(override: str, named: str) -> None:
    config = load_config(None, ["model.path=none", override])
    with pytest.raises(ConfigError, match=named.replace(".", r"\.")):
        check_ranks(config, TwoRanks())
    check_ranks(config, Ranks())


def test_staleness_is_allowed_where_the_first_rank_rolls_out_for_all() -> None:
    config = load_config(None, ["model.path=none", "rollout.max_staleness=1", "engine.name=mine"])
    check_ranks(config, TwoRanks())


def test_one_process_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with open_ranks(load_config(None, ["model.path=none"])) as ranks:
        assert (ranks.rank, ranks.size, ranks.is_sharded) == (0, 1, False)
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("overrides", "environment", "named"),
    [
        (["trainer.sharding.mode=off"], {}, "trainer.sharding.mode=off"),
        ([], {}, "without RANK"),
        (["trainer.device=cuda:1"], {"RANK": "0"}, "trainer.device=cuda:1 is one GPU"),
    ],
)
def test_processes_that_cannot_form_a_group_are_refused(
    overrides: list[str], environment: dict[str, str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=named), open_ranks(load_config(None, ["model.path=none", *overrides])):
        pass
