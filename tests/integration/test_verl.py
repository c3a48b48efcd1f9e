"""Our flows, estimators and losses inside the installed verl, as far as it runs without a GPU (`make test-verl`).

verl's own workers run our loop: the one of its older trainer, and the one of v1 with Ray and its TransferQueue. What
they hand to verl's trainer is compared, id by id, with the steps that our own rollout records for the same replies.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from agent_r1.data import load_tasks
from agent_r1.engines import ScriptedEngine
from agent_r1.errors import ConfigError, RolloutsFailingError
from agent_r1.integrations.verl import sequences_of
from agent_r1.types import Task, Trajectory
from tests.helpers.engine_server import engine_server
from tests.helpers.verl_worker import (
    QUICKSTART,
    FakeClient,
    HttpClient,
    Script,
    ScriptedTwin,
    batch_of,
    shop_task,
    verl_config,
    write_loop_file,
    write_recipe,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed (make verl)"),
    pytest.mark.filterwarnings("ignore"),  # verl warns about every engine that is not installed
]

PROMPT, RESPONSE = 100, 300
WINDOW = "env.context={name: window, turns: 1}"
"""Shows the model its last turn alone: later prompts do not begin with what came before."""


def own_trajectories(recipe: Path, script: Script, tasks: list[Task], context_length: int) -> list[Trajectory]:
    """What our own rollout records for the same replies."""
    from agent_r1.chat import load_renderer
    from agent_r1.gateway import Gateway
    from agent_r1.integrations.verl.recipe import open_recipe, read_recipe
    from agent_r1.tools import ToolRunner
    from agent_r1.training import RunPlan, check_config, make_rollout
    from agent_r1.types import SamplingParams

    config = read_recipe(recipe)
    with open_recipe(config):
        algorithm, reward = check_config(config)
        plan = RunPlan(config=config, algorithm=algorithm, reward=reward, train_tasks=[], eval_tasks=[])
        engine: ScriptedEngine = ScriptedTwin(script, context_length)
        rollout = make_rollout(plan, load_renderer(script.model), engine, ToolRunner({}), Gateway(config.agent))
        groups = asyncio.run(
            rollout.run(tasks, group_size=1, sampling=SamplingParams(max_tokens=config.rollout.max_tokens), seed=0)
        )
    return [group.trajectories[0] for group in groups]


def run_worker(config: Any, client: FakeClient | HttpClient, tasks: list[Task]) -> Any:
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    worker = AgentLoopWorker(config, client)
    return asyncio.run(worker.generate_sequences(batch_of(tasks)))


# --- the loop ---------------------------------------------------------------------------------------------------------


def test_masks_and_log_probs_of_the_worker_equal_our_steps(tmp_path: Path, model_folder: Path) -> None:
    recipe, script = write_recipe(tmp_path, model_folder), Script(str(model_folder))
    tasks = [shop_task(number) for number in range(6)]
    client = FakeClient(script)
    found = run_worker(verl_config(model_folder, write_loop_file(tmp_path, recipe)), client, tasks)
    trajectories = own_trajectories(recipe, script, tasks, PROMPT + RESPONSE)
    assert [len(trajectory.steps) for trajectory in trajectories] == [1, 2, 3, 1, 2, 3]
    for row, trajectory in enumerate(trajectories):
        (expected,) = sequences_of(trajectory.steps)
        size, first = len(expected.response_ids), PROMPT - len(expected.prompt_ids)
        batch = {name: found.batch[name][row] for name in list(found.batch.keys())}
        assert batch["prompts"][first:].tolist() == list(expected.prompt_ids)
        assert batch["responses"][:size].tolist() == list(expected.response_ids)
        assert batch["response_mask"].tolist() == [*expected.response_mask, *([0] * (RESPONSE - size))]
        assert batch["attention_mask"].tolist() == [0] * first + [1] * (PROMPT - first + size) + [0] * (RESPONSE - size)
        assert batch["rollout_log_probs"].tolist() == [*expected.response_logprobs, *([0.0] * (RESPONSE - size))]
        total = trajectory.process_reward + trajectory.outcome_reward
        assert batch["rm_scores"].nonzero().flatten().tolist() == ([size - 1] if total else [])
        assert float(batch["rm_scores"].sum()) == pytest.approx(total)
    said = found.non_tensor_batch
    assert said["outcome"].tolist() == [1.0, 1.0, 0.0, 1.0, 1.0, 0.0]
    assert said["process"].tolist() == pytest.approx([0.0, 0.1, 0.1, 0.0, 0.1, 0.1])
    assert said["__num_turns__"].tolist() == [2, 4, 6, 2, 4, 6]
    assert said["max_global_steps"].tolist() == [3] * 6
    assert len({request_id for request_id, _, _ in client.requests}) == 6  # one per episode, so that caches are used


def test_a_forward_pass_over_verls_rows_gives_the_log_probs_of_the_rollout(tmp_path: Path, model_folder: Path) -> None:
    """The client scores its replies with a real model, request by request; the same model reads verl's padded rows."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)

    def score(prompt: list[int], ids: list[int]) -> list[float]:
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        return logits.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)].tolist()

    recipe = write_recipe(tmp_path, model_folder)
    client = FakeClient(Script(str(model_folder)), score)
    config = verl_config(model_folder, write_loop_file(tmp_path, recipe))
    check_log_probs(model, run_worker(config, client, [shop_task(number) for number in range(3)]).batch)


def test_tokens_that_a_server_sampled_keep_their_log_probs(tmp_path: Path, model_folder: Path) -> None:
    """Behind verl's worker: a server that speaks vLLM's HTTP interface, with a real model underneath."""
    from transformers import AutoModelForCausalLM

    recipe = write_recipe(tmp_path, model_folder)
    config = verl_config(model_folder, write_loop_file(tmp_path, recipe))
    with engine_server(model_folder) as server:
        batch = run_worker(config, HttpClient(server.url), [shop_task(number) for number in range(4)]).batch
    assert len({tuple(row) for row in batch["responses"].tolist()}) == 4
    check_log_probs(AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32), batch)


def check_log_probs(model: Any, batch: Any) -> None:
    """The rollout's log-probs are those of a forward pass over verl's padded rows."""
    with torch.no_grad():
        logits = model(
            batch["input_ids"], attention_mask=batch["attention_mask"], position_ids=batch["position_ids"]
        ).logits[:, PROMPT - 1 : -1]
    expected = logits.log_softmax(-1).gather(-1, batch["responses"][..., None])[..., 0]
    mask = batch["response_mask"].bool()
    assert mask.sum() > 20
    assert torch.allclose(batch["rollout_log_probs"][mask], expected[mask], atol=1e-5)


def test_rewritten_history_is_refused_by_the_worker_that_takes_one_output(tmp_path: Path, model_folder: Path) -> None:
    recipe = write_recipe(tmp_path, model_folder, WINDOW)
    config = verl_config(model_folder, write_loop_file(tmp_path, recipe))
    with pytest.raises(ConfigError, match=r"takes one per episode.*trainer\.use_v1=True"):
        run_worker(config, FakeClient(Script(str(model_folder))), [shop_task(2)])


def test_an_estimator_that_verl_cannot_carry_is_refused_before_a_token_is_sampled(
    tmp_path: Path, model_folder: Path
) -> None:
    recipe, client = write_recipe(tmp_path, model_folder), FakeClient(Script(str(model_folder)))
    config = verl_config(model_folder, write_loop_file(tmp_path, recipe), "algorithm.adv_estimator=agent_r1/gigpo")
    with pytest.raises(ConfigError, match=r"the estimator 'gigpo' .* no observations"):
        run_worker(config, client, [shop_task(0)])
    assert not client.requests


def test_a_server_that_fails_is_no_zero_reward(tmp_path: Path, model_folder: Path) -> None:
    class Broken(FakeClient):
        async def generate(self, request_id: str, **_: Any) -> Any:
            raise ConnectionError("the server is gone")

    recipe = write_recipe(tmp_path, model_folder)
    config = verl_config(model_folder, write_loop_file(tmp_path, recipe))
    with pytest.raises(RolloutsFailingError, match="the server is gone"):
        run_worker(config, Broken(Script(str(model_folder))), [shop_task(0)])


def test_a_prompt_that_verl_would_cut_is_refused(tmp_path: Path, model_folder: Path) -> None:
    recipe = write_recipe(tmp_path, model_folder)
    config = verl_config(model_folder, write_loop_file(tmp_path, recipe), "data.max_prompt_length=8")
    with pytest.raises(RolloutsFailingError, match=r"does not fit verl's data\.max_prompt_length=8"):
        run_worker(config, FakeClient(Script(str(model_folder))), [shop_task(0)])


def test_an_episode_ends_where_verls_response_does(tmp_path: Path, model_folder: Path) -> None:
    recipe = write_recipe(tmp_path, model_folder)
    config = verl_config(model_folder, write_loop_file(tmp_path, recipe), "data.max_response_length=20")
    found = run_worker(config, FakeClient(Script(str(model_folder))), [shop_task(2)])
    assert found.batch["responses"].shape == (1, 20)
    assert found.non_tensor_batch["stop_reason"].tolist() == ["context_full"]


# --- v1 ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def transfer_queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Ray and verl's TransferQueue on this machine."""
    ray = pytest.importorskip("ray")
    tq = pytest.importorskip("transfer_queue", reason="TransferQueue is not installed (make verl)")
    config = verl_config(Path("model"), Path("none")).transfer_queue
    config.enable = True
    config.backend.SimpleStorage.num_data_storage_units = 1
    for attempt in range(3):
        try:
            ray.init(address="local", num_cpus=16, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
            break
        except Exception:  # Ray gives its node 30 s, and no setting changes that
            ray.shutdown()
            if attempt == 2:
                raise
    try:
        tq.init(config)
        yield tq
        tq.close()
    finally:
        ray.shutdown()


def run_v1_worker(tq: Any, config: Any, script: Script, task: Task, uid: str) -> tuple[str, dict[str, Any]]:
    """The status of a prompt and what its sessions put into the TransferQueue, by key."""
    import ray
    from tensordict import NonTensorData, NonTensorStack, TensorDict
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

    batch = batch_of([task]).non_tensor_batch
    batch["index"], batch["uid"] = [0], [uid]
    given = TensorDict({name: NonTensorStack(column[0]) for name, column in batch.items()}, batch_size=[1])
    given["global_steps"] = NonTensorData(5)
    worker = AgentLoopWorkerTQ.remote(config, FakeClient(script))
    try:
        ray.get(worker.generate_sequences.remote(given))
        end = time.monotonic() + 120
        while (status := _tags(tq).get(uid, {}).get("status", "running")) == "running":
            assert time.monotonic() < end, "the worker has not finished"
            time.sleep(0.2)
    finally:
        ray.kill(worker)
    keys = sorted(key for key in _tags(tq) if key.startswith(f"{uid}_"))
    return status, {key: tq.kv_batch_get(keys=[key], partition_id="train") for key in keys}


def _tags(tq: Any) -> dict[str, Any]:
    """The tags of all keys; a prompt appears when its worker has begun."""
    return dict(tq.kv_list(partition_id="train").get("train", {}))


def test_the_worker_of_v1_gets_our_steps_with_their_rewards_on_their_tokens(
    transfer_queue: Any, tmp_path: Path, model_folder: Path
) -> None:
    recipe, script, task = write_recipe(tmp_path, model_folder), Script(str(model_folder)), shop_task(2)
    estimator = "algorithm.adv_estimator=agent_r1/step_group"
    config = verl_config(model_folder, write_loop_file(tmp_path, recipe), "actor_rollout_ref.rollout.n=2", estimator)
    status, outputs = run_v1_worker(transfer_queue, config, script, task, "appended")
    assert (status, list(outputs)) == ("finished", ["appended_0_0", "appended_1_0"])
    (trajectory,) = own_trajectories(recipe, script, [task], PROMPT + RESPONSE)
    rewards = [step.reward for step in trajectory.steps]
    rewards[-1] += trajectory.outcome_reward
    (expected,) = sequences_of(trajectory.steps, rewards)
    assert sum(map(bool, expected.response_rewards)) == 1  # the useful look-up, which is not the last step
    for fields in outputs.values():
        assert fields["prompts"][0].tolist() == list(expected.prompt_ids)
        assert fields["responses"][0].tolist() == list(expected.response_ids)
        assert fields["response_mask"][0].tolist() == fields["loss_mask"][0].tolist() == list(expected.response_mask)
        assert fields["rollout_log_probs"][0].tolist() == list(expected.response_logprobs)
        assert fields["rm_scores"][0].tolist() == pytest.approx(list(expected.response_rewards))
        assert fields["input_ids"][0].tolist() == [*expected.prompt_ids, *expected.response_ids]


def test_the_worker_of_v1_gets_one_output_per_rewritten_prompt(
    transfer_queue: Any, tmp_path: Path, model_folder: Path
) -> None:
    recipe = write_recipe(tmp_path, model_folder, WINDOW)
    script, task = Script(str(model_folder)), shop_task(2)
    config = verl_config(model_folder, write_loop_file(tmp_path, recipe), "algorithm.adv_estimator=grpo")
    status, outputs = run_v1_worker(transfer_queue, config, script, task, "rewritten")
    (trajectory,) = own_trajectories(recipe, script, [task], PROMPT + RESPONSE)
    expected = sequences_of(trajectory.steps)
    assert len(expected) > 1
    assert (status, len(outputs)) == ("finished", len(expected))
    for fields, sequence in zip(outputs.values(), expected, strict=True):
        assert fields["responses"][0].tolist() == list(sequence.response_ids)
        assert fields["response_mask"][0].tolist() == list(sequence.response_mask)
        assert fields["rollout_log_probs"][0].tolist() == list(sequence.response_logprobs)
        assert float(fields["rm_scores"][0].sum()) == pytest.approx(0.1)


def test_v1_drops_the_group_of_an_episode_that_verl_cannot_carry(
    transfer_queue: Any, tmp_path: Path, model_folder: Path
) -> None:
    recipe = write_recipe(tmp_path, model_folder, WINDOW)
    config = verl_config(model_folder, write_loop_file(tmp_path, recipe))
    assert run_v1_worker(transfer_queue, config, Script(str(model_folder)), shop_task(2), "refused") == ("failure", {})


# --- algorithms -------------------------------------------------------------------------------------------------------


@pytest.fixture
def registered() -> Any:
    """verl's `core_algos` with our parts."""
    from verl.trainer.ppo import core_algos

    importlib.import_module("agent_r1.integrations.verl.register")
    return core_algos


def test_compute_advantage_of_verl_calls_our_estimators(registered: Any, tmp_path: Path, model_folder: Path) -> None:
    """The batch of a real worker, with the numbers that our trainer computes for the same trajectories."""
    from verl.trainer.ppo.ray_trainer import compute_advantage

    from agent_r1.algorithms import StepTable, estimators

    recipe, script = write_recipe(tmp_path, model_folder), Script(str(model_folder))
    tasks = [shop_task(number) for number in range(6)]
    config = verl_config(model_folder, write_loop_file(tmp_path, recipe), "algorithm.adv_estimator=agent_r1/group")
    data = run_worker(config, FakeClient(script), tasks)
    data.batch["token_level_rewards"] = data.batch["rm_scores"]
    groups = [0, 0, 0, 1, 1, 1]
    data.non_tensor_batch["uid"] = [f"group {number}" for number in groups]
    trajectories = own_trajectories(recipe, script, tasks, PROMPT + RESPONSE)
    steps = [(row, step) for row, trajectory in enumerate(trajectories) for step in trajectory.steps]
    earned = [t.process_reward + t.outcome_reward for t in trajectories]
    assert earned == pytest.approx([1.0, 1.1, 0.1] * 2)
    table = StepTable(
        rewards_S=torch.tensor([earned[row] if step is trajectories[row].steps[0] else 0.0 for row, step in steps]),
        lengths_S=torch.tensor([len(step.action_ids) for _, step in steps]),
        trajectory_S=torch.tensor([row for row, _ in steps]),
        group_R=torch.tensor(groups),
    )
    for name in ("group", "leave_one_out", "group_whitened"):
        found = compute_advantage(data, f"agent_r1/{name}", config=config.algorithm).batch
        mask = found["response_mask"].bool()
        expected = estimators.get(name)(table).advantages_N.float()
        assert torch.allclose(found["advantages"][mask], expected, atol=1e-5), name
        assert not found["advantages"][~mask].any()


def test_grpo_of_v1_compares_episodes_not_outputs(registered: Any) -> None:
    """Why rewritten history needs `grpo`: an episode of two outputs is one rollout of its group, and both get its
    advantage. Returns 1 and 0 give 0.7071 and -0.7071."""
    import numpy as np
    from tensordict import TensorDict
    from verl.protocol import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    fields = {"token_level_rewards": torch.tensor([[1.0], [1.0], [0.0]]), "response_mask": torch.ones(3, 1)}
    data = DataProto(
        batch=TensorDict(fields, batch_size=3), non_tensor_batch={"uid": np.array(["u", "u", "u"], dtype=object)}
    )
    keys = ["u_0_0", "u_0_1", "u_1_0"]
    found = compute_advantage_for_multi_trajectories(data, keys, registered.AdvantageEstimator.GRPO).batch
    assert found["advantages"].flatten().tolist() == pytest.approx([0.7071, 0.7071, -0.7071], abs=1e-4)


def test_our_losses_are_found_by_name_and_agree_with_verls(registered: Any) -> None:
    from verl.workers.config import ActorConfig

    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_high=0.2)
    generator = torch.Generator().manual_seed(0)
    now, old, advantages = (torch.randn((4, 12), generator=generator) for _ in range(3))
    mask = (torch.rand((4, 12), generator=generator) < 0.7).long()
    for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum"):
        config.global_batch_info.update({"dp_size": 2, "batch_num_tokens": 60, "global_batch_size": 9})
        values = []
        for name in ("vanilla", "agent_r1/clip"):
            leaf = now.clone().requires_grad_()
            value, _ = registered.get_policy_loss_fn(name)(old, leaf, advantages, mask, mode, config)
            values.append((value.detach(), torch.autograd.grad(value, leaf)[0]))
        assert torch.allclose(values[0][0], values[1][0])
        assert torch.allclose(values[0][1], values[1][1])


def test_verls_training_loss_calls_ours_on_the_rows_of_v1(registered: Any) -> None:
    """`ppo_loss`, which verl's engines call with a micro-batch: two rows, a run of two steps and one of one."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils
    from verl.workers.config import ActorConfig, PolicyLossConfig
    from verl.workers.utils.losses import ppo_loss

    from agent_r1.algorithms import LossInputs, policy_losses

    generator = torch.Generator().manual_seed(0)
    prompts, masks = (3, 2), ([1, 1, 0, 1], [1, 1])
    logprobs = [
        torch.randn(p + len(m), generator=generator).requires_grad_() for p, m in zip(prompts, masks, strict=True)
    ]
    old, advantages = ([torch.randn(len(m), generator=generator) for m in masks] for _ in range(2))

    def nested(rows: Any) -> Any:
        return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)

    data = TensorDict(
        {
            "prompts": nested(torch.ones(size, dtype=torch.long) for size in prompts),
            "responses": nested(torch.ones(len(m), dtype=torch.long) for m in masks),
            "response_mask": nested(torch.tensor(m) for m in masks),
            "old_log_probs": nested(old),
            "advantages": nested(advantages),
        },
        batch_size=2,
    )
    tensordict_utils.assign_non_tensor(data, dp_size=1, batch_num_tokens=5, global_batch_size=2)
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(loss_mode="agent_r1/clip"),
    )
    found, metrics = ppo_loss(config, {"log_probs": nested(logprobs)}, data)
    kept = [torch.tensor(m).bool() for m in masks]
    now = torch.cat([row[size - 1 : -1][m] for row, size, m in zip(logprobs, prompts, kept, strict=True)])
    expected = policy_losses.get("clip")(
        LossInputs(
            policy_logprobs_N=now,
            old_logprobs_N=torch.cat([row[m] for row, m in zip(old, kept, strict=True)]),
            advantages_N=torch.cat([row[m] for row, m in zip(advantages, kept, strict=True)]),
            step_N=torch.tensor([0, 0, 1, 2, 2]),
        )
    ).loss_N.mean()
    assert torch.allclose(found, expected)
    gradients = [torch.autograd.grad(each, logprobs, retain_graph=True) for each in (found, expected)]
    assert all(torch.allclose(*pair) for pair in zip(*gradients, strict=True))
    assert "actor/clip_fraction" in metrics


def test_verls_gae_is_our_token_gae_over_several_steps(registered: Any) -> None:
    """What a recipe with `token_gae` is told to use: steps of 2 and 3 tokens with something written between them."""
    from agent_r1.algorithms import StepTable, estimators

    mask = torch.tensor([[1, 1, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0]])
    rewards, values = torch.zeros(2, 7), torch.randn((2, 7), generator=torch.Generator().manual_seed(1))
    rewards[0, 1], rewards[0, 6], rewards[1, 2] = 0.1, 1.0, 0.5
    advantages, returns = registered.compute_gae_advantage_return(rewards, values, mask, gamma=0.97, lam=0.9)
    table = StepTable(
        rewards_S=torch.tensor([0.1, 1.0, 0.5], dtype=torch.float64),
        lengths_S=torch.tensor([2, 3, 3]),
        trajectory_S=torch.tensor([0, 0, 1]),
        group_R=torch.tensor([0, 0]),
        values_N=values[mask.bool()].double(),
    )
    credit = estimators.get("token_gae")(table, gamma=0.97, lam=0.9)
    assert credit.returns_N is not None
    assert torch.allclose(advantages[mask.bool()], credit.advantages_N.float(), atol=1e-5)
    assert torch.allclose(returns[mask.bool()], credit.returns_N.float(), atol=1e-5)


# --- the command ------------------------------------------------------------------------------------------------------


def test_a_recipe_becomes_a_configuration_that_verl_accepts(tmp_path: Path, model_folder: Path) -> None:
    """The launch script's own overrides, verl's own composition, checks and dataset."""
    from hydra import compose, initialize_config_module
    from transformers import AutoTokenizer
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config
    from verl.utils.dataset.rl_dataset import RLHFDataset

    from agent_r1.integrations.verl.recipe import task_of_row

    folder = tmp_path / "verl"
    command = [sys.executable, "-m", "agent_r1.integrations.verl", str(QUICKSTART), "--out", str(folder)]
    settings = ["algorithm.kl.coefficient=0.01", "algorithm.entropy_coefficient=0.1", "algorithm.off_policy=token"]
    written = subprocess.run(
        [*command, f"model.path={model_folder}", *settings, f"run.folder={tmp_path}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert written.returncode == 0, written.stderr
    script = (folder / "launch.sh").read_text()
    words = shlex.split(script[script.index("exec python") :].replace("\\\n", " "))
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[word for word in words[4:] if word != "$@"])
    validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    assert config.algorithm.adv_estimator == config.actor_rollout_ref.actor.policy_loss.loss_mode == "agent_r1"
    assert config.actor_rollout_ref.actor.kl_loss_type == "low_var_kl"
    assert config.data.max_prompt_length + config.data.max_response_length == 384
    rows = RLHFDataset(config.data.train_files, AutoTokenizer.from_pretrained(model_folder), config.data)
    tasks = load_tasks([tmp_path / "quickstart_data" / "train.jsonl"])
    assert len(rows) == len(tasks)
    assert all(task_of_row(rows[number]) == task for number, task in enumerate(tasks[:50]))


def test_verl_imports_our_parts_in_every_process(tmp_path: Path, model_folder: Path) -> None:
    """Through the variables that the launch script exports and forwards to Ray; the recipe's arguments are used."""
    recipe = write_recipe(tmp_path, model_folder, "algorithm.estimator.normalise_std=false")
    code = (
        "import verl, torch\n"
        "from verl.trainer.ppo.core_algos import get_adv_estimator_fn\n"
        "estimate = get_adv_estimator_fn('agent_r1')\n"
        "found, _ = estimate(torch.tensor([[1.0], [0.0]]), torch.ones(2, 1), index=['a', 'a'])\n"
        "print('advantages', found.flatten().tolist())\n"
    )
    variables = {
        "VERL_USE_EXTERNAL_MODULES": "agent_r1.integrations.verl.register",
        "AGENT_R1_VERL_RECIPE": str(recipe),
    }
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert "advantages [0.5, -0.5]" in ran.stdout, ran.stderr
