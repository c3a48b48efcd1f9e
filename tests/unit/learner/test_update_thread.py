"""`TorchLearner.learn` computes in a thread: what `learn_sync` computes, while the event loop keeps running."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable

import pytest
import torch
from transformers import LlamaForCausalLM

from agent_r1.learner.base import Learner
from agent_r1.learner.compute import UpdateThread
from agent_r1.learner.learner import TorchLearner
from tests.helpers.hand_made import (
    TOKEN_GAE,
    experience_of,
    make_critic,
    make_learner,
    random_batch,
    shifted_copy,
    weights_of,
)

CPU = torch.device("cpu")


def in_thread(work: Callable[[], object]) -> object:
    async def main() -> object:
        return await UpdateThread(CPU).run(work)

    return asyncio.run(main())


def test_a_torch_learner_is_a_learner(tiny_model: LlamaForCausalLM) -> None:
    learner: Learner = make_learner(tiny_model)
    assert learner.memory() is None
    assert learner.model_bytes() == sum(weight.nbytes for weight in tiny_model.parameters())
    assert learner.checkpoint_bytes() == 3 * learner.model_bytes()
    assert {name for name, _ in learner.weights()} == set(tiny_model.state_dict())


@pytest.mark.whole
@pytest.mark.parametrize("with_critic", [False, True])
def test_an_update_in_the_thread_equals_the_synchronous_one_bit_for_bit(
    tiny_model: LlamaForCausalLM, with_critic: bool
) -> None:
    experiences = [experience_of(*random_batch(tiny_model, seed=seed)) for seed in range(3)]

    def fresh() -> TorchLearner:
        policy = copy.deepcopy(tiny_model)
        critic = make_critic(policy) if with_critic else None
        numbers = {"estimator": TOKEN_GAE, "critic": critic} if with_critic else {}
        return make_learner(policy, reference=shifted_copy(policy), minibatches=2, epochs=2, **numbers)

    async def learn(learner: TorchLearner) -> list[dict[str, float]]:
        return [await learner.learn(experience, step=step) for step, experience in enumerate(experiences)]

    sync, threaded = fresh(), fresh()
    expected = [sync.learn_sync(experience, step=step) for step, experience in enumerate(experiences)]
    assert asyncio.run(learn(threaded)) == expected
    assert weights_of(sync.policy).keys() == weights_of(threaded.policy).keys()
    for (name, one), (_, other) in zip(sync.weights(), threaded.weights(), strict=True):
        assert torch.equal(one, other), name


def test_the_event_loop_keeps_running_during_an_update(
    tiny_model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, experience = make_learner(tiny_model), experience_of(*random_batch(tiny_model))
    answered = threading.Event()
    whole = TorchLearner.learn_sync

    def waits_for_the_loop(learner: TorchLearner, *args: object, **kwargs: int) -> dict[str, float]:
        assert answered.wait(timeout=30), "the event loop stood still"
        return whole(learner, *args, **kwargs)  # type: ignore[arg-type]

    async def main() -> dict[str, float]:
        asyncio.get_running_loop().call_later(0.01, answered.set)
        return await learner.learn(experience, step=0)

    monkeypatch.setattr(TorchLearner, "learn_sync", waits_for_the_loop)
    assert asyncio.run(main())["loss/updates"] == 1.0


def test_a_cancelled_update_is_finished_before_the_caller_hears_of_it() -> None:
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert may_end.wait(timeout=30)
        ended.set()
        raise ValueError("nobody waits for this any more")

    async def main() -> None:
        update = asyncio.create_task(UpdateThread(CPU).run(work))
        while not began.is_set():
            await asyncio.sleep(0.001)
        for _ in range(2):
            update.cancel()
            await asyncio.sleep(0.01)
        assert not update.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await update
        assert ended.is_set()

    asyncio.run(main())


def test_an_error_of_an_update_reaches_the_caller() -> None:
    def work() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        in_thread(work)


def test_the_thread_has_the_callers_settings() -> None:
    """The number of CPU threads and the compiler's settings (context variables in torch 2.13) are the caller's;
    gradients are on, whatever the caller does with them."""
    limit = torch._dynamo.config.recompile_limit
    before = torch.get_num_threads()

    def settings() -> tuple[object, ...]:
        inference = torch.is_inference_mode_enabled()
        return torch.get_num_threads(), torch._dynamo.config.recompile_limit, torch.is_grad_enabled(), inference

    try:
        torch.set_num_threads(3)
        torch._dynamo.config.recompile_limit = limit + 7
        with torch.inference_mode():
            assert in_thread(settings) == (3, limit + 7, True, False)
    finally:
        torch.set_num_threads(before)
        torch._dynamo.config.recompile_limit = limit


def test_all_updates_are_computed_in_one_thread() -> None:
    thread = UpdateThread(CPU)

    async def main() -> set[int]:
        return {await thread.run(threading.get_ident) for _ in range(5)}

    assert len(asyncio.run(main()) - {threading.get_ident()}) == 1
