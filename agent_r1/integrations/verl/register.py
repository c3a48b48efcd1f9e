"""Registers our estimators and losses with verl, in every process that imports verl:

    VERL_USE_EXTERNAL_MODULES=agent_r1.integrations.verl.register AGENT_R1_VERL_RECIPE=recipe.yaml python -m ...

`agent_r1/<name>` are those of the library with their default arguments (`algorithm.adv_estimator=agent_r1/group`,
`actor_rollout_ref.actor.policy_loss.loss_mode=agent_r1/clip`). `agent_r1` is the recipe's estimator and its loss, with
the recipe's arguments; it needs AGENT_R1_VERL_RECIPE.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from verl.trainer.ppo.core_algos import agg_loss, register_adv_est, register_policy_loss

from agent_r1.algorithms import Algorithm, bind_algorithm, estimators, policy_losses
from agent_r1.errors import ConfigError
from agent_r1.integrations.verl.estimators import REFUSED, refuse, refused_estimator, verl_estimator
from agent_r1.integrations.verl.losses import verl_policy_loss
from agent_r1.integrations.verl.recipe import RECIPE_VARIABLE, open_recipe, read_recipe


@cache
def recipe_algorithm() -> Algorithm:
    """The algorithm of the recipe that AGENT_R1_VERL_RECIPE names."""
    path = os.environ.get(RECIPE_VARIABLE)
    if not path:
        raise ConfigError(
            f"the algorithm 'agent_r1' is the recipe's, and {RECIPE_VARIABLE} is not set in this process; set it to "
            "the recipe, also for Ray's workers (ray_kwargs.ray_init.runtime_env.env_vars), or name a part, such as "
            "agent_r1/group"
        )
    config = read_recipe(path)
    with open_recipe(config):
        algorithm = bind_algorithm(config.algorithm)
    name = algorithm.settings.estimator.name
    if name in REFUSED:
        refuse("estimator", name, REFUSED[name])
    return algorithm


@register_adv_est("agent_r1")  # type: ignore[untyped-decorator]
def recipe_estimator(*arguments: Any, **named: Any) -> Any:
    """The recipe's estimator."""
    return verl_estimator(recipe_algorithm().estimate)(*arguments, **named)


@register_policy_loss("agent_r1")  # type: ignore[untyped-decorator]
def recipe_loss(*arguments: Any, **named: Any) -> Any:
    """The recipe's policy loss."""
    return verl_policy_loss(recipe_algorithm().loss, agg_loss)(*arguments, **named)


for _name in estimators.names():
    register_adv_est(f"agent_r1/{_name}")(
        refused_estimator(_name) if _name in REFUSED else verl_estimator(estimators.get(_name))
    )
for _name in policy_losses.names():
    register_policy_loss(f"agent_r1/{_name}")(verl_policy_loss(policy_losses.get(_name), agg_loss))
