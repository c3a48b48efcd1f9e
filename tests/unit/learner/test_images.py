"""Images in the learner: log-probs, values and gradients are those of plain passes over pixels."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from agent_r1.config import OptimizerConfig
from agent_r1.data import DemonstrationRow
from agent_r1.errors import DataError, EngineError
from agent_r1.learner.compute import Compute
from agent_r1.learner.critics import ClosedFormCritic, Critic, SharedCritic
from agent_r1.learner.imitation import fit_demonstrations
from agent_r1.learner.packing import TRIE_ATTENTION, Packer, Sample, build_rows, pack, pack_tries
from agent_r1.learner.scoring import hidden_before, score_micro_batch, score_samples, value_of_states
from agent_r1.models import ImagePass, freeze_vision, set_attention, vision_family
from agent_r1.types import Observation, Step, TokenIds
from tests.helpers.hand_made import CPU, TOKEN_GAE, experience_of, make_learner, make_step, make_trajectory
from tests.helpers.vision_models import FAMILIES, FEW_FIRST, make_image, make_vlm, plain_inputs, plain_logprobs

PACKERS: dict[str, Packer] = {
    "rows": partial(pack, max_tokens=96),
    "tries": partial(pack_tries, max_tokens=256),
    "tries, cut": partial(pack_tries, max_tokens=48),
    "tries, end to end": partial(pack_tries, max_tokens=96, row_tokens=48, width_multiple=8, end_to_end=True),
}


def compute_of(packing: str) -> Compute:
    return Compute(device=CPU, pack=PACKERS[packing])


def episodes(family: str) -> list[Sample]:
    """Two episodes of a group, which branch after an image and see different ones, one of another task whose first
    prompt differs in its image alone, and one without images."""
    first, second, third = make_image(family, 1), make_image(family, 2, size=5), make_image(family, 3)
    prompt = (5, 6, *first.token_ids, 7)
    long = (*prompt, 8, 9, 10, *second.token_ids, 11)
    return [
        Sample.of_step(prompt, (8, 9)),
        Sample.of_step(long, (12, 13, 14)),
        Sample.of_step(prompt, (9,)),
        Sample.of_step((*prompt, 9, 15, *third.token_ids, 11), (16,)),
        Sample.of_step((5, 6, *third.token_ids, 7), (8, 9)),
        Sample.of_step((5, 6, 7), (8,)),
    ]


def step_of(model: Any, prompt: TokenIds, action: TokenIds) -> Step:
    """A step as an engine would have sampled it."""
    logprobs = plain_logprobs(model, prompt + action, range(len(prompt), len(prompt + action)))
    bare = make_step(model, (5,), action)
    return replace(
        bare, observation=Observation(token_ids=prompt), prompt_ids=prompt, rollout_logprobs=tuple(logprobs.tolist())
    )


def expected_logprobs(model: Any, samples: list[Sample]) -> Tensor:
    return torch.cat([plain_logprobs(model, sample.token_ids, sample.action_positions) for sample in samples])


def trained_gradients(model: Any) -> dict[str, Tensor]:
    return {name: entry.grad for name, entry in model.named_parameters() if entry.grad is not None}


@contextmanager
def counted_images(model: Any) -> Iterator[list[int]]:
    """How many images, or tiles, each call of the tower gets."""
    family = vision_family(model.config)
    assert family is not None
    calls: list[int] = []
    hook = model.get_submodule(family.tower).register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(len(kwargs.get("pixel_values", args[0] if args else ()))),
        with_kwargs=True,
    )
    try:
        yield calls
    finally:
        hook.remove()


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_of_rows_and_tries_are_those_of_the_plain_model(family: str) -> None:
    model, samples = make_vlm(family), episodes(family)
    expected = expected_logprobs(model, samples)
    set_attention(model, TRIE_ATTENTION)
    for packing in PACKERS:
        torch.testing.assert_close(score_samples(model, samples, compute_of(packing)), expected, atol=1e-4, rtol=0)


def test_prompts_that_differ_in_an_image_share_what_comes_before_it_and_no_more() -> None:
    samples = episodes("smolvlm")
    [row] = build_rows(samples, [0, 4], row_tokens=1000)
    assert len(row) == len(samples[0]) + len(samples[4]) - 2
    # With ids that do not come from the content, they would share all but their actions.
    third = make_image("smolvlm", 3, key=make_image("smolvlm", 1).key)
    [mistaken] = build_rows([samples[0], Sample.of_step((5, 6, *third.token_ids, 7), (8, 9))], [0, 1], row_tokens=1000)
    assert len(mistaken) == len(samples[0])


@pytest.mark.parametrize("family", FEW_FIRST)
@pytest.mark.parametrize("trained", ["none", "projector", "all"])
def test_gradients_of_several_micro_batches_are_those_of_a_plain_backward(family: str, trained: str) -> None:
    model, samples = make_vlm(family), episodes(family)
    freeze_vision(model, trained)
    plain = copy.deepcopy(model)
    for sample in samples:
        logits = plain(**plain_inputs(plain, sample.token_ids)).logits[0].log_softmax(-1)
        sum(logits[place - 1, sample.token_ids[place]] for place in sample.action_positions).backward()
    expected = trained_gradients(plain)
    family_of = vision_family(model.config)
    assert family_of is not None
    assert {family_of.is_projector(name) for name in expected if family_of.owns(name)} == {
        "none": set(),
        "projector": {True},
        "all": {True, False},
    }[trained]
    set_attention(model, TRIE_ATTENTION)
    compute, images = compute_of("tries, cut"), ImagePass(model, apart=True)
    batches = list(compute.micro_batches(samples, range(len(samples))))
    assert len(batches) > 1
    for batch in batches:
        score_micro_batch(model, batch, compute, images=images).logprobs_N.sum().backward()
    images.backward()
    found = trained_gradients(model)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-3 * float(gradient.abs().max()) + 1e-6, rtol=1e-3)


def test_an_image_goes_through_the_tower_once_per_pass_and_once_at_all_when_the_tower_is_frozen() -> None:
    samples = episodes("smolvlm")
    num_tiles = 2 + 5 + 2
    for trained, passes in (("projector", 1), ("all", 2)):
        model = make_vlm("smolvlm")
        freeze_vision(model, trained)
        with counted_images(model) as tiles:
            for _ in range(2):
                score_samples(model, samples, compute_of("tries, cut"))
        assert sum(tiles) == passes * num_tiles


def test_features_of_a_frozen_tower_are_made_again_after_its_weights_changed() -> None:
    model, samples = make_vlm("llava"), episodes("llava")
    freeze_vision(model, "projector")
    score_samples(model, samples, compute_of("rows"))
    model.load_state_dict(make_vlm("llava", seed=1).state_dict())
    expected = expected_logprobs(model, samples)
    torch.testing.assert_close(score_samples(model, samples, compute_of("rows")), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["smolvlm", "qwen2_vl"])
@pytest.mark.parametrize("kind", [Critic, SharedCritic, partial(ClosedFormCritic, within_steps=False)])
def test_critics_read_the_states_that_the_plain_model_is_in(family: str, kind: Any) -> None:
    model, samples = make_vlm(family), episodes(family)
    hidden = [
        model(**plain_inputs(model, sample.token_ids), output_hidden_states=True).hidden_states[-1][0].detach()
        for sample in samples
    ]
    expected = torch.cat(
        [
            states[[place - 1 for place in sample.action_positions]]
            for sample, states in zip(samples, hidden, strict=True)
        ]
    )
    set_attention(model, TRIE_ATTENTION)
    critic = kind(model)
    everywhere = torch.ones(len(expected), dtype=torch.bool)
    found = hidden_before(critic, samples, compute_of("tries, cut"), everywhere)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
    if kind is Critic:
        torch.nn.init.normal_(critic.head.weight)
        values = value_of_states(critic, [sample.token_ids for sample in samples], compute_of("tries"))
        last = torch.stack([states[-1] for states in hidden])
        torch.testing.assert_close(values, critic.value_of(last).detach(), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("critic", [None, Critic, SharedCritic])
def test_an_update_trains_the_projector_and_leaves_a_frozen_tower(critic: Any) -> None:
    model, image = make_vlm("smolvlm"), make_image("smolvlm", 1)
    freeze_vision(model, "projector")
    before = copy.deepcopy(model.state_dict())
    trajectories = [
        make_trajectory([step_of(model, (5, *image.token_ids, 6), (7, 8 + member))], outcome=float(member))
        for member in range(2)
    ]
    critics: dict[str, Any] = {} if critic is None else {"critic": critic(model), "estimator": TOKEN_GAE}
    learner = make_learner(model, **critics)
    metrics = learner.learn_sync(experience_of(*trajectories), step=0)
    assert metrics["loss/updates"] == 1.0
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert any(name.startswith("model.connector") for name in changed)
    assert not any(name.startswith("model.vision_model") for name in changed)


@pytest.mark.whole
def test_demonstrations_with_images_are_learned() -> None:
    model, samples = make_vlm("smolvlm"), episodes("smolvlm")
    rows = [DemonstrationRow(token_ids=sample.token_ids, actions=sample.action_positions) for sample in samples]
    losses: list[float] = []
    fit_demonstrations(
        model,
        [[row] for row in rows],
        steps=12,
        batch_size=len(rows),
        learning_rate=3e-3,
        optimizer=OptimizerConfig(),
        compute=compute_of("tries"),
        seed=0,
        on_step=lambda step, loss: losses.append(loss),
    )
    assert losses[-1] < 0.7 * losses[0]


def test_an_action_with_an_image_in_it_is_refused() -> None:
    image = make_image("smolvlm", 1)
    sample = Sample.of_step((5, 6), (7, *image.token_ids))
    for packing in PACKERS.values():
        with pytest.raises(DataError, match="an action has an image in it"):
            list(packing([sample], [0]))


def test_a_text_model_refuses_samples_with_images(tiny_model: Any) -> None:
    with pytest.raises(EngineError, match="the samples have images, and LlamaForCausalLM reads none"):
        score_samples(tiny_model, episodes("smolvlm"), compute_of("rows"))
