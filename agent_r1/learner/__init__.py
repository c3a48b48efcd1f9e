"""The learner: from experience to credit to updates."""

from agent_r1.learner.base import Learner
from agent_r1.learner.compute import Compute, cpu_row_tokens, make_compute
from agent_r1.learner.credit import with_token_penalty
from agent_r1.learner.critics import Critic, make_critic
from agent_r1.learner.experience import CriticView, Experience, gather_experience
from agent_r1.learner.imitation import demonstration_batches, fit_demonstrations
from agent_r1.learner.learner import TorchLearner, make_learner
from agent_r1.learner.models import Models, make_models, tune_layers
from agent_r1.learner.scoring import score_micro_batch, score_samples
from agent_r1.learner.weight_growth import WeightGrowth

__all__ = [
    "Compute",
    "Critic",
    "CriticView",
    "Experience",
    "Learner",
    "Models",
    "TorchLearner",
    "WeightGrowth",
    "cpu_row_tokens",
    "demonstration_batches",
    "fit_demonstrations",
    "gather_experience",
    "make_compute",
    "make_critic",
    "make_learner",
    "make_models",
    "score_micro_batch",
    "score_samples",
    "tune_layers",
    "with_token_penalty",
]
