"""The agent loop `agent_r1`: a recipe's flow runs in verl's rollout workers, on verl's servers.

verl loads it through the file that `actor_rollout_ref.rollout.agent.agent_loop_config_path` names:

    - name: agent_r1
      _target_: agent_r1.integrations.verl.loop.AgentR1Loop
      recipe: /data/verl/recipe.yaml

for rows with `agent_name: agent_r1`. An episode that fails raises, and v1 drops its group: it is never a zero reward.
"""

from __future__ import annotations

import os
import secrets
from typing import Any
from uuid import uuid4

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, _agent_loop_registry, register
from verl.utils.rollout_trace import rollout_trace_op

from agent_r1.errors import ConfigError
from agent_r1.integrations.verl.conversion import VerlSequence
from agent_r1.integrations.verl.engine import VerlEngine
from agent_r1.integrations.verl.estimators import REFUSED, refuse
from agent_r1.integrations.verl.outputs import WHOLE_EPISODE, VerlSetting, verl_sequences
from agent_r1.integrations.verl.recipe import RECIPE_VARIABLE, VerlRecipe, load_recipe, task_of_row
from agent_r1.seeds import mix_seed
from agent_r1.types import Trajectory


class AgentR1Output(AgentLoopOutput):  # type: ignore[misc]
    """verl's output, with the rewards of steps on their tokens. verl's v1 worker reads it through `as_dict`; the older
    one reads `reward_score`, their sum."""

    response_rewards: list[float] | None = None
    """One per response id; None: `reward_score` on the last."""

    def as_dict(self) -> dict[str, Any]:
        """The output as verl's fields."""
        fields: dict[str, Any] = super().as_dict()
        rewards = fields.pop("response_rewards", None)
        if rewards is not None:
            fields["rm_scores"] = torch.tensor(rewards, dtype=torch.float32)
        return fields


class AgentR1Loop(AgentLoopBase):  # type: ignore[misc]
    """Runs one episode of a recipe."""

    def __init__(self, *arguments: Any, recipe: str | None = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        path = recipe or os.environ.get(RECIPE_VARIABLE)
        if not path:
            raise ConfigError(
                "the agent loop agent_r1 has no recipe: name it in the file of agent_loop_config_path (recipe: ...), "
                f"or in {RECIPE_VARIABLE}"
            )
        self.recipe: VerlRecipe = load_recipe(str(path))

    @rollout_trace_op  # type: ignore[untyped-decorator]
    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **row: Any) -> Any:
        """Play the row's task. One output, or a list of them where the history was rewritten."""
        setting = self._setting(is_v1="session_id" in row)
        priority = int(priority)
        fixed = bool(self.rollout_config.get("full_determinism", False))
        engine = VerlEngine(
            self.server_manager,
            request_id=f"det-{priority}" if fixed else uuid4().hex,
            sampling_params=sampling_params,
            prompt_length=setting.prompt_length,
            response_length=setting.response_length,
            priority=priority,
        )
        position = (priority, int(row.get("session_id", 0)))
        trajectory = await self.recipe.play(
            task_of_row(row, self.recipe.config.data.agent_name),
            engine=engine,
            renderer=self.recipe.renderer(self.tokenizer, str(self.config.actor_rollout_ref.model.path)),
            sampling_params=sampling_params,
            seed=mix_seed(self.recipe.config.trainer.seed, *position) if fixed else secrets.randbits(62),
        )
        rewards = self.recipe.rewards_of(trajectory)
        sequences = verl_sequences(trajectory, rewards, setting)
        outputs = [self._output(sequence, trajectory, rewards, engine) for sequence in sequences]
        if len(outputs) > 1:
            return outputs
        if setting.estimator not in WHOLE_EPISODE:
            outputs[0].response_rewards = list(sequences[0].response_rewards)
        return outputs[0]

    def _setting(self, *, is_v1: bool) -> VerlSetting:
        algorithm, actor = self.recipe.config.algorithm, self.config.actor_rollout_ref.actor
        estimator = str(self.config.algorithm.adv_estimator)
        loss = str(actor.policy_loss.loss_mode)
        if estimator == "agent_r1":
            estimator = f"agent_r1/{algorithm.estimator.name}"
        name = estimator.removeprefix("agent_r1/")
        if estimator != name and name in REFUSED:
            refuse("estimator", name, REFUSED[name])
        return VerlSetting(
            estimator=estimator,
            is_v1=is_v1,
            prompt_length=int(self.rollout_config.prompt_length),
            response_length=int(self.rollout_config.response_length),
            step_ratio=loss == "agent_r1" and algorithm.loss.arguments.get("ratio") == "step",
        )

    def _output(
        self, sequence: VerlSequence, trajectory: Trajectory, rewards: tuple[float, ...], engine: VerlEngine
    ) -> AgentR1Output:
        counts = engine.counts
        return AgentR1Output(
            prompt_ids=list(sequence.prompt_ids),
            response_ids=list(sequence.response_ids),
            response_mask=list(sequence.response_mask),
            response_logprobs=list(sequence.response_logprobs),
            reward_score=sum(rewards),
            num_turns=2 * len(trajectory.steps),  # verl counts what the model reads and what it writes
            metrics={
                "generate_sequences": sum(step.timings.get("generate", 0.0) for step in trajectory.steps),
                "tool_calls": sum(step.timings.get("env", 0.0) for step in trajectory.steps),
                "num_preempted": counts.num_preempted,
            },
            extra_fields={
                "turn_scores": list(rewards),
                "tool_rewards": [],
                "min_global_steps": counts.min_global_steps,
                "max_global_steps": counts.max_global_steps,
                "stop_reason": str(trajectory.stop_reason),
                "reward_extra_info": {
                    "outcome": trajectory.outcome_reward,
                    "process": trajectory.process_reward,
                    "success": trajectory.success,
                },
            },
        )


# verl imports this module when it makes the first loop; an entry of the user's file, which names the recipe, stays.
if "agent_r1" not in _agent_loop_registry:
    register("agent_r1")(AgentR1Loop)
