"""Gold plans: where an environment knows actions that solve its tasks, they score full marks, and without their last
action they do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent_r1.checks.report import Result
from agent_r1.envs import AgentEnv, as_step_result
from agent_r1.errors import EpisodeError, boundary
from agent_r1.findings import Finding
from agent_r1.rewards import RewardFunction, score_episode
from agent_r1.types import Action, Episode, Step, StopReason, Task

_TRIED_ROWS = 50
_SHOWN = 5


async def plans_result(
    make_env: Callable[[Task], AgentEnv], reward: RewardFunction, tasks: Sequence[Task]
) -> Result | None:
    """Play the gold plans of rows that are evenly spaced; None when the environment knows no plan for any of them."""
    rows = tasks[:: max(1, -(-len(tasks) // _TRIED_ROWS))]
    missed: list[str] = []
    fooled: list[str] = []
    num_played = 0
    for task in rows:
        try:
            with boundary(StopReason.ENV_ERROR, "gold_actions"):
                plan = make_env(task).gold_actions(task)
            if plan is None:
                continue
            num_played += 1
            if await _score(make_env(task), reward, task, plan) < 1.0:
                missed.append(f"'{task.task_id}'")
            if await _score(make_env(task), reward, task, plan[:-1]) >= 1.0:
                fooled.append(f"'{task.task_id}'")
        except EpisodeError as error:
            missed.append(f"'{task.task_id}' ({error})")
    if not num_played and not missed:
        return None
    results = (
        ("gold plans score full marks", missed, "Fix the environment, its gold_actions or the reward function"),
        ("a plan without its last action does not", fooled, "Make the reward function stricter"),
    )
    findings = [
        Finding(rule=rule, observed=f"{len(names)} of {num_played} rows: {', '.join(names[:_SHOWN])}", fix=fix)
        for rule, names, fix in results
        if names
    ]
    seen = f"{num_played - len(missed)} of {num_played} gold plans score full marks, {len(fooled)} cut ones do"
    return Result(title="gold plans", findings=tuple(findings), seen=seen)


async def _score(env: AgentEnv, reward: RewardFunction, task: Task, plan: Sequence[str | Action]) -> float:
    """The success of an episode with these actions, else its reward."""
    steps: list[Step] = []
    with boundary(StopReason.ENV_ERROR, "a gold plan"):
        try:
            observation = await env.reset(task)
            for texts in plan:
                action = texts if isinstance(texts, Action) else Action(text=texts, content=texts)
                result = as_step_result(await env.step(action))
                steps.append(
                    Step(
                        observation=observation,
                        prompt_ids=(),
                        action=action,
                        action_ids=(),
                        rollout_logprobs=(),
                        reward=result.reward,
                        done=result.done,
                        policy_versions=(),
                        info=result.info,
                    )
                )
                if result.done or result.observation is None:
                    break
                observation = result.observation
        finally:
            await env.close()
    stop = StopReason.DONE if steps and steps[-1].done else StopReason.MAX_STEPS
    score = await score_episode(reward, task, Episode(steps=tuple(steps), stop_reason=stop))
    return float(score.parts.get("success", score.value))
