"""A recipe's configuration in verl's keys. What verl cannot carry is refused by name, all of it in one error; what it
carries differently is noted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_r1.config import AlgorithmConfig, Config
from agent_r1.errors import ConfigError, report_problems
from agent_r1.images import is_vision_model
from agent_r1.integrations.verl.estimators import REFUSED

AGGREGATIONS: Mapping[str, str] = {
    "token-mean": "token-mean",
    "trajectory-mean-token-mean": "seq-mean-token-mean",
    "trajectory-mean-token-sum": "seq-mean-token-sum",
    "token-sum-norm": "seq-mean-token-sum-norm",
}
"""Our aggregations by verl's names. An episode is one row."""
OF_VERL: Mapping[str, str] = {
    "group": "grpo",
    "leave_one_out": "rloo",
    "group_whitened": "reinforce_plus_plus_baseline",
    "token_gae": "gae",
    "greedy_baseline": "remax",
}
"""Estimators of ours that verl has too, also with a KL penalty in the reward of each token."""
KL_ESTIMATORS: Mapping[str, str] = {"k1": "kl", "abs": "abs", "k2": "mse", "k3": "low_var_kl"}
"""Our KL estimators by verl's names."""
TRACKERS = ("tensorboard", "wandb", "mlflow")
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


@dataclass
class VerlSettings:
    """verl's keys for a recipe."""

    overrides: dict[str, Any] = field(default_factory=dict)
    """Values by verl's keys."""
    notes: list[str] = field(default_factory=list)
    """What verl does differently."""
    problems: list[str] = field(default_factory=list)
    """What verl cannot carry."""


def verl_settings(config: Config, *, prompt_length: int, context_length: int, gpus: int) -> VerlSettings:
    """The settings of verl's trainer for a recipe, whose longest first prompt has `prompt_length` tokens.

    Raises one `ConfigError` that names everything verl cannot carry, with what to use instead.
    """
    settings = VerlSettings()
    for part in (_batches, _lengths, _optimizer, _estimator, _loss, _kl, _off_policy, _rewards, _model, _trainer):
        part(config, settings)
    settings.overrides |= {
        "data.max_prompt_length": prompt_length,
        "data.max_response_length": context_length - prompt_length,
        "trainer.n_gpus_per_node": gpus,
        "trainer.nnodes": 1,
    }
    report_problems(settings.problems, ConfigError, "verl cannot carry this recipe:")
    return settings


def check_rewards(config: Config) -> None:
    """Refuse reward settings that need a whole batch, where verl scores one episode at a time."""
    settings = VerlSettings()
    _rewards(config, settings)
    report_problems(settings.problems, ConfigError, "verl cannot carry this recipe:")


def _batches(config: Config, settings: VerlSettings) -> None:
    rollout, algorithm = config.rollout, config.algorithm
    per_update, left = divmod(rollout.groups_per_step, algorithm.minibatches)
    if left:
        settings.problems.append(
            f"algorithm.minibatches={algorithm.minibatches} does not divide rollout.groups_per_step="
            f"{rollout.groups_per_step}, and verl's batches are equal; use a number that does"
        )
    if rollout.max_staleness:
        settings.problems.append(
            f"rollout.max_staleness={rollout.max_staleness} is for our own trainer; set 0 and choose verl's "
            "trainer.v1.trainer_mode=colocate_async or separate_async"
        )
    if algorithm.group_plan not in ("sampled", "with_greedy"):
        settings.problems.append(
            f"algorithm.group_plan={algorithm.group_plan}: the members of verl's groups are alike; use sampled"
        )
    settings.overrides |= {
        "data.train_batch_size": rollout.groups_per_step,
        f"{ROLLOUT}.n": rollout.group_size,
        f"{ACTOR}.ppo_mini_batch_size": per_update,
        f"{ACTOR}.ppo_epochs": algorithm.epochs,
    }
    if algorithm.refill_rounds:
        settings.overrides |= {
            "algorithm.filter_groups.enable": True,
            "algorithm.filter_groups.metric": "reward",
            "algorithm.filter_groups.max_num_gen_batches": algorithm.refill_rounds + 1,
        }
    else:
        settings.notes.append(
            "groups whose members all earned the same have no gradient here either, but verl counts their tokens in "
            "its denominators; algorithm.filter_groups.enable=True leaves them out"
        )


def _lengths(config: Config, settings: VerlSettings) -> None:
    rollout = config.rollout
    settings.overrides |= {
        f"{ROLLOUT}.name": "vllm",
        f"{ROLLOUT}.temperature": rollout.temperature,
        f"{ROLLOUT}.top_p": rollout.top_p,
        f"{ROLLOUT}.top_k": rollout.top_k or -1,
        f"{ROLLOUT}.calculate_log_probs": True,
        f"{ROLLOUT}.tensor_model_parallel_size": 1,
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.ppo_max_token_len_per_gpu": config.trainer.micro_batch_tokens,
    }


def _optimizer(config: Config, settings: VerlSettings) -> None:
    optimizer = config.optimizer
    settings.overrides |= {
        f"{ACTOR}.optim.lr": optimizer.learning_rate,
        f"{ACTOR}.optim.lr_warmup_steps": optimizer.warmup_steps,
        f"{ACTOR}.optim.weight_decay": optimizer.weight_decay,
        f"{ACTOR}.optim.clip_grad": optimizer.gradient_clip,
    }
    if optimizer.final_fraction < 1:
        settings.overrides |= {
            f"{ACTOR}.optim.lr_scheduler_type": "cosine",
            f"{ACTOR}.optim.min_lr_ratio": optimizer.final_fraction,
        }
        settings.notes.append(
            f"optimizer.final_fraction={optimizer.final_fraction}: the learning rate falls to it along a cosine, not a "
            "straight line"
        )


def _estimator(config: Config, settings: VerlSettings) -> None:
    algorithm = config.algorithm
    name, arguments = algorithm.estimator.name, algorithm.estimator.arguments
    if name == "token_gae":
        _gae(algorithm, settings)
    elif name in OF_VERL and (name in REFUSED or _penalises_rewards(algorithm)):
        settings.overrides["algorithm.adv_estimator"] = OF_VERL[name]
        settings.overrides["algorithm.norm_adv_by_std_in_grpo"] = arguments.get("normalise_std") is not False
    elif name in REFUSED:
        settings.problems.append(f"algorithm.estimator.name={name}: {REFUSED[name]}")
    else:
        settings.overrides["algorithm.adv_estimator"] = "agent_r1"
    settings.overrides["algorithm.gamma"] = float(arguments.get("gamma", 1.0))


def _penalises_rewards(algorithm: AlgorithmConfig) -> bool:
    return bool(algorithm.kl.coefficient) and algorithm.kl.place == "reward"


def _gae(algorithm: AlgorithmConfig, settings: VerlSettings) -> None:
    """verl's own GAE, which is our `token_gae`, with a critic of verl's."""
    critic, arguments = algorithm.critic, algorithm.estimator.arguments
    if arguments.get("whitened") is False:
        settings.problems.append("algorithm.estimator.whitened=false: verl's gae always whitens; set true")
    if critic.kind != "own":
        settings.problems.append(
            f"algorithm.critic.kind={critic.kind}: verl's critic is a model of its own; set algorithm.critic.kind=own"
        )
    for key in ("bootstrap", "privileged"):
        if getattr(critic, key):
            settings.problems.append(f"algorithm.critic.{key}: verl's critic cannot; leave it out")
    settings.overrides |= {
        "algorithm.adv_estimator": "gae",
        "algorithm.lam": float(arguments.get("lam", 0.95)),
        "critic.optim.lr": critic.learning_rate,
        "critic.cliprange_value": 1e9 if critic.value_clip is None else critic.value_clip,
        "trainer.critic_warmup": critic.warmup_steps,
    }


def _loss(config: Config, settings: VerlSettings) -> None:
    algorithm = config.algorithm
    name = algorithm.aggregation.name
    if name not in AGGREGATIONS:
        settings.problems.append(
            f"algorithm.aggregation.name={name}: verl aggregates tokens and rows, and a row is an episode; use one of "
            f"{', '.join(AGGREGATIONS)}"
        )
    settings.overrides |= {
        f"{ACTOR}.policy_loss.loss_mode": "agent_r1",
        f"{ACTOR}.loss_agg_mode": AGGREGATIONS.get(name),
        f"{ACTOR}.entropy_coeff": algorithm.entropy_coefficient,
    }
    if name == "token-sum-norm":
        settings.overrides[f"{ACTOR}.loss_scale_factor"] = algorithm.aggregation.arguments.get("divisor")
    if algorithm.old_logprobs == "rollout":
        settings.problems.append(
            "algorithm.old_logprobs=rollout: verl's bypass mode replaces the loss; use trainer, or auto"
        )
    elif algorithm.old_logprobs == "auto":
        settings.notes.append("old log-probs are the trainer's, which verl computes; ours would take the engine's")


def _kl(config: Config, settings: VerlSettings) -> None:
    kl = config.algorithm.kl
    if not kl.coefficient:
        return
    name, plus = kl.estimator.removesuffix("+"), "+" if kl.estimator.endswith("+") else ""
    if name not in KL_ESTIMATORS:
        settings.problems.append(f"algorithm.kl.estimator={name}: verl has {', '.join(KL_ESTIMATORS)}")
        return
    if kl.place == "reward":
        _kl_in_reward(config.algorithm, KL_ESTIMATORS[name] + plus, settings)
        return
    if kl.target is not None:
        settings.problems.append("algorithm.kl.target: verl adapts only a KL in the reward; set target=null")
    settings.overrides |= {
        f"{ACTOR}.use_kl_loss": True,
        f"{ACTOR}.kl_loss_coef": kl.coefficient,
        f"{ACTOR}.kl_loss_type": KL_ESTIMATORS[name] + plus,
    }


def _kl_in_reward(algorithm: AlgorithmConfig, penalty: str, settings: VerlSettings) -> None:
    """A penalty on tokens, which verl's own estimators read; ours could not tell it from the task's reward."""
    kl, name = algorithm.kl, algorithm.estimator.name
    if name not in OF_VERL:
        settings.problems.append(
            f"algorithm.kl.place=reward with algorithm.estimator.name={name}: inside verl our estimators cannot tell a "
            "penalty per token from the task's reward; set place=loss"
        )
    settings.notes.append(
        f"with a KL penalty in the reward the estimator is verl's own {OF_VERL.get(name)}: groups whose members all "
        "earned the same keep the credit of their penalties"
    )
    settings.overrides |= {
        "algorithm.use_kl_in_reward": True,
        "algorithm.kl_penalty": penalty,
        "algorithm.kl_ctrl.type": "fixed" if kl.target is None else "adaptive",
        "algorithm.kl_ctrl.kl_coef": kl.coefficient,
        "algorithm.kl_ctrl.horizon": kl.horizon,
    }
    if kl.target is not None:
        settings.overrides["algorithm.kl_ctrl.target_kl"] = kl.target


def _off_policy(config: Config, settings: VerlSettings) -> None:
    part = config.algorithm.off_policy
    if part.name == "token":
        settings.overrides |= {
            "algorithm.rollout_correction.rollout_is": "token",
            "algorithm.rollout_correction.rollout_is_threshold": part.arguments.get("cap", 2.0),
        }
    elif part.name != "none":
        settings.problems.append(
            f"algorithm.off_policy.name={part.name}: verl's correction of that kind is over whole rows and weights "
            "differently; use token, or verl's own keys (algorithm.rollout_correction)"
        )


def _rewards(config: Config, settings: VerlSettings) -> None:
    normalisation = config.algorithm.process.normalisation
    if normalisation != "none" and config.reward.process_weight:
        settings.problems.append(
            f"algorithm.process.normalisation={normalisation} divides by what a whole batch earned, and verl scores "
            "one episode at a time; set none, with reward.process_weight as the scale"
        )
    if config.algorithm.critic.bootstrap:
        settings.problems.append("algorithm.critic.bootstrap: verl scores every episode that is cut; set false")


def image_problem(path: str) -> str | None:
    """Why a model cannot be trained in verl: verl's rows and servers would have to carry images for it."""
    if not is_vision_model(path):
        return None
    return (
        f"model.path={path} reads images, which the agent loop of verl does not carry for us; train it with "
        "agent-r1 train, or use a model of text"
    )


def _model(config: Config, settings: VerlSettings) -> None:
    model = config.model
    problem = image_problem(model.path)
    settings.problems += [] if problem is None else [problem]
    settings.overrides |= {
        "actor_rollout_ref.model.path": model.path,
        "actor_rollout_ref.model.trust_remote_code": model.trust_remote_code,
        "actor_rollout_ref.model.enable_gradient_checkpointing": config.trainer.gradient_checkpointing,
    }
    if model.lora.rank:
        settings.overrides |= {
            "actor_rollout_ref.model.lora_rank": model.lora.rank,
            "actor_rollout_ref.model.lora_alpha": model.lora.alpha,
            "actor_rollout_ref.model.target_modules": (
                "all-linear" if model.lora.targets == ["all-linear"] else list(model.lora.targets)
            ),
        }


def _trainer(config: Config, settings: VerlSettings) -> None:
    trackers = [name for name in config.tracking.trackers if name in TRACKERS]
    for name in set(config.tracking.trackers) - set(trackers):
        settings.notes.append(f"the tracker {name} is ours; verl logs to its own (trainer.logger)")
    if not config.trainer.keep_checkpoints:
        settings.notes.append("trainer.keep_checkpoints=0: verl saves the model in its checkpoints, so none is saved")
    settings.overrides |= {
        "trainer.total_training_steps": config.trainer.steps,
        "trainer.total_epochs": 1_000_000,
        "trainer.save_freq": config.trainer.save_every if config.trainer.keep_checkpoints else -1,
        "trainer.max_actor_ckpt_to_keep": config.trainer.keep_checkpoints,
        "trainer.test_freq": config.eval.every or -1,
        "trainer.val_before_train": config.eval.before and bool(config.data.eval),
        "trainer.project_name": config.tracking.project,
        "trainer.experiment_name": config.run.name,
        "trainer.logger": ["console", *trackers],
    }
