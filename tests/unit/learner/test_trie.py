"""Trie-packed training equals one padded row per step: layout, visibility, log-probs, values, gradients (rule 3)."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agent_r1.config import CriticConfig
from agent_r1.errors import ConfigError
from agent_r1.learner.compute import Compute
from agent_r1.learner.critics import Critic
from agent_r1.learner.packing.samples import MicroBatch, Packer, Sample, pack
from agent_r1.learner.packing.trie import TrieRow, build_rows, pack_tries
from agent_r1.learner.packing.trie_attention import block_mask, dense_mask
from agent_r1.learner.scoring import hidden_before, score_samples, value_of_states
from agent_r1.models.lm_head import action_scores
from agent_r1.models.load import checkpoint_layers
from agent_r1.types import TokenIds, Trajectory
from tests.helpers.fuzzing import cases
from tests.helpers.hand_made import (
    CPU,
    assert_same_gradients,
    experience_of,
    gradients_of,
    make_critic,
    make_learner,
    make_shared_critic,
    make_step,
    make_trajectory,
    random_group,
    random_ids,
    sharpened,
)

ROWS: Packer = partial(pack, max_tokens=4096)


def on_cpu(packer: Packer, temperature: float = 1.0) -> Compute:
    return Compute(device=CPU, pack=packer, temperature=temperature)


@pytest.fixture
def policy(tiny_model: LlamaForCausalLM) -> LlamaForCausalLM:
    return sharpened(tiny_model)


# --- layout --------------------------------------------------------------------------------------------------------


def test_the_example_of_the_docstring() -> None:
    samples = [Sample(token_ids=ids, action_positions=(0 + len(ids) - 1,)) for ids in ((1, 2, 3), (1, 2, 4, 5), (7, 7))]
    [row] = build_rows(samples, range(3), row_tokens=100)
    assert row.token_ids.tolist() == [1, 2, 3, 4, 5, 7, 7]
    assert row.positions.tolist() == [0, 1, 2, 2, 3, 0, 1]
    assert row.ends.tolist() == [5, 5, 3, 5, 5, 7, 7]
    assert {index: path.tolist() for index, path in row.members} == {0: [0, 1, 2], 1: [0, 1, 3, 4], 2: [5, 6]}


steps = st.tuples(
    st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple), st.lists(st.integers(0, 2), max_size=4).map(tuple)
)
batches = st.lists(steps, min_size=1, max_size=12)


def paths_of(batch: MicroBatch) -> dict[int, tuple[TokenIds, list[int]]]:
    """By token of the whole batch: the ids visible from the column before it, in order, and their positions."""
    assert batch.ends is not None
    assert batch.position_ids is not None
    found = {}
    for token, row, column in zip(
        batch.tokens_N.tolist(), batch.rows_N.tolist(), batch.columns_N.tolist(), strict=True
    ):
        seen = [j for j in range(column + 1) if column < batch.ends[row, j]]
        found[token] = (tuple(batch.input_ids[row, seen].tolist()), batch.position_ids[row, seen].tolist())
    return found


@settings(deadline=None, max_examples=cases(60))
@given(batches, st.integers(11, 40), st.integers(4, 40), st.none() | st.integers(1, 40), st.booleans())
def test_each_token_sees_exactly_what_came_before_it_in_its_step(
    rows: list[tuple[TokenIds, TokenIds]], budget: int, row_tokens: int, portion: int | None, end_to_end: bool
) -> None:
    samples = [Sample.of_step(*row) for row in rows]
    packed = pack_tries(
        samples,
        range(len(samples)),
        max_tokens=budget,
        row_tokens=row_tokens,
        portion_tokens=portion,
        end_to_end=end_to_end,
    )
    batches = list(packed)
    assert not end_to_end or all(len(batch.input_ids) == 1 for batch in batches)
    found = {token: path for batch in batches for token, path in paths_of(batch).items()}
    expected = {}
    for sample in samples:
        for place in sample.action_positions:
            expected[len(expected)] = (sample.token_ids[:place], list(range(place)))
    assert found == expected
    targets = {t: i for b in batches for t, i in zip(b.tokens_N.tolist(), b.targets_N.tolist(), strict=True)}
    assert [targets[n] for n in range(len(targets))] == [token for _, action in rows for token in action]
    assert all(batch.input_ids.numel() <= budget for batch in batches)


@settings(deadline=None, max_examples=cases(40))
@given(batches)
def test_a_row_with_room_for_all_holds_each_distinct_prefix_once(rows: list[tuple[TokenIds, TokenIds]]) -> None:
    samples = [Sample.of_step(*row) for row in rows]
    prefixes = {s.token_ids[: n + 1] for s in samples if s.action_positions for n in range(len(s))}
    built = build_rows(samples, range(len(samples)), row_tokens=10_000)
    assert sum(map(len, built)) == len(prefixes)


def test_a_trie_larger_than_a_row_is_cut_and_repeats_what_is_shared() -> None:
    samples = [Sample.of_step(tuple(range(10)), (20 + n, 30 + n)) for n in range(4)]
    assert [len(row) for row in build_rows(samples, range(4), row_tokens=14)] == [14, 14]
    assert [len(row) for row in build_rows(samples, range(4), row_tokens=1000)] == [18]


def test_only_chosen_samples_with_actions_are_packed() -> None:
    samples = [Sample.of_step((1,), (2,)), Sample.of_step((1, 2), ()), Sample.of_step((1, 3), (4,))]
    [batch] = pack_tries(samples, [1, 2], max_tokens=100)
    assert batch.tokens_N.tolist() == [1]
    assert batch.input_ids.tolist() == [[1, 3, 4]]
    assert list(pack_tries(samples, [1], max_tokens=100)) == []


def test_a_step_longer_than_the_micro_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"5 tokens does not fit trainer\.micro_batch_tokens=4"):
        list(pack_tries([Sample.of_step((1, 2, 3), (4, 5))], [0], max_tokens=4))


def test_padding_is_seen_by_nobody_and_sees_itself() -> None:
    samples = [Sample.of_step((1, 2, 3), (4,)), Sample.of_step((5, 6), (7,))]
    [batch] = pack_tries(samples, [0, 1], max_tokens=100, row_tokens=4)
    assert batch.input_ids.tolist() == [[1, 2, 3, 4], [5, 6, 7, 0]]
    mask = dense_mask(batch, None)
    assert mask[1, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]]


def test_tries_end_to_end_in_one_row_are_padded_once() -> None:
    samples = [Sample.of_step((1, 2, 3), (4,)), Sample.of_step((5, 6), (7,))]
    [batch] = pack_tries(samples, [0, 1], max_tokens=100, row_tokens=4, width_multiple=8, end_to_end=True)
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5, 6, 7, 0]]
    assert batch.ends is not None
    assert batch.ends.tolist() == [[4, 4, 4, 4, 7, 7, 7, 8]]
    assert batch.position_ids is not None
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 2, 0]]
    assert (batch.columns_N.tolist(), batch.action_columns_N.tolist()) == ([2, 5], [3, 6])


def test_rows_that_would_be_mostly_padding_go_into_a_micro_batch_of_their_own() -> None:
    samples = [Sample.of_step(tuple(range(1, 9)), (50,)), Sample.of_step((60, 61), (62,))]
    assert [b.input_ids.shape[1] for b in pack_tries(samples, [0, 1], max_tokens=100, row_tokens=9)] == [9, 3]


@pytest.fixture
def sorted_samples(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many samples were sorted, each time some were."""
    numbers: list[int] = []

    def counted(samples: Sequence[Sample], chosen: Sequence[int], *, row_tokens: int) -> list[TrieRow]:
        numbers.append(len(chosen))
        return build_rows(samples, chosen, row_tokens=row_tokens)

    monkeypatch.setattr("agent_r1.learner.packing.trie.build_rows", counted)
    return numbers


def test_the_first_micro_batch_waits_for_one_portion_of_the_samples_and_not_for_all(sorted_samples: list[int]) -> None:
    samples = [Sample.of_step((n, 1, 2), (3,)) for n in range(100)]
    batches = pack_tries(samples, range(100), max_tokens=16, portion_tokens=40)
    assert next(batches).tokens_N.tolist() == [0, 1, 2, 3]
    assert sorted_samples == [10]
    assert sorted(n for batch in batches for n in batch.tokens_N.tolist()) == list(range(4, 100))


def test_samples_that_wait_are_not_sorted_again_for_every_few_that_come(sorted_samples: list[int]) -> None:
    samples = [Sample.of_step(tuple(range(50)), (n,)) for n in range(400)]  # all fit one row
    list(pack_tries(samples, range(400), max_tokens=1000, portion_tokens=100))
    assert sum(sorted_samples) < 3 * 400


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("width_multiple", [1, 256])
@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("end_to_end", [False, True])
def test_a_block_mask_lists_exactly_the_blocks_somebody_sees(
    window: int | None, width_multiple: int, block: int, end_to_end: bool
) -> None:
    rng = random.Random(5)
    samples = [s for _ in range(6) for s in conversation(rng, random_ids(rng, 150), 4)]
    for batch in pack_tries(
        samples,
        range(len(samples)),
        max_tokens=4096,
        row_tokens=700,
        width_multiple=width_multiple,
        end_to_end=end_to_end,
    ):
        dense, blocks = dense_mask(batch, window), block_mask(batch, window, block)
        rows, _, width, _ = dense.shape
        num_blocks = -(-width // block)
        gap = num_blocks * block - width
        squares = torch.nn.functional.pad(dense[:, 0], (0, gap, 0, gap)).view(
            rows, num_blocks, block, num_blocks, block
        )
        some, every = squares.any(4).any(2), squares.all(4).all(2)
        listed = torch.zeros(rows, num_blocks, num_blocks, dtype=torch.bool)
        full = torch.zeros_like(listed)
        for row in range(rows):
            for q in range(num_blocks):
                listed[row, q, blocks.kv_indices[row, 0, q, : blocks.kv_num_blocks[row, 0, q]].long()] = True
                assert blocks.full_kv_num_blocks is not None
                assert blocks.full_kv_indices is not None
                full[row, q, blocks.full_kv_indices[row, 0, q, : blocks.full_kv_num_blocks[row, 0, q]].long()] = True
        assert not (listed & full).any()
        assert not (some & ~(listed | full)).any()
        assert not (full & ~every).any()
        if window is None:
            assert ((listed | full) == (some | torch.eye(num_blocks, dtype=torch.bool))).all()
            inner = num_blocks - 1 if gap else num_blocks  # a last block that is not whole cannot be seen wholly
            assert (full == every)[:, :inner, :inner].all()
        index = torch.arange(width)
        seen = blocks.mask_mod(
            torch.arange(rows)[:, None, None], torch.zeros(1), index[None, :, None], index[None, None, :]
        )
        assert torch.equal(seen, dense[:, 0])


# --- every architecture --------------------------------------------------------------------------------------------

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
ARCHITECTURES: dict[str, Any] = {
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "mistral with a window": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4)),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **SIZES,
            head_dim=8,
            sliding_window=4,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            final_logit_softcapping=5.0,
        )
    ),
}


def conversation(rng: random.Random, shared: TokenIds, num_steps: int) -> list[Sample]:
    """The steps of one episode; each prompt continues the turn before it."""
    prompt, samples = shared, []
    for _ in range(num_steps):
        action = random_ids(rng, rng.randint(1, 4))
        samples.append(Sample.of_step(prompt, action))
        prompt = prompt + action + random_ids(rng, rng.randint(1, 3))
    return samples


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_log_probs_and_values_equal_those_of_padded_rows_in_every_architecture(name: str) -> None:
    torch.manual_seed(0)
    model = sharpened(ARCHITECTURES[name]()).eval()
    rng = random.Random(1)
    samples = [s for _ in range(4) for s in conversation(rng, (5, 6, 7, 8), 3)]
    tries: Packer = partial(pack_tries, max_tokens=120, row_tokens=60)
    found, expected = (score_samples(model, samples, on_cpu(p, 0.7)) for p in (tries, ROWS))
    assert found.tolist() == pytest.approx(expected.tolist(), abs=2e-5)
    assert float(expected.std()) > 0.1
    critic = make_critic(model)
    everywhere_N = torch.ones(sum(len(sample.action_positions) for sample in samples), dtype=torch.bool)
    found, expected = (critic.value_of(hidden_before(critic, samples, on_cpu(p), everywhere_N)) for p in (tries, ROWS))
    assert found.tolist() == pytest.approx(expected.tolist(), abs=2e-5)
    states = [sample.token_ids for sample in samples]
    found, expected = (value_of_states(critic, states, on_cpu(p)) for p in (tries, ROWS))
    assert found.tolist() == pytest.approx(expected.tolist(), abs=2e-5)


# --- rule 3: loss and gradient -------------------------------------------------------------------------------------


def rewritten_history(policy: nn.Module, rng: random.Random, outcome: float, group_id: int) -> Trajectory:
    """Two steps that share their history, and a third whose history was cut in the middle."""
    start, first, tool = random_ids(rng, 6), random_ids(rng, 3), random_ids(rng, 4)
    second, third = random_ids(rng, 2), random_ids(rng, 3)
    steps = [
        make_step(policy, start, first, reward=0.1),
        make_step(policy, start + first + tool, second, reward=0.2),
        make_step(policy, start[:2] + tool + second, third),
    ]
    return make_trajectory(steps, outcome, group_id=group_id)


def mixed_batch(policy: nn.Module) -> list[Trajectory]:
    rng = random.Random(7)
    batch = [t for g in range(2) for t in random_group(policy, 20 + g, [1.0, 0.0, 0.5], group_id=g)]
    batch += [rewritten_history(policy, rng, outcome, 2) for outcome in (1.0, 0.0)]
    return [*batch, batch[0]]  # the same rollout twice: two samples, one path


@pytest.mark.parametrize(
    "packing",
    [
        {"max_tokens": 4096},
        {"max_tokens": 60, "row_tokens": 60},
        {"max_tokens": 120, "row_tokens": 40},
        {"max_tokens": 120, "row_tokens": 40, "width_multiple": 16, "end_to_end": True},
    ],
)
@pytest.mark.parametrize("kind", ["group", "critic", "shared critic", "entropy and KL"])
def test_the_gradient_of_a_trie_equals_that_of_padded_rows(
    policy: LlamaForCausalLM, kind: str, packing: dict[str, Any]
) -> None:
    experience = experience_of(*mixed_batch(policy))
    found = []
    for packer in (partial(pack_tries, **packing), ROWS):
        own = copy.deepcopy(policy)
        options: dict[str, Any] = {"packer": packer}
        if kind == "critic":
            options |= {"estimator": {"name": "token_gae"}, "critic": make_critic(own)}
        elif kind == "shared critic":
            settings_ = CriticConfig(kind="shared")
            options |= {"estimator": {"name": "step_gae"}, "critic": make_shared_critic(own)}
            options |= {"critic_settings": settings_}
        elif kind == "entropy and KL":
            options |= {"entropy_coefficient": 0.1}
        learner = make_learner(own, **options)
        metrics = learner.learn_sync(experience, step=0)
        gradients = gradients_of(learner.policy_optimizer)
        if learner.critic_optimizer is not None:
            gradients += gradients_of(learner.critic_optimizer)
        found.append((metrics, gradients))
    (metrics, gradients), (expected_metrics, expected) = found
    assert_same_gradients(gradients, expected, tolerance=1e-4)
    for name in ("loss/policy", "policy/entropy", "policy/gradient_norm"):
        assert metrics[name] == pytest.approx(expected_metrics[name], rel=1e-4, abs=1e-6)


def test_an_update_says_how_many_tokens_it_computed(policy: LlamaForCausalLM) -> None:
    """On tries each prefix once; on rows every prompt again, and the padding behind the shorter ones."""
    experience = experience_of(*mixed_batch(policy))
    lengths = [len(sample) for sample in experience.samples]
    together = [path for sample in experience.samples for path in accumulate(sample.token_ids, lambda a, b: (a, b))]
    metrics = make_learner(copy.deepcopy(policy), packer=partial(pack_tries, max_tokens=4096)).learn_sync(
        experience, step=0
    )
    assert metrics["perf/update_tokens"] == len(set(together))
    metrics = make_learner(copy.deepcopy(policy), packer=partial(pack, max_tokens=100_000)).learn_sync(
        experience, step=0
    )
    assert metrics["perf/update_tokens"] == max(lengths) * len(lengths)


def test_a_group_of_long_episodes_costs_a_fraction_of_its_padded_rows(policy: LlamaForCausalLM) -> None:
    """Five turns, eight members, a preamble of 64 tokens: what is computed is at most a fifth."""
    rng = random.Random(3)
    preamble = random_ids(rng, 64)
    samples = [s for _ in range(8) for s in conversation(rng, preamble, 5)]
    computed = sum(b.input_ids.numel() for b in pack_tries(samples, range(len(samples)), max_tokens=2048))
    padded = sum(b.input_ids.numel() for b in pack(samples, range(len(samples)), max_tokens=2048))
    assert computed * 5 < padded


# --- the head ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_logits", [97 * 16, 2**26])
@pytest.mark.parametrize("name", ["qwen2", "gemma3"])
def test_the_chunked_head_equals_the_plain_one_forward_and_backward(
    name: str, chunk_logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_r1.models.lm_head.CHUNK_LOGITS", {"cpu": chunk_logits})
    torch.manual_seed(0)
    model = sharpened(ARCHITECTURES[name]()).eval()
    ids = torch.randint(1, 97, (3, 15), generator=torch.Generator().manual_seed(0))
    targets = ids[:, 1:].reshape(-1)
    weight_N, entropy_weight_N = torch.randn(42), torch.randn(42)

    def plain() -> tuple[torch.Tensor, torch.Tensor]:
        distribution = (model(input_ids=ids, use_cache=False).logits[:, :-1].reshape(42, -1) / 0.7).log_softmax(-1)
        return distribution.gather(1, targets[:, None]).squeeze(1), -(distribution.exp() * distribution).sum(-1)

    def chunked() -> tuple[torch.Tensor, torch.Tensor]:
        hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[:, :-1].reshape(42, -1)
        return action_scores(model, hidden, targets, temperature=0.7)

    found = []
    for compute in (chunked, plain):
        model.zero_grad()
        logprobs_N, entropy_N = compute()
        (weight_N * logprobs_N + entropy_weight_N * entropy_N).sum().backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        found.append((logprobs_N.detach(), entropy_N.detach(), gradients))
    (logprobs, entropy, gradients), (expected_logprobs, expected_entropy, expected) = found
    assert logprobs.tolist() == pytest.approx(expected_logprobs.tolist(), abs=1e-5)
    assert entropy.tolist() == pytest.approx(expected_entropy.tolist(), abs=1e-5)
    assert_same_gradients(gradients, expected, tolerance=1e-4)


def test_uniform_logits_have_the_entropy_of_their_number(tiny_model: LlamaForCausalLM) -> None:
    hidden = torch.zeros(1, 32)
    logprobs, entropy = action_scores(tiny_model, hidden, torch.tensor([3]), temperature=1.0)
    number = torch.tensor(float(tiny_model.config.vocab_size)).log().item()
    assert (logprobs.item(), entropy.item()) == pytest.approx((-number, number), abs=1e-4)


def test_a_critic_of_its_own_needs_no_policy_pass(policy: LlamaForCausalLM) -> None:
    critic, passes = Critic(policy), []
    policy.get_decoder().register_forward_hook(lambda *arguments: passes.append(1))
    hidden_before(critic, [Sample.of_step((5, 6), (7,))], on_cpu(ROWS), torch.tensor([True]))
    assert not passes


# --- precision and memory ------------------------------------------------------------------------------------------


def test_checkpointed_layers_have_the_same_gradient_and_keep_dropout_off(policy: LlamaForCausalLM) -> None:
    policy.config.attention_dropout = 0.5
    experience = experience_of(*mixed_batch(policy.eval()))
    found = []
    for checkpointed in (False, True):
        own = copy.deepcopy(policy).eval()
        recomputed: list[int] = []
        if checkpointed:
            checkpoint_layers(own)
            own.model.layers[0].mlp.register_forward_pre_hook(lambda *arguments, seen=recomputed: seen.append(1))
        learner = make_learner(own, packer=partial(pack_tries, max_tokens=4096))
        learner.learn_sync(experience, step=0)
        found.append(gradients_of(learner.policy_optimizer))
    assert len(recomputed) == 2
    assert_same_gradients(found[1], found[0], tolerance=1e-5)


def test_autocast_scores_in_bfloat16_and_leaves_the_weights_alone(policy: LlamaForCausalLM) -> None:
    samples = conversation(random.Random(1), (5, 6, 7), 3)
    exact = score_samples(policy, samples, on_cpu(ROWS))
    rounded = score_samples(policy, samples, replace(on_cpu(ROWS), autocast_dtype=torch.bfloat16))
    assert rounded.tolist() == pytest.approx(exact.tolist(), abs=0.3)
    assert rounded.tolist() != exact.tolist()
    assert {parameter.dtype for parameter in policy.parameters()} == {torch.float32}
