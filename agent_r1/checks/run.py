"""All checks of a recipe, from those that need nothing to those that need the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from agent_r1.checks.chat import call_findings, tag_findings, template_findings
from agent_r1.checks.images import has_images, image_findings, tool_image_findings
from agent_r1.checks.plans import plans_result
from agent_r1.checks.report import Report, Result, without_repeats
from agent_r1.checks.rows import control_token_findings, gold_result, prompt_findings, room_findings
from agent_r1.checks.trials import (
    Trials,
    agreement_result,
    episodes_result,
    failed_trials,
    reward_result,
    run_trials,
    tokens_result,
    tools_result,
)
from agent_r1.config import Config
from agent_r1.console import RunConsole
from agent_r1.engines import takes_messages
from agent_r1.envs import check_env
from agent_r1.errors import AgentR1Error, RolloutsFailingError
from agent_r1.event_loop import run_cancelling
from agent_r1.findings import Finding
from agent_r1.flows import AgentEnvLoop, AgentFlowBase
from agent_r1.images import is_vision_model
from agent_r1.interrupts import stop_signals
from agent_r1.rewards import terms_of
from agent_r1.tools import check_tool
from agent_r1.training import (
    CheckedModel,
    RunPlan,
    check_model,
    check_model_exists,
    context_length_of,
    distinct_setups,
    ensure_model,
    first_observation,
    load_components,
    prepare_model,
    prepare_plan,
    renderer_of,
    tool_policies,
    tools_in_use,
)
from agent_r1.types import Observation, Task, Trajectory, media_in

_LONGEST_ROWS = 200


def check_recipe(
    config: Config,
    console: RunConsole,
    *,
    groups: int = 8,
    members: int = 4,
    with_trials: bool = True,
    on_result: Callable[[Result], None] = lambda result: None,
) -> Report:
    """Make every check that can be made; `on_result` is called with each as it is done.

    A check that has nothing to work on (for example no model, without `with_trials`) is skipped and says why. No run
    folder is written. The recipe's preparation runs, and with trials its warm start too.
    """
    results: list[Result] = []
    with stop_signals(quiet=console.console.quiet) as stop, stop.leaving("The check was not finished."):
        for result in _all(config, console, groups, members, with_trials):
            results.append(result)
            on_result(result)
    return Report(results=tuple(results))


def _all(config: Config, console: RunConsole, groups: int, members: int, with_trials: bool) -> Iterator[Result]:
    plan, result = _attempt("configuration and data", lambda: prepare_plan(config, console), lambda plan: _sizes(plan))
    yield result
    if plan is None:
        return
    tasks = [*plan.train_tasks, *plan.eval_tasks]
    prompts = tuple(prompt_findings(tasks))
    yield Result(title="prompts", findings=prompts, seen="" if prompts else "all end before the model's turn")
    yield _tools(plan, tasks)
    reward = terms_of(plan.reward)[0]
    gold = run_cancelling(lambda: gold_result(reward, tasks))
    make_env = plan.make_env
    env_tasks = [task for task in tasks if _has_env(task)] if gold.skipped else []
    plans = run_cancelling(lambda: plans_result(make_env, reward, env_tasks))
    yield plans or Result(title="gold answers", findings=gold.findings, seen=gold.seen, skipped=gold.skipped)
    plan = _with_model(plan, console, warm_start=with_trials)
    images = None if takes_messages(plan.config) else _images(plan, tasks)
    if images is not None:
        yield images
        if any(finding.severity == "problem" for finding in images.findings):
            return  # the model check would stop at the first of them
    seen = "at the server" if takes_messages(plan.config) else "found"
    model, result = _attempt("model", lambda: check_model(plan), lambda model: seen)
    yield result
    if model is None:
        return
    if not takes_messages(plan.config):
        yield from _rendering(plan, model, tasks)
    if not with_trials:
        yield Result(title="trial episodes", seen="not requested", skipped=True)
        return
    yield from _trials(plan, model, console, groups, members)


def _images(plan: RunPlan, tasks: Sequence[Task]) -> Result | None:
    """What is wrong with images; None when rows have none and the model sees none, or when it cannot be loaded."""
    try:
        check_model_exists(plan.config)
        if not is_vision_model(plan.config.model.path) and not any(media_in(task.prompt) for task in tasks):
            return None
        shown = [(task, first_observation(plan, task)) for task in tasks]
        number = sum(has_images(observation) for _, observation in shown)
        renderer, context = renderer_of(plan.config.model), context_length_of(plan.config)
    except AgentR1Error:
        return None  # the model check reports it
    limits = plan.config.rollout.max_images, plan.config.rollout.max_episode_images
    max_images = min((limit for limit in limits if limit is not None), default=None)
    findings = image_findings(renderer, shown, context=context, max_images=max_images)
    setups = [first_observation(plan, task) for task in distinct_setups(tasks)]
    findings += [finding for observation in setups for finding in tool_image_findings(renderer, observation)]
    return Result(title="images", findings=without_repeats(findings), seen=f"{number} of {len(shown)} rows have images")


def _rendering(plan: RunPlan, model: CheckedModel, tasks: Sequence[Task]) -> Iterator[Result]:
    """What the model's tokenizer and chat template make of the rows; a server has its own."""
    renderer = model.renderer
    yield _room(plan, model, tasks)
    findings = control_token_findings(renderer, tasks)
    yield Result(
        title="control tokens", findings=tuple(findings), seen="" if findings else "no row has any in its text"
    )
    observations = [first_observation(plan, task) for task in distinct_setups(tasks)]
    yield _about(observations, "chat template", lambda observation: template_findings(renderer, observation))
    yield _about(observations, "calls", lambda observation: call_findings(renderer, observation))


def _with_model(plan: RunPlan, console: RunConsole, *, warm_start: bool) -> RunPlan:
    """The plan with a model that exists. A warm start changes weights, which only trial episodes use."""
    if warm_start or takes_messages(plan.config):
        return ensure_model(plan, console)
    return replace(plan, config=prepare_model(plan.config, console))


def _attempt(title: str, work: Callable[[], Any], seen: Callable[[Any], str]) -> tuple[Any, Result]:
    """The result of `work`, or None with the error it raised as a finding."""
    try:
        outcome = work()
    except AgentR1Error as error:
        return None, Result(title=title, findings=(Finding(rule="it can be used", observed=str(error)),))
    return outcome, Result(title=title, seen=seen(outcome))


def _sizes(plan: RunPlan) -> str:
    return f"{len(plan.train_tasks)} rows to train on, {len(plan.eval_tasks)} held out"


def _tools(plan: RunPlan, tasks: Sequence[Task]) -> Result:
    tools = {tool.name: tool for tool in tools_in_use(plan.config, tasks)}
    if not tools:
        return Result(title="tools", seen="the recipe names none", skipped=True)
    policies = tool_policies(plan.config)
    findings = [finding for tool in tools.values() for finding in check_tool(tool, policies=policies)]
    return Result(title="tools", findings=without_repeats(findings), seen=", ".join(sorted(tools)))


def _room(plan: RunPlan, model: CheckedModel, tasks: Sequence[Task]) -> Result:
    """Looks only at the rows with the most characters; `check_model` has checked that every prompt fits."""
    longest = sorted(tasks, key=lambda task: len(str(task.prompt)), reverse=True)[:_LONGEST_ROWS]
    lengths = [
        (task.task_id, len(model.renderer.render(first_observation(plan, task), trusted=task.trusted).token_ids))
        for task in longest
    ]
    settings, context = plan.config.rollout, model.context_length
    findings = room_findings(lengths, context=context, max_tokens=settings.max_tokens, max_steps=settings.max_steps)
    seen = f"the longest first prompt has {max(length for _, length in lengths)} of {context} tokens" if lengths else ""
    return Result(title="context", findings=tuple(findings), seen=seen)


def _about(
    observations: Sequence[Observation], title: str, findings_of: Callable[[Observation], list[Finding]]
) -> Result:
    findings = [finding for observation in observations for finding in findings_of(observation)]
    return Result(title=title, findings=without_repeats(findings))


def _trials(plan: RunPlan, model: CheckedModel, console: RunConsole, groups: int, members: int) -> Iterator[Result]:
    components = load_components(plan, model)
    if components.policy is not None:
        observations = [
            first_observation(plan, task) for task in distinct_setups([*plan.train_tasks, *plan.eval_tasks])
        ]
        yield _about(
            observations, "tags", lambda observation: tag_findings(model.renderer, observation, components.policy)
        )
    tasks = (plan.train_tasks or plan.eval_tasks)[:groups]
    with console.progress("trial episodes", len(tasks) * members) as bar:

        def advance(trajectory: Trajectory) -> None:
            bar.advance()

        try:
            trials = run_cancelling(lambda: run_trials(plan, components, tasks, members=members, on_finished=advance))
        except RolloutsFailingError as error:
            yield failed_trials(error)
            return
    yield episodes_result(trials)
    yield reward_result(trials)
    yield tools_result(trials)
    yield tokens_result(trials)
    yield agreement_result(trials, plan, components)
    yield _environment(plan, trials)


def _has_env(task: Task) -> bool:
    return issubclass(AgentFlowBase.registry.get(task.agent_name), AgentEnvLoop)


def _environment(plan: RunPlan, trials: Trials) -> Result:
    """Play the actions of the longest trial episode in fresh environments."""
    played = [(group.task, trajectory) for group in trials.groups for trajectory in group.valid if _has_env(group.task)]
    if not played:
        return Result(title="environment", seen="the flow uses none", skipped=True)
    task, longest = max(played, key=lambda entry: len(entry[1].steps))
    actions = [step.action for step in longest.steps]
    findings = check_env(lambda: plan.make_env(task), task, actions)
    seen = f"the {len(actions)} actions of a trial episode of '{task.task_id}', played twice"
    return Result(title="environment", findings=tuple(findings), seen=seen)
