"""An environment of your own: `reset` and `step`. What it returns is the whole next model input.

python examples/own_env.py
"""

from __future__ import annotations

from agent_r1 import Action, AgentEnv, Observation, StepResult, Task, check_env


class GuessNumber(AgentEnv):
    """The model guesses a number and is told "higher" or "lower"."""

    async def reset(self, task: Task) -> Observation:
        """Show the question."""
        self.number = int(task.ground_truth)
        self.messages = list(task.prompt)
        return Observation(messages=tuple(self.messages))

    async def step(self, action: Action) -> StepResult:
        """Compare the guess. A guess that is no number costs a little."""
        text = action.text.strip()
        if not text.isdigit():
            return self._reply(action, "Guess a number.", reward=-0.1)
        if int(text) == self.number:
            return StepResult(observation=None, reward=1.0, done=True)
        return self._reply(action, "higher" if int(text) < self.number else "lower")

    def _reply(self, action: Action, text: str, reward: float = 0.0) -> StepResult:
        self.messages += [action.as_message(), {"role": "user", "content": text}]
        return StepResult(observation=Observation(messages=tuple(self.messages)), reward=reward)


if __name__ == "__main__":
    task = Task(
        task_id="guess",
        prompt=({"role": "user", "content": "Guess my number, from 1 to 100."},),
        reward_model={"ground_truth": 42},
    )
    guesses = [Action(text=text, content=text) for text in ("50", "forty", "42")]
    print("findings:", check_env(GuessNumber, task, guesses))  # played twice, as two episodes
    # Train with it: agent_r1.train(model=..., data=[task, ...], env=GuessNumber); all reward comes from the steps
