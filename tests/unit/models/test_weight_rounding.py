"""Small updates arrive: trained weights are float32, and adapters reach an engine of coarse weights unmerged."""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from agent_r1.config import LoraConfig, OptimizerConfig, load_config
from agent_r1.engines.local import LocalEngine
from agent_r1.engines.local.runner import ModelRunner
from agent_r1.errors import EngineError
from agent_r1.learner.critics import Critic, SharedCritic
from agent_r1.learner.models import make_models
from agent_r1.learner.optimizer import guarded_step, make_optimizer
from agent_r1.learner.scoring import score_samples
from agent_r1.models.fused_projections import fuse_projections
from agent_r1.models.lora import add_adapters, find_targets, merged_weights
from agent_r1.models.unmerged_adapters import AdaptedLinear
from agent_r1.registry import recipe_folder
from agent_r1.training import check_model, load_components, make_plan
from agent_r1.types import SamplingParams
from tests.helpers import commands
from tests.helpers.hand_made import (
    TOKEN_GAE,
    experience_of,
    make_critic,
    make_learner,
    make_shared_critic,
    random_batch,
    rows_on_cpu,
    sharpened,
    token_variety,
    weights_of,
)
from tests.helpers.tiny_runs import tiny_overrides
from tests.integration.test_runs import same_weights as same_export


@pytest.fixture
def policy(tiny_model: LlamaForCausalLM) -> LlamaForCausalLM:
    """Its weights are numbers that bfloat16 can hold."""
    return sharpened(tiny_model).to(torch.bfloat16).float()


def movement(model: nn.Module, start: dict[str, Tensor]) -> Tensor:
    return torch.cat([(weight.double() - start[name].double()).flatten() for name, weight in weights_of(model).items()])


def cosine(one: Tensor, other: Tensor) -> float:
    return float(nn.functional.cosine_similarity(one.flatten().double(), other.flatten().double(), dim=0))


# --- updates ----------------------------------------------------------------------------------------------------------


def after_updates(model: nn.Module, learning_rate: float, steps: int = 300) -> nn.Module:
    """The model after small updates with gradients that agree on a direction, as those of a run do."""
    optimizer = make_optimizer(model, OptimizerConfig(weight_decay=0.0), learning_rate)
    generator = torch.Generator().manual_seed(0)
    parameters = list(model.parameters())
    directions = [torch.randn(parameter.shape, generator=generator) for parameter in parameters]
    for _ in range(steps):
        for parameter, direction in zip(parameters, directions, strict=True):
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.grad = (direction + noise).to(parameter.dtype)
        guarded_step(optimizer, parameters, loss=torch.tensor(0.0), gradient_clip=1.0, learning_rate=learning_rate)
    return model


@pytest.mark.whole
@pytest.mark.parametrize("learning_rate", [1e-6, 1e-5])
def test_small_updates_of_a_bfloat16_model_arrive(policy: LlamaForCausalLM, learning_rate: float) -> None:
    start = weights_of(policy)
    coarse = after_updates(copy.deepcopy(policy).to(torch.bfloat16), learning_rate)
    exact = after_updates(policy, learning_rate)
    arrived, meant = movement(coarse, start), movement(exact, start)
    assert float(meant.norm()) > 0
    assert float(arrived.norm() / meant.norm()) >= 0.99
    assert cosine(arrived, meant) >= 0.99


@pytest.mark.whole
@pytest.mark.parametrize("learning_rate", [1e-6, 1e-5])
def test_the_updates_of_a_learner_arrive_in_a_bfloat16_policy(policy: LlamaForCausalLM, learning_rate: float) -> None:
    start, moved = weights_of(policy), []
    for own in (copy.deepcopy(policy).to(torch.bfloat16), copy.deepcopy(policy)):
        learner = make_learner(own, optimizer=OptimizerConfig(learning_rate=learning_rate, gradient_clip=1e9))
        for step in range(4):
            learner.learn_sync(experience_of(*random_batch(policy, seed=step)), step=step)
        moved.append(movement(own, start))
    assert float(moved[0].norm() / moved[1].norm()) == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("make", [make_critic, make_shared_critic])
def test_critics_of_a_bfloat16_policy_are_trained_in_float32(policy: LlamaForCausalLM, make: Any) -> None:
    own = copy.deepcopy(policy).to(torch.bfloat16)
    critic: Critic | SharedCritic = make(own)
    learner = make_learner(own, estimator=TOKEN_GAE, critic=critic)
    learner.learn_sync(experience_of(*random_batch(policy)), step=0)
    assert {parameter.dtype for parameter in critic.parameters()} == {torch.float32}
    assert {parameter.dtype for parameter in own.parameters()} == {torch.float32}


@pytest.mark.parametrize("make", [make_critic, make_shared_critic])
def test_critics_learn_beside_adapters_on_a_bfloat16_base(policy: LlamaForCausalLM, make: Any) -> None:
    own = copy.deepcopy(policy).to(torch.bfloat16)
    critic = make(own)
    add_adapters(own, LoraConfig(rank=4), seed=0)
    learner = make_learner(own, estimator=TOKEN_GAE, critic=critic)
    before = weights_of(critic)
    learner.learn_sync(experience_of(*random_batch(policy)), step=0)
    assert float(movement(critic, before).norm()) > 0
    assert {p.dtype for p in own.parameters() if not p.requires_grad} == {torch.bfloat16}


def test_a_reference_says_what_a_bfloat16_policy_says_at_the_start(tmp_path: Path, model_folder: Path) -> None:
    recipe, *overrides = tiny_overrides(tmp_path, model_folder, "model.dtype=bfloat16", "algorithm.kl.coefficient=0.1")
    with recipe_folder(Path(recipe)):
        plan = make_plan(load_config(recipe, overrides))
        parts = load_components(plan, check_model(plan))
    models = make_models(plan.config, parts.policy, plan.algorithm)
    learner = make_learner(models.policy)
    assert learner.policy is models.policy
    assert models.compute.autocast_dtype == torch.bfloat16
    samples = experience_of(*random_batch(models.policy)).samples
    assert models.reference is not None
    assert torch.equal(
        score_samples(models.policy, samples, models.compute), score_samples(models.reference, samples, models.compute)
    )


@pytest.mark.whole
@pytest.mark.parametrize("preset", ["grpo", "ppo"])
def test_a_resumed_bfloat16_run_equals_the_uninterrupted_one(tmp_path: Path, model_folder: Path, preset: str) -> None:
    run = tiny_overrides(tmp_path, model_folder, f"algorithm={preset}", "model.dtype=bfloat16", "trainer.steps=2")
    run += ["optimizer.learning_rate=1e-4", "algorithm.minibatches=2"]
    commands.train(*run, "run.name=whole", quiet=True, reward=token_variety)
    commands.train(*run, "trainer.steps=1", quiet=True, reward=token_variety)
    commands.train(*run, quiet=True, reward=token_variety)
    assert same_export(tmp_path / "whole", tmp_path / "tiny")
    states = [
        torch.load(tmp_path / name / "checkpoints" / "step_2" / "state.pt", weights_only=True)["learner"]["policy"]
        for name in ("whole", "tiny")
    ]
    assert {tensor.dtype for tensor in states[0].values()} == {torch.float32}
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


# --- adapters in the engine -------------------------------------------------------------------------------------------


def slightly_moved(policy: nn.Module, targets: tuple[str, ...] = ("all-linear",)) -> nn.Module:
    """A copy with adapters that have moved as far as some steps of 1e-5 move them."""
    own = copy.deepcopy(policy)
    add_adapters(own, LoraConfig(rank=4, alpha=8.0, targets=list(targets)), seed=0)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in own.parameters():
            if parameter.requires_grad:
                parameter.add_(1e-4 * torch.randn(parameter.shape, generator=generator))
    return own


def coarse_runner(model: nn.Module, own: nn.Module, targets: tuple[str, ...] = ("all-linear",)) -> ModelRunner:
    ranks = dict.fromkeys(find_targets(model, targets), 4)
    runner = ModelRunner(model, max_requests=2, context_length=64, dtype=torch.bfloat16, adapters=ranks)
    runner.load_weights(merged_weights(own, apart=ranks))
    return runner


def effective_changes(model: Any, start: nn.Module) -> dict[str, Tensor]:
    """By how much each layer of an engine's model differs from the base: weight and adapter, put together exactly."""
    base, found = dict(start.named_parameters()), {}
    for name, part in model.named_modules():
        if hasattr(part, "lora_A"):
            weight = part.weight.double() + part.lora_B.double() @ part.lora_A.double()
            found[name] = weight - base[f"{name}.weight"].detach().double()
    return found


@pytest.mark.parametrize("fused", [False, True], ids=["apart", "fused"])
@pytest.mark.parametrize("targets", [("all-linear",), ("q_proj", "v_proj", "down_proj")], ids=str)
def test_what_adapters_learned_reaches_a_bfloat16_engine(
    policy: LlamaForCausalLM, targets: tuple[str, ...], fused: bool
) -> None:
    own = slightly_moved(policy, targets)
    runner = coarse_runner(policy, own, targets)
    if fused:  # as on a GPU
        assert fuse_projections(runner._model) == 2 * 2
        runner.load_weights(merged_weights(own, apart=find_targets(policy, targets)))
    changes, merged = effective_changes(runner._model, policy), dict(merged_weights(own))
    assert sorted(changes) == sorted(find_targets(policy, targets))
    start = weights_of(policy)
    for name, change in changes.items():
        meant = merged[f"{name}.weight"].double() - start[f"{name}.weight"].double()
        assert cosine(change, meant) >= 0.99
        assert float(change.norm() / meant.norm()) == pytest.approx(1.0, abs=0.01)
    rounded = torch.cat(
        [
            (merged[f"{name}.weight"].bfloat16().double() - start[f"{name}.weight"].double()).flatten()
            for name in changes
        ]
    )
    together = torch.cat([change.flatten() for change in changes.values()])
    assert cosine(rounded, together) < 0.9, "otherwise merging would do as well"


def test_outputs_of_an_adapted_layer_move_as_far_as_the_adapter_says() -> None:
    """Outputs are rounded too, but differently for each input: over many inputs the adapter's part shows."""
    torch.manual_seed(0)
    plain = nn.Linear(32, 24, bias=False).to(torch.bfloat16)
    layer = AdaptedLinear(plain, 4)
    layer.lora_A.normal_(0.0, 0.1)
    layer.lora_B.normal_(0.0, 1e-3)
    inputs = torch.randn(20_000, 32, dtype=torch.bfloat16)
    with torch.no_grad():
        difference = (layer(inputs) - plain(inputs)).double()
        merged = nn.Linear(32, 24, bias=False).to(torch.bfloat16)
        merged.weight.copy_(plain.weight + layer.lora_B @ layer.lora_A)
        rounded = (merged(inputs) - plain(inputs)).double()
    found, by_merging = (torch.linalg.lstsq(inputs.double(), change).solution.T for change in (difference, rounded))
    meant = layer.lora_B.double() @ layer.lora_A.double()
    assert cosine(found, meant) >= 0.99
    assert cosine(by_merging, meant) < 0.9


def test_fused_adapters_say_what_single_ones_say_and_take_new_weights_in_place(policy: LlamaForCausalLM) -> None:
    targets = ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj")
    ranks = dict.fromkeys(find_targets(policy, targets), 4)
    engines = [ModelRunner(policy, max_requests=2, context_length=64, adapters=ranks) for _ in range(2)]
    single, fused = (engine._model for engine in engines)
    fuse_projections(fused)
    places = {name: tensor.data_ptr() for name, tensor in fused.state_dict().items()}
    assert fused.state_dict().keys() == single.state_dict().keys()
    for scale in (1.0, -2.0):
        own = slightly_moved(policy, targets)
        with torch.no_grad():
            for parameter in own.parameters():
                if parameter.requires_grad:
                    parameter.mul_(500 * scale)
        for engine in engines:
            engine.load_weights(merged_weights(own, apart=ranks))
        assert {name: tensor.data_ptr() for name, tensor in fused.state_dict().items()} == places
        merged = copy.deepcopy(policy)
        merged.load_state_dict(dict(merged_weights(own)))
        hidden = torch.randn(1, 5, 32)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            one, other, plain = (getattr(m.model.layers[1].self_attn, name) for m in (single, fused, merged))
            torch.testing.assert_close(one(hidden), plain(hidden), atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(other(hidden), plain(hidden), atol=1e-4, rtol=1e-4)


@pytest.mark.whole
def test_fused_adapters_compile_into_one_graph(policy: LlamaForCausalLM) -> None:
    runner = coarse_runner(policy, slightly_moved(policy))
    mlp, hidden = runner._model.model.layers[0].mlp, torch.randn(1, 3, 32, dtype=torch.bfloat16)
    fuse_projections(runner._model)
    expected = mlp(hidden)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(mlp, backend="eager", fullgraph=True)(hidden), expected)


def test_adapters_go_beside_plain_linear_layers_only(policy: LlamaForCausalLM) -> None:
    with pytest.raises(EngineError, match=r"'model\.norm' is a LlamaRMSNorm; adapters go beside plain linear layers"):
        ModelRunner(policy, max_requests=1, context_length=64, adapters={"model.norm": 4})


def test_a_bfloat16_engine_with_adapters_answers_as_the_policy_does(policy: LlamaForCausalLM) -> None:
    own = slightly_moved(policy.eval())
    with torch.no_grad():
        for parameter in own.parameters():
            if parameter.requires_grad:
                parameter.mul_(500)
    ranks = dict.fromkeys(find_targets(policy, ["all-linear"]), 4)

    async def answers() -> list[Any]:
        engine = LocalEngine(policy, dtype=torch.bfloat16, adapters=ranks)
        assert engine.adapters == set(ranks)
        sampling = SamplingParams(max_tokens=16, seed=1)
        before = await engine.generate((5, 9, 2, 33, 7), sampling)
        await engine.update_weights(merged_weights(own, apart=engine.adapters), 1)
        return [before, await engine.generate((5, 9, 2, 33, 7), sampling)]

    before, after = asyncio.run(answers())
    assert before.token_ids != after.token_ids
    ids = torch.tensor([(5, 9, 2, 33, 7, *after.token_ids)])
    with torch.no_grad():
        logprobs = own(input_ids=ids, use_cache=False).logits[0, 4:-1].log_softmax(-1)
    expected = logprobs.gather(1, ids[0, 5:, None]).squeeze(1)
    torch.testing.assert_close(torch.tensor(after.logprobs), expected, atol=0.15, rtol=0.05)


@pytest.mark.whole
@pytest.mark.parametrize(("dtype", "num_apart"), [("bfloat16", 14), ("float32", 0)])
def test_a_run_keeps_adapters_apart_where_the_engine_is_coarse(
    tmp_path: Path, model_folder: Path, dtype: str, num_apart: int
) -> None:
    run = tiny_overrides(tmp_path, model_folder, "model.lora.rank=2", "trainer.steps=2", f"model.dtype={dtype}")
    recipe, *overrides = run
    with recipe_folder(Path(recipe)):
        plan = make_plan(load_config(recipe, overrides))
        parts = load_components(plan, check_model(plan))
    assert len(parts.engine.adapters) == num_apart
    commands.train(*run, "optimizer.learning_rate=1e-3", quiet=True, reward=token_variety)
    lines = [json.loads(line) for line in (tmp_path / "tiny" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["offpolicy/logprob_difference"] < 0.05
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "tiny" / "hf").state_dict().keys()


def test_scores_under_bfloat16_are_near_those_in_float32(policy: LlamaForCausalLM) -> None:
    """What is trained is float32; passes are made in bfloat16 by autocast."""
    samples = experience_of(*random_batch(policy)).samples
    compute = rows_on_cpu()
    exact = score_samples(policy, samples, compute)
    coarse = score_samples(
        policy, samples, type(compute)(device=compute.device, pack=compute.pack, autocast_dtype=torch.bfloat16)
    )
    assert 0 < float((exact - coarse).abs().max()) < 0.2
