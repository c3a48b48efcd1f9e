"""One update of a learner, on one process or on several ranks: the cases that tests of sharding compare.

RANK=0 WORLD_SIZE=2 ... python -m tests.helpers.sharded_cases FILE CASE ...     # rank 0 writes the results
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from agent_r1.algorithms import bind_algorithm
from agent_r1.config import Config, load_config
from agent_r1.learner import TorchLearner, make_learner
from agent_r1.learner.packing import TRIE_ATTENTION
from agent_r1.learner.sharded import Ranks, open_ranks
from agent_r1.training.checkpoints.files import load_checkpoint, save_checkpoint
from tests.helpers.hand_made import experience_of, random_batch, random_group
from tests.helpers.ports import free_port

ROOT = Path(__file__).parents[2]

CASES: dict[str, list[str]] = {
    "tries": ["algorithm=grpo"],
    "rows": ["algorithm=grpo", "trainer.packing=rows"],
    "tied": ["algorithm=grpo", "case.tied=true"],
    "lora": ["algorithm=grpo", "model.lora.rank=4", "algorithm.kl.coefficient=0.1", "algorithm.epochs=2"],
    "reference": ["algorithm=grpo", "algorithm.kl.coefficient=0.1", "algorithm.epochs=2"],
    "fused": ["algorithm=grpo", "case.fused=true"],
    "checkpointed": ["algorithm=grpo", "trainer.gradient_checkpointing=true"],
    "own_critic": ["algorithm=ppo", "algorithm.critic.kind=own"],
    "shared_critic": ["algorithm=ppo", "algorithm.critic.kind=shared"],
    "closed_form": ["algorithm=ppo", "algorithm.critic.kind=closed_form"],
    "many_micro_batches": ["algorithm=grpo", "trainer.micro_batch_tokens=40"],
    "one_sample": ["algorithm=grpo", "case.groups=0"],
    "nan": ["algorithm=grpo", "case.nan=true", "trainer.micro_batch_tokens=40"],
}


RESUMED = ("lora", "own_critic")


def make_policy(*, tied: bool = False) -> LlamaForCausalLM:
    """A tiny model whose sizes two and three ranks do not divide."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {"attn_implementation": TRIE_ATTENTION}
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,  # heads of 16: kernels of GPUs take none smaller
        intermediate_size=38,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        **settings,
    )
    return LlamaForCausalLM(config).eval()


def config_of(case: str, *extra: str) -> Config:
    overrides = [text for text in [*CASES[case], *extra] if not text.startswith("case.")]
    return load_config(
        None,
        [
            "model.path=none",
            "trainer.micro_batch_tokens=96",
            "optimizer.gradient_clip=0.5",
            "optimizer.learning_rate=1e-3",
            *overrides,
        ],
    )


def make_case(case: str, ranks: Ranks | None = None, *extra: str, device: str = "cpu") -> tuple[TorchLearner, Any]:
    """A learner and the experience it learns from."""
    options = {text.split("=")[0].removeprefix("case.") for text in CASES[case] if text.startswith("case.")}
    policy, config = make_policy(tied="tied" in options), config_of(case, *extra)
    batch = random_batch(policy, num_groups=3) if "groups" not in options else random_group(policy, 0, [1.0, 0.0])[:2]
    if "fused" in options:
        from agent_r1.models import fuse_projections

        assert fuse_projections(policy, trained=True)
    policy.to(device)
    learner = make_learner(config, policy, bind_algorithm(config.algorithm), ranks)
    if "nan" in options:
        learner = _with_one_nan(learner)
    return learner, experience_of(*batch)


def _with_one_nan(learner: TorchLearner) -> TorchLearner:
    """The loss of one token is not finite, which is in a micro-batch of one rank."""
    from dataclasses import replace

    plain = learner.algorithm.loss

    def loss(inputs: Any) -> Any:
        found = plain(inputs)
        hit = inputs.step_N == 0
        return replace(found, loss_N=torch.where(hit, found.loss_N * float("nan"), found.loss_N))

    learner.algorithm = replace(learner.algorithm, loss=loss)
    return learner


def whole(tensor: Any) -> torch.Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def gradients(learner: TorchLearner) -> dict[str, torch.Tensor]:
    """The gradients of the first update, by the names of the parameters: AdamW's first means."""
    found: dict[str, torch.Tensor] = {}
    pairs: list[tuple[str, Any, Any]] = [("policy", learner.policy, learner.policy_optimizer)]
    if isinstance(learner.critic, nn.Module):
        pairs.append(("critic", learner.critic, learner.critic_optimizer))
    for what, module, optimizer in pairs:
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                state = optimizer.state.get(parameter, {})
                found[f"{what}.{name}"] = whole(state["exp_avg"]) if state else torch.zeros(0)
    return found


def run_case(case: str, ranks: Ranks | None = None, *extra: str, device: str = "cpu") -> dict[str, Any]:
    """What one step of learning gives."""
    learner, experience = make_case(case, ranks, *extra, device=device)
    credit: list[Any] = []
    metrics = learner.learn_sync(experience, step=0, on_credit=credit.extend)
    learner.check_growth()
    return {
        "metrics": metrics,
        "gradients": gradients(learner),
        "weights": {name: whole(tensor) for name, tensor in learner.weights()},
        "credit": [[entry.logprobs for entry in trajectory.steps] for trajectory in credit],
        "bytes": (learner.checkpoint_bytes(), learner.model_bytes()),
        "skips": learner.policy_skips.total,
    }


def flat(state: Any, place: str = "") -> dict[str, Any]:
    """A nested state by place, its tensors whole: the state of any number of ranks in one form."""
    if isinstance(state, Mapping):
        return {name: leaf for key, entry in state.items() for name, leaf in flat(entry, f"{place}/{key}").items()}
    if isinstance(state, list | tuple):
        return flat(dict(enumerate(state)), place)
    return {place: whole(state) if isinstance(state, torch.Tensor) else state}


def save(learner: TorchLearner, folder: Path, ranks: Ranks | None = None) -> None:
    save_checkpoint(folder, step=1, state={"learner": learner.state_dict()}, keep=1, ranks=ranks)


def loaded(case: str, folder: Path, ranks: Ranks | None = None, *, device: str = "cpu") -> tuple[TorchLearner, Any]:
    """A new learner with the state of a checkpoint."""
    learner, experience = make_case(case, ranks, device=device)
    make_shard = getattr(learner, "empty_shard", None)
    learner.load_state_dict(load_checkpoint(1, folder / "step_1", make_shard=make_shard).state["learner"])
    return learner, experience


def resume_on_ranks(case: str, folder: Path, ranks: Ranks) -> dict[str, Any]:
    """Two steps, once without interruption, once over a checkpoint; and the checkpoint of one process, loaded."""
    learner, experience = make_case(case, ranks)
    learner.learn_sync(experience, step=0)
    saved = flat(learner.state_dict())
    save(learner, folder / "two" / case, ranks)
    learner.learn_sync(experience, step=1)
    resumed, _ = loaded(case, folder / "two" / case, ranks)
    resumed.learn_sync(experience, step=1)
    of_one, _ = loaded(case, folder / "one" / case, ranks)
    return {
        "saved": saved,
        "continued": flat(learner.state_dict()),
        "resumed": flat(resumed.state_dict()),
        "of_one": flat(of_one.state_dict()),
    }


def rank_environments(size: int) -> list[dict[str, str]]:
    """The environment variables that torchrun would set, for a free port."""
    port = free_port()
    common = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "MASTER_ADDR": "127.0.0.1"}
    return [
        {**common, "MASTER_PORT": str(port), "WORLD_SIZE": str(size), "RANK": str(rank), "LOCAL_RANK": str(rank)}
        for rank in range(size)
    ]


def run_on_ranks(size: int, arguments: Sequence[str], *, timeout: float = 600.0) -> None:
    """Run this module on several ranks and wait; what a failed one printed is in the error."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.sharded_cases", *arguments],
            env=environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for environment in rank_environments(size)
    ]
    try:
        texts = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    failed = [text for process, text in zip(processes, texts, strict=True) if process.returncode]
    assert not failed, "\n".join(failed)


def main(file: str, folder: str) -> None:
    torch.set_num_threads(1)
    with open_ranks(load_config(None, ["model.path=none"])) as ranks:
        results: dict[str, Any] = {case: run_case(case, ranks) for case in CASES}
        results["resumed"] = {case: resume_on_ranks(case, Path(folder), ranks) for case in RESUMED}
        if ranks.is_first:
            torch.save(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
