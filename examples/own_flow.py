"""A flow of your own: full control over when the model is asked, with which prompt, and which calls are trained.

python examples/own_flow.py
"""

from __future__ import annotations

from agent_r1 import AgentFlowBase, Episode, Observation, StopReason, Task, try_flow


@AgentFlowBase.register("second_look")
class SecondLook(AgentFlowBase):
    """Answer, then look at the answer once more. Both calls are steps, and both are trained."""

    async def run(self, task: Task) -> Episode:
        """Two calls of the model; the second one sees a prompt of its own."""
        draft = await self.act(self.render(Observation(messages=task.prompt)))
        self.record(draft, reward=0.0, done=False)
        question = f"{task.prompt[-1]['content']}\nIs this right: {draft.action.text}? Answer again."
        final = await self.act(self.render(Observation(messages=({"role": "user", "content": question},))))
        self.record(final, reward=0.0, done=True)
        return self.episode(StopReason.DONE)


if __name__ == "__main__":
    task = Task(task_id="sum", prompt=({"role": "user", "content": "What is 2 + 2?"},))
    episode = try_flow(SecondLook, task, ["5", "4"])  # the replies a model might give
    for step in episode.steps:
        print(step.observation.messages[-1]["content"], "->", step.action.text)
    print("answer:", episode.answer)
    # Train with it: agent_r1.train(model=..., data=rows, reward=..., overrides={"data.agent_name": "second_look"})
