"""LoRA: adapters alone are trained, and everyone else sees the plain model they add up to."""

from __future__ import annotations

import asyncio
import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from agent_r1.config import KLConfig, LoraConfig, load_config
from agent_r1.engines.local import LocalEngine
from agent_r1.errors import CheckpointError, ConfigError
from agent_r1.learner.critics import Critic, SharedCritic
from agent_r1.learner.models import make_models
from agent_r1.learner.scoring import score_samples
from agent_r1.models.export import export_model
from agent_r1.models.load import checkpoint_layers
from agent_r1.models.lora import adapters_off, add_adapters, find_targets, merged_weights, restore_state, saved_state
from agent_r1.registry import recipe_folder
from agent_r1.training import check_model, load_components, make_plan
from agent_r1.types import Completion, SamplingParams
from tests.conftest import tiny_config
from tests.helpers import commands
from tests.helpers.hand_made import (
    TOKEN_GAE,
    assert_same_gradients,
    experience_of,
    gradients_of,
    make_critic,
    make_learner,
    make_shared_critic,
    random_batch,
    row_logprobs,
    rows_on_cpu,
    same_weights,
    sharpened,
    token_variety,
    weights_of,
)
from tests.helpers.tiny_runs import tiny_overrides
from tests.integration.test_learning import likes_even_tokens
from tests.integration.test_runs import same_weights as same_export
from tests.integration.test_runs import weights as exported_weights
from tests.unit.engines.test_engine_architectures import ARCHITECTURES

PROMPT = (5, 9, 2, 33, 7)
IDS = torch.tensor([[5, 9, 2, 33, 7, 12, 40]])


@pytest.fixture
def policy(tiny_model: LlamaForCausalLM) -> LlamaForCausalLM:
    return sharpened(tiny_model)


def adapted(model: nn.Module, rank: int = 4, targets: tuple[str, ...] = ("all-linear",)) -> nn.Module:
    """A copy with fresh adapters."""
    own = copy.deepcopy(model)
    add_adapters(own, LoraConfig(rank=rank, alpha=8.0, targets=list(targets)), seed=0)
    return own


def moved(model: nn.Module, rank: int = 4, targets: tuple[str, ...] = ("all-linear",)) -> nn.Module:
    """A copy whose adapters say something."""
    own = adapted(model, rank, targets)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in own.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return own


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=IDS, use_cache=False).logits
    return found


def trained(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def greedy_answer(engine: LocalEngine) -> Completion:
    return asyncio.run(engine.generate(PROMPT, SamplingParams(max_tokens=12, temperature=0.0)))


# --- the policy and the engine's copy ---------------------------------------------------------------------------------


def test_at_the_start_adapters_change_nothing(policy: LlamaForCausalLM) -> None:
    own = adapted(policy)
    assert torch.equal(logits(own), logits(policy))
    merged = dict(merged_weights(own))
    assert merged.keys() == policy.state_dict().keys()
    assert all(torch.equal(merged[name], tensor) for name, tensor in policy.state_dict().items())
    engine = LocalEngine(policy, max_requests=1)
    before = greedy_answer(engine)
    asyncio.run(engine.update_weights(merged_weights(own), 1))
    after = greedy_answer(engine)
    assert (after.token_ids, after.logprobs) == (before.token_ids, before.logprobs)


@pytest.mark.whole
def test_after_an_update_the_engine_says_what_the_trainer_says(policy: LlamaForCausalLM) -> None:
    engine = LocalEngine(policy, max_requests=1)
    before = greedy_answer(engine)
    own = adapted(policy)
    frozen = {name: tensor for name, tensor in weights_of(own).items() if name not in trained(own)}
    learner = make_learner(own)
    for step in range(3):
        learner.learn_sync(experience_of(*random_batch(own)), step=step)
    asyncio.run(engine.update_weights(merged_weights(own), 1))
    after = greedy_answer(engine)
    assert after.logprobs != before.logprobs
    with torch.no_grad():
        expected = row_logprobs(own, PROMPT, after.token_ids)
    torch.testing.assert_close(torch.tensor(after.logprobs), expected, atol=1e-5, rtol=0)
    now = weights_of(own)
    assert all(torch.equal(now[name], tensor) for name, tensor in frozen.items())


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3, one layer with a window"])
def test_merged_weights_are_those_of_the_plain_model(architecture: str) -> None:
    torch.manual_seed(0)
    plain = ARCHITECTURES[architecture](4).eval()
    own = moved(plain)
    before = weights_of(own)
    merged = copy.deepcopy(plain)
    merged.load_state_dict(dict(merged_weights(own)))
    assert same_weights(own, before)
    assert float((logits(merged) - logits(plain)).abs().max()) > 0.1
    torch.testing.assert_close(logits(merged), logits(own), atol=1e-4, rtol=1e-4)


def test_what_is_merged_is_the_weight_and_the_scaled_product() -> None:
    """W = 1, B = [[1], [2]], A = [[3, 4]], alpha / rank = 0.5, worked out by hand."""
    model = nn.Module()
    model.decoder = nn.ModuleDict({"wide": nn.Linear(2, 2)})
    model.head = nn.Linear(2, 2)
    model.get_decoder = lambda: model.decoder  # type: ignore[assignment, misc]
    with torch.no_grad():
        model.decoder["wide"].weight.copy_(torch.eye(2))  # type: ignore[index, operator]
    bias = model.decoder["wide"].bias  # type: ignore[index]
    add_adapters(model, LoraConfig(rank=1, alpha=0.5), seed=0)
    layer: Any = model.decoder["wide"]  # type: ignore[index]
    with torch.no_grad():
        layer.lora_A["default"].weight.copy_(torch.tensor([[3.0, 4.0]]))
        layer.lora_B["default"].weight.copy_(torch.tensor([[1.0], [2.0]]))
    merged = dict(merged_weights(model))
    assert set(merged) == {"decoder.wide.weight", "decoder.wide.bias", "head.weight", "head.bias"}
    assert merged["decoder.wide.weight"].tolist() == [[2.5, 2.0], [3.0, 5.0]]
    assert torch.equal(merged["decoder.wide.bias"], bias)


def test_a_model_without_adapters_is_its_own_merged_model(policy: LlamaForCausalLM) -> None:
    for (name, tensor), (own_name, own) in zip(merged_weights(policy), policy.state_dict().items(), strict=True):
        assert name == own_name
        assert tensor.data_ptr() == own.data_ptr()


def test_only_adapters_are_trained_and_remembered_by_the_optimizer(policy: LlamaForCausalLM) -> None:
    own = adapted(policy)
    assert len(trained(own)) == 2 * 7 * 2  # A and B of seven linear layers in each of two decoder layers
    assert all(".lora_A." in name or ".lora_B." in name for name in trained(own))
    learner = make_learner(own)
    learner.learn_sync(experience_of(*random_batch(own)), step=0)
    assert len(learner.policy_optimizer.state) == len(trained(own))


def test_adapters_of_bfloat16_weights_are_float32(policy: LlamaForCausalLM) -> None:
    own = moved(policy.to(torch.bfloat16))
    types = {name: parameter.dtype for name, parameter in own.named_parameters()}
    assert {types[name] for name in trained(own)} == {torch.float32}
    assert {types[name] for name in types.keys() - trained(own)} == {torch.bfloat16}
    merged = {name: tensor.dtype for name, tensor in merged_weights(own)}
    assert {dtype for name, dtype in merged.items() if "_proj" in name} == {torch.float32}
    assert {dtype for name, dtype in merged.items() if "_proj" not in name} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("targets", "count"), [(("q_proj",), 2), (("self_attn.q_proj", "up_proj"), 4), (("layers.1.mlp.up_proj",), 1)]
)
def test_targets_are_ends_of_names(policy: LlamaForCausalLM, targets: tuple[str, ...], count: int) -> None:
    assert len(find_targets(policy, targets)) == count
    assert len(trained(adapted(policy, targets=targets))) == 2 * count


def test_the_seed_decides_the_adapters(policy: LlamaForCausalLM) -> None:
    one, torch_state = adapted(policy), torch.get_rng_state()
    torch.rand(3)
    assert same_weights(adapted(policy), weights_of(one))
    assert torch.equal(torch.get_rng_state(), torch_state)


@pytest.mark.whole
def test_recomputing_layers_gives_the_adapters_the_same_gradients(policy: LlamaForCausalLM) -> None:
    found = []
    for recompute in (False, True):
        own = moved(policy.eval())
        if recompute:
            checkpoint_layers(own)
        learner = make_learner(own)
        learner.learn_sync(experience_of(*random_batch(own)), step=0)
        found.append(gradients_of(learner.policy_optimizer))
    assert_same_gradients(*found)


# --- the reference ----------------------------------------------------------------------------------------------------


def test_with_adapters_off_it_is_the_model_the_run_started_from(policy: LlamaForCausalLM) -> None:
    own = moved(policy)
    names, samples = trained(own), experience_of(*random_batch(policy)).samples
    with adapters_off(own):
        switched_off = score_samples(own, samples, rows_on_cpu())
    assert torch.equal(switched_off, score_samples(policy, samples, rows_on_cpu()))
    assert not torch.allclose(switched_off, score_samples(own, samples, rows_on_cpu()))
    assert trained(own) == names


def test_adapters_are_on_again_after_an_error(policy: LlamaForCausalLM) -> None:
    own = moved(policy)
    before = logits(own)
    with pytest.raises(KeyError), adapters_off(own):
        raise KeyError
    assert torch.equal(logits(own), before)


@pytest.mark.whole
@pytest.mark.parametrize("place", ["loss", "reward"])
def test_a_policy_with_adapters_is_its_own_reference(policy: LlamaForCausalLM, place: str) -> None:
    """Two updates with the policy as its reference move it as those with a copy from the start do."""
    ends, divergences = [], []
    for separate in (False, True):
        own = moved(policy)
        learner = make_learner(
            own, reference=policy if separate else own, kl=KLConfig(coefficient=0.5, place=place), minibatches=2
        )
        metrics = learner.learn_sync(experience_of(*random_batch(own)), step=0)
        ends.append(weights_of(own))
        divergences.append(metrics["policy/reference_kl"])
    assert divergences[0] == divergences[1] > 0
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


# --- critics ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
def test_a_run_makes_one_reference_and_a_critic_for_a_policy_with_adapters(
    tmp_path: Path, model_folder: Path, shared: bool
) -> None:
    recipe, *overrides = tiny_overrides(tmp_path, model_folder, "algorithm=ppo", "model.lora.rank=2")
    overrides += ["algorithm.kl.coefficient=0.1", f"algorithm.critic.kind={'shared' if shared else 'own'}"]
    with recipe_folder(Path(recipe)):
        plan = make_plan(load_config(recipe, overrides))
        parts = load_components(plan, check_model(plan))
    models = make_models(plan.config, parts.policy, plan.algorithm)
    assert models.reference is models.policy
    assert all("lora" in name for name in trained(models.policy))
    if shared:
        assert isinstance(models.critic, SharedCritic)
        assert models.critic.trunk is models.policy.get_decoder()  # type: ignore[operator]
        assert trained(models.critic) == {"head.weight", "head.bias"}
    else:
        assert isinstance(models.critic, Critic)
        names = {name for name, _ in models.critic.named_parameters()}
        assert trained(models.critic) == names
        assert not any("lora" in name for name in names)


@pytest.mark.parametrize("make", [make_critic, make_shared_critic])
def test_both_critics_learn_beside_adapters(policy: LlamaForCausalLM, make: Callable[[nn.Module], Any]) -> None:
    critic = make(policy)
    # In place: a shared critic's trunk is this policy's.
    add_adapters(policy, LoraConfig(rank=4), seed=0)
    start, critic_start = weights_of(policy), weights_of(critic)
    learner = make_learner(policy, estimator=TOKEN_GAE, critic=critic)
    learner.learn_sync(experience_of(*random_batch(policy)), step=0)
    names = {name for name, tensor in weights_of(policy).items() if not torch.equal(tensor, start[name])}
    assert names
    assert names <= trained(policy)
    assert not same_weights(critic, critic_start)


# --- what is written --------------------------------------------------------------------------------------------------


def test_the_exported_folder_is_a_plain_model(policy: LlamaForCausalLM, tokenizer: Any, tmp_path: Path) -> None:
    own = moved(policy.eval())
    export_model(own, tokenizer, tmp_path / "hf")
    assert not [path.name for path in (tmp_path / "hf").iterdir() if "adapter" in path.name]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert type(loaded) is LlamaForCausalLM
    assert loaded.state_dict().keys() == policy.state_dict().keys()
    assert float((logits(loaded) - logits(policy)).abs().max()) > 0.1
    torch.testing.assert_close(logits(loaded), logits(own), atol=1e-5, rtol=1e-5)


def test_a_state_is_the_adapters_and_comes_back(policy: LlamaForCausalLM) -> None:
    own, other = moved(policy), adapted(policy)
    saved = saved_state(own)
    assert saved["adapters"].keys() == trained(own)
    restore_state(other, saved)
    assert same_weights(other, weights_of(own))


def test_a_state_of_other_adapters_or_of_another_model_is_refused(policy: LlamaForCausalLM) -> None:
    saved = saved_state(moved(policy))
    with pytest.raises(CheckpointError, match="written with LoRA"):
        restore_state(policy, saved)
    with pytest.raises(CheckpointError, match="written without LoRA"):
        restore_state(adapted(policy), saved_state(policy))
    with pytest.raises(CheckpointError, match=r"set model\.lora as it was"):
        restore_state(adapted(policy, rank=2), saved)
    with torch.no_grad():
        policy.model.norm.weight[0] += 1e-6
    with pytest.raises(CheckpointError, match=r"model\.path holds other weights"):
        restore_state(adapted(policy), saved)


# --- whole runs -------------------------------------------------------------------------------------------------------


def saved_bytes(folder: Path, step: int) -> int:
    return (folder / "checkpoints" / f"step_{step}" / "state.pt").stat().st_size


@pytest.mark.whole
@pytest.mark.parametrize("preset", ["grpo", "ppo"])
def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path: Path, model_folder: Path, preset: str) -> None:
    run = tiny_overrides(tmp_path, model_folder, f"algorithm={preset}", "model.lora.rank=2", "trainer.steps=2")
    run += ["optimizer.learning_rate=0.01", "algorithm.minibatches=2", "algorithm.kl.coefficient=0.01"]
    commands.train(*run, "run.name=whole", quiet=True, reward=token_variety)
    commands.train(*run, "trainer.steps=1", quiet=True, reward=token_variety)
    commands.train(*run, quiet=True, reward=token_variety)
    assert same_export(tmp_path / "whole", tmp_path / "tiny")
    lines = [json.loads(line) for line in (tmp_path / "tiny" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[-1]["policy/reference_kl"] > 0


@pytest.mark.whole
def test_a_checkpoint_is_small_and_its_base_is_the_models(tmp_path: Path, model_folder: Path) -> None:
    run = tiny_overrides(tmp_path, model_folder, "trainer.steps=1")
    commands.train(*run, "run.name=all", quiet=True, reward=token_variety)
    commands.train(*run, "model.lora.rank=1", quiet=True, reward=token_variety)
    assert saved_bytes(tmp_path / "tiny", 1) < 0.15 * saved_bytes(tmp_path / "all", 1)
    state = torch.load(tmp_path / "tiny" / "checkpoints" / "step_1" / "state.pt", weights_only=True)["learner"]
    assert all(".lora_" in name for name in state["policy"]["adapters"])
    assert len(state["policy_optimizer"]["state"]) == len(state["policy"]["adapters"])
    # Weights without adapters are exported as they came.
    start, end = AutoModelForCausalLM.from_pretrained(model_folder).state_dict(), exported_weights(tmp_path / "tiny")
    changed = {name for name in end if not torch.equal(end[name], start[name])}
    assert changed
    assert all(name.endswith("_proj.weight") for name in changed)


@pytest.mark.whole
def test_the_reward_rises(tmp_path: Path, tokenizer: Any) -> None:
    """From weights large enough that a head which stands still can tell tokens apart."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(tiny_config(tokenizer))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 0.3)
    export_model(model, tokenizer, tmp_path / "model")
    run = tiny_overrides(tmp_path, tmp_path / "model", "data.agent_name=single_step", "model.lora.rank=4")
    run += ["rollout.group_size=8", "rollout.groups_per_step=4", "optimizer.learning_rate=0.03"]
    run += ["trainer.steps=17", "trainer.save_every=90", "algorithm.overlong_fraction=0"]
    commands.train(*run, quiet=True, reward=likes_even_tokens)
    lines = [json.loads(line) for line in (tmp_path / "tiny" / "metrics.jsonl").read_text().splitlines()]
    rewards = [line["reward/outcome"] for line in lines]
    assert rewards[0] < 0.7
    assert sum(rewards[-3:]) / 3 > 0.9


@pytest.mark.whole
def test_a_warm_start_with_adapters_lowers_the_loss_and_writes_a_plain_model(
    tmp_path: Path, model_folder: Path
) -> None:
    demonstrations = tmp_path / "demonstrations.jsonl"
    row = {"messages": [{"role": "user", "content": "What do 2 egg cost?"}, {"role": "assistant", "content": "6"}]}
    demonstrations.write_text(json.dumps(row) + "\n")
    run = tiny_overrides(tmp_path, model_folder, f"sft.data=[{demonstrations}]", "sft.steps=20", "model.lora.rank=4")
    folder = commands.sft(*run, "sft.learning_rate=0.03", quiet=True)
    losses = [json.loads(line)["loss/sft"] for line in (tmp_path / "tiny" / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[0] - 0.3
    start, end = AutoModelForCausalLM.from_pretrained(model_folder), AutoModelForCausalLM.from_pretrained(folder)
    assert end.state_dict().keys() == start.state_dict().keys()
    assert torch.equal(end.get_input_embeddings().weight, start.get_input_embeddings().weight)
    assert not torch.equal(logits(end), logits(start))


# --- one clear error before any model is loaded -----------------------------------------------------------------------


@pytest.fixture
def broken_model(tmp_path: Path, model_folder: Path) -> Path:
    """Weights that cannot be loaded: whoever reaches for them fails differently."""
    broken = tmp_path / "broken_model"
    broken.mkdir()
    for file in model_folder.iterdir():
        (broken / file.name).write_bytes(b"not weights" if file.suffix == ".safetensors" else file.read_bytes())
    return broken


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["rank=-1"], ["model.lora.rank=-1"]),
        (["rank=4", "alpha=0"], ["model.lora.alpha=0"]),
        (["rank=4", "targets=[]"], ["model.lora.targets is empty", "q_proj"]),
        (["rank=4", "targets=[q_proj,all-linear]"], ["all-linear stands alone"]),
        (["rank=4", "targets=[q_prj,v_proj,w1]"], ["'q_prj'", "Did you mean 'q_proj'", "'w1'", "down_proj"]),
        (["rank=4", "targets=[lm_head]"], ["linear layers of the decoder", "'lm_head'"]),
        (["rnk=4"], ["model.lora.rnk", "model.lora.rank"]),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused(
    tmp_path: Path, broken_model: Path, extra: list[str], words: list[str]
) -> None:
    run = tiny_overrides(tmp_path, broken_model, *(f"model.lora.{setting}" for setting in extra))
    with pytest.raises(ConfigError) as caught:
        commands.train(*run, quiet=True)
    for word in words:
        assert word in str(caught.value)
    assert not (tmp_path / "tiny").exists()


@pytest.mark.parametrize("verb", [commands.train, commands.sft])
def test_a_missing_peft_says_how_to_get_it(
    tmp_path: Path, broken_model: Path, monkeypatch: pytest.MonkeyPatch, verb: Callable[..., Any]
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    run = tiny_overrides(tmp_path, broken_model, "model.lora.rank=4")
    with pytest.raises(ConfigError) as caught:
        verb(*run, quiet=True)
    assert "model.lora.rank=4 needs the package 'peft': pip install 'agent-r1[lora]'" in str(caught.value)
    assert not (tmp_path / "tiny").exists()


@pytest.mark.whole
def test_without_adapters_peft_is_not_asked_for(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    run = tiny_overrides(tmp_path, model_folder, "trainer.steps=1", "algorithm.kl.coefficient=0.01")
    assert commands.train(*run, quiet=True, reward=token_variety).steps == 1
