"""A recipe whose environment answers every action with a new picture, and short runs of it with a tiny random model."""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

_BASE = """\
defaults:
  - agent_r1
  - algorithm: grpo
  - _self_
run:
  name: seeing
env:
  name: looking:Looking
reward:
  function: looking:score
rollout:
  groups_per_step: 2
  group_size: 3
  max_steps: 3
  max_tokens: 6
  context_length: 768
trainer:
  steps: 2
  micro_batch_tokens: 4096
optimizer:
  final_fraction: 1
"""

_LOOKING = '''\
import os

from PIL import Image

from agent_r1.envs import AgentEnv
from agent_r1.types import Observation, StepResult


class Looking(AgentEnv):
    """Shows the task's picture, and after every action one whose color depends on it."""

    async def reset(self, task):
        self.messages = tuple(task.prompt)
        return Observation(messages=self.messages)

    async def step(self, action):
        shade = sum(action.token_ids) % 200
        seen = {"type": "image", "image": Image.new("RGB", (30 + shade % 7, 20), (shade, 20, 90))}
        asked = {"role": "user", "content": [{"type": "text", "text": "And this?"}, seen]}
        self.messages += (action.as_message(), asked)
        return StepResult(observation=Observation(messages=self.messages), reward=0.0, done=False)


def score(task, episode):
    return {"score": float(len(set(episode.final_text))), "pid": float(os.getpid())}
'''


def seeing_recipe(folder: Path) -> Path:
    """The recipe with its rows, in a folder of its own."""
    recipe = folder / "seeing_recipe"
    (recipe / "images").mkdir(parents=True)
    (recipe / "base.yaml").write_text(_BASE)
    (recipe / "looking.py").write_text(_LOOKING)
    rows = []
    for number in range(4):
        Image.new("RGB", (40, 24 + 8 * number), (50 * number, 200, 10)).save(recipe / "images" / f"{number}.png")
        content = [{"type": "image", "image": f"images/{number}.png"}, {"type": "text", "text": "What is it?"}]
        rows.append({"prompt": [{"role": "user", "content": content}], "answer": "4"})
    (recipe / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return recipe


def seeing_run(recipe: Path, folder: Path, model: Path, *extra: str) -> list[str]:
    """The overrides of a run."""
    rows = [f"data.train=[{recipe / 'rows.jsonl'}]", "data.eval=[]", "eval.before=false"]
    return [f"run.folder={folder}", f"model.path={model}", *rows, *extra]
