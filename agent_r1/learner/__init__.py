"""The learner: experience to credit to updates."""

from agent_r1.learner.compute import Compute, cpu_row_tokens, make_compute
from agent_r1.learner.credit import Models, with_token_penalty
from agent_r1.learner.critics import Critic, make_critic
from agent_r1.learner.experience import CriticView, Experience, gather_experience
from agent_r1.learner.imitation import fit_demonstrations
from agent_r1.learner.learner import Learner
from agent_r1.learner.scoring import score, score_all

__all__ = [
    "Compute",
    "Critic",
    "CriticView",
    "Experience",
    "Learner",
    "Models",
    "cpu_row_tokens",
    "fit_demonstrations",
    "gather_experience",
    "make_compute",
    "make_critic",
    "score",
    "score_all",
    "with_token_penalty",
]
