"""The keys below `data`: which rows are read, and in which order tasks are drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from agent_r1.constraints import Count, Fraction, NotNegative, PathText


@dataclass
class CurriculumConfig:
    """Tasks by difficulty, which rises with success."""

    enabled: bool = False
    """Draw tasks level by level. Rows need a column `difficulty`, a whole number from 1."""
    threshold: Fraction = 0.7
    """Success in the window from which the next level begins."""
    window: Count = 256
    """Episodes at a level over which success is measured."""
    review: Fraction = 0.2
    """Share of tasks that are drawn from the levels below."""


@dataclass
class RevisitConfig:
    """Tasks of medium success, which are drawn again."""

    share: Fraction = 0.0
    """Share of tasks that are drawn from those of medium success so far; 0: each task once per epoch."""
    low: Fraction = 0.1
    """Least success of a task's latest group with which the task is drawn again."""
    high: Fraction = 0.9
    """Greatest success with which it is."""


@dataclass
class DataConfig:
    """Rows to train on, to choose settings by, and to publish."""

    train: list[PathText] = field(default_factory=list)
    """Parquet or JSONL files to train on."""
    eval: list[PathText] = field(default_factory=list)
    """Validation rows: training is evaluated on them, and settings are chosen on them; empty: no evaluation."""
    test: list[PathText] = field(default_factory=list)
    """Rows for published figures only: `agent-r1 eval RUN --split test`. Training never reads them."""
    prepare: Optional[str] = None
    """`module:function` that makes the recipe's own data files when they are missing; called with the configuration."""
    agent_name: str = "env_loop"
    """The flow for rows that do not name one."""
    shares: dict[str, NotNegative] = field(default_factory=dict)
    """Weight of each `data_source` of the training rows: {wiki: 1, news: 3}; empty: sources come as often as rows."""
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    """A curriculum over the training rows."""
    revisit: RevisitConfig = field(default_factory=RevisitConfig)
    """Training rows that are drawn more often than once per epoch."""

    def files(self, split: str) -> list[str]:
        """The files of a split."""
        return {"train": self.train, "validation": self.eval, "test": self.test}[split]
