"""Images in the engine: what it says is what the plain model says, and images are never taken for one another."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agent_r1.engines import engine_metrics
from agent_r1.engines.local import LocalEngine
from agent_r1.engines.local.request import block_keys
from agent_r1.errors import EngineRequestError
from agent_r1.images import EncodedImage, image_store, image_token_ids
from agent_r1.types import Completion, SamplingParams, TokenIds
from tests.helpers.vision_models import FAMILIES, TEXT, make_image, make_vlm, plain_logprobs

Answer = tuple[TokenIds, Completion]


def ask(engine: LocalEngine, *prompts: TokenIds, max_tokens: int = 6) -> list[Completion]:
    """The answers to prompts that arrive together."""

    async def answers() -> list[Completion]:
        asked = [
            engine.generate(prompt, SamplingParams(max_tokens=max_tokens, seed=number))
            for number, prompt in enumerate(prompts)
        ]
        return await asyncio.gather(*asked)

    return asyncio.run(answers())


def assert_plain(model: Any, prompt: TokenIds, completion: Completion) -> None:
    """The completion's log-probs are those of the plain model, which reads the pixels."""
    whole = prompt + completion.token_ids
    expected = plain_logprobs(model, whole, range(len(prompt), len(whole)))
    torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)


def conversation(engine: LocalEngine, images: Sequence[EncodedImage]) -> list[Answer]:
    """Turns of one episode: every turn continues the last, with one more image in the middle of what is new."""
    turns: list[Answer] = []
    history: TokenIds = (5, 6, 7)
    for number, image in enumerate(images):
        prompt = (*history, 8 + number, *image.token_ids, 20, 21 + number)
        [completion] = ask(engine, prompt)
        turns.append((prompt, completion))
        history = prompt + completion.token_ids
    return turns


@pytest.mark.whole
@pytest.mark.parametrize("family", FAMILIES)
def test_every_turn_says_what_the_plain_model_says(family: str) -> None:
    model = make_vlm(family)
    images = [make_image(family, seed, size=2 + seed % 2) for seed in (1, 2, 1)]
    engine = LocalEngine(model, kv_memory=1024, prefill_tokens=16)  # chunks that cut images
    turns = conversation(engine, images)
    for prompt, completion in turns:
        assert_plain(model, prompt, completion)
    assert engine.stats.prefix_tokens > 0
    assert engine.stats.encoded_images == 2


@pytest.mark.parametrize("family", ["smolvlm", pytest.param("qwen2_vl", marks=pytest.mark.whole)])
def test_an_answer_depends_neither_on_prefix_hits_nor_on_chunks_nor_on_preemption(family: str) -> None:
    model = make_vlm(family)
    engine = LocalEngine(model, kv_memory=1024, prefill_tokens=16)
    turns = conversation(engine, [make_image(family, 1), make_image(family, 2)])
    prompts = [prompt for prompt, _ in turns]
    again = LocalEngine(model, kv_memory=1024)
    assert [ask(again, prompt)[0] for prompt in prompts] == [completion for _, completion in turns]
    crowded = LocalEngine(model, kv_memory=10 * 16)
    roomy = LocalEngine(model, kv_memory=4096)
    many = [(*prompts[1], number) for number in range(4)]
    assert ask(crowded, *many, max_tokens=40) == ask(roomy, *many, max_tokens=40)
    assert crowded.stats.preemptions > 0


@pytest.mark.parametrize("family", ["smolvlm", "qwen2_5_vl"])
def test_two_images_with_equal_placeholders_share_nothing(family: str) -> None:
    model, first, second = make_vlm(family), make_image(family, 1), make_image(family, 2)
    engine = LocalEngine(model, kv_memory=1024)
    prompts = [(5, *image.token_ids, *range(6, 40)) for image in (first, second)]
    for prompt in prompts:
        assert_plain(model, prompt, ask(engine, prompt)[0])
    assert engine.stats.prefix_tokens == 0
    # The test above can fail: with ids that do not come from the content, the second image is taken for the first.
    masked = make_image(family, 2, key=first.key)
    [mistaken] = ask(engine, (5, *masked.token_ids, *range(6, 40)))
    with pytest.raises(AssertionError):
        assert_plain(model, prompts[1], mistaken)


def test_an_image_is_encoded_once_for_a_group() -> None:
    model, image, other = make_vlm("smolvlm"), make_image("smolvlm", 1), make_image("smolvlm", 2)
    engine = LocalEngine(model, kv_memory=2048)
    ask(engine, *[(5, *image.token_ids, *range(6, 40))] * 8, (7, *image.token_ids, *other.token_ids, 9))
    assert engine_metrics(engine)["perf/encoded_images"] == 2
    assert engine_metrics(engine)["perf/encoded_images"] == 0


def test_an_image_that_no_longer_fits_the_cache_is_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_r1.engines.local.images.embeddings.CACHE_BYTES", {"cpu": 8 * 32 * 4})
    model, images = make_vlm("smolvlm"), [make_image("smolvlm", seed) for seed in (1, 2)]
    engine = LocalEngine(model, kv_memory=1024)
    prompts = [(5 + number, *images[number % 2].token_ids, 9) for number in range(4)]
    for prompt in (*prompts, (5, *images[0].token_ids, *images[1].token_ids, 9)):
        assert_plain(model, prompt, ask(engine, prompt)[0])
    assert engine.stats.encoded_images > 4


def test_new_weights_of_the_projector_change_the_answers_and_equal_ones_keep_the_embeddings() -> None:
    model, image = make_vlm("smolvlm"), make_image("smolvlm", 1)
    engine, prompt = LocalEngine(model, kv_memory=1024), (5, *image.token_ids, 6, 7)
    before = ask(engine, prompt)[0]
    asyncio.run(engine.update_weights(model.state_dict().items(), 1))
    assert ask(engine, prompt)[0].logprobs == before.logprobs
    assert engine.stats.encoded_images == 1
    trained = copy.deepcopy(model)
    with torch.no_grad():
        trained.model.connector.modality_projection.proj.weight.add_(0.3)
    asyncio.run(engine.update_weights(trained.state_dict().items(), 2))
    after = ask(engine, prompt)[0]
    assert after.logprobs != before.logprobs
    assert_plain(trained, prompt, after)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ids: image_token_ids("never seen", 3), "image is not known here"),
        (lambda ids: ids[:-1], "the prompt has 7 of the 8 tokens of an image"),
        (lambda ids: ids[1:], "the prompt has 7 of the 8 tokens of an image"),
        (lambda ids: (*ids[:4], 7, *ids[5:]), "the prompt has 4 of the 8 tokens of an image"),
        (lambda ids: (*ids[:4], *ids), "the prompt has 4 of the 8 tokens of an image"),
        (lambda ids: (*ids, 60), "token ids from 5 to 60 beside image tokens; the model knows 0 to 59"),
        (lambda ids: (*ids, -1), "token ids from -1 to 6 beside image tokens"),
    ],
)
def test_a_prompt_whose_images_cannot_be_read_is_refused(change: Any, message: str) -> None:
    image = make_image("smolvlm", 1)
    engine = LocalEngine(make_vlm("smolvlm"), kv_memory=1024)
    with pytest.raises(EngineRequestError, match=message):
        ask(engine, (5, *change(image.token_ids), 6))


def test_text_between_the_tokens_of_an_image_is_read_as_text() -> None:
    model, image = make_vlm("smolvlm"), make_image("smolvlm", 1)
    engine = LocalEngine(model, kv_memory=1024)
    prompt = (5, *image.token_ids[:4], 6, 7, *image.token_ids[4:], 8, *image.token_ids, 9)
    assert_plain(model, prompt, ask(engine, prompt)[0])


def test_an_image_without_a_grid_is_refused_where_positions_need_one() -> None:
    image = EncodedImage(key="no grid", num_tokens=6, inputs=dict(make_image("qwen2_vl", 1).inputs))
    image_store().add(image)
    engine = LocalEngine(make_vlm("qwen2_vl"), kv_memory=1024)
    with pytest.raises(EngineRequestError, match="an image without a grid"):
        ask(engine, (5, *image.token_ids, 6))


def test_a_text_model_refuses_images() -> None:
    engine = LocalEngine(LlamaForCausalLM(LlamaConfig(**TEXT)), kv_memory=1024)
    with pytest.raises(EngineRequestError, match="the prompt has images, and the model reads none"):
        ask(engine, (5, *make_image("smolvlm", 1).token_ids, 6))
    assert "perf/encoded_images" not in engine_metrics(engine)


def test_a_processor_that_counts_other_tokens_than_the_model_makes_is_one_clear_error() -> None:
    image = EncodedImage(key="miscounted", num_tokens=5, inputs=dict(make_image("smolvlm", 1).inputs))
    image_store().add(image)
    engine = LocalEngine(make_vlm("smolvlm"), kv_memory=1024)
    with pytest.warns(UserWarning, match="failed"), pytest.raises(Exception, match=r"made 8 embeddings.* counted 5"):
        ask(engine, (5, *image.token_ids, 6))


def test_blocks_of_text_have_the_same_keys_beside_images_as_without() -> None:
    text, image = list(range(32)), make_image("llava", 1)
    keys = block_keys([*text, *image.token_ids, *text])
    assert [*keys[:2], *keys[3:]] == [*block_keys(text), *block_keys(text)]
    assert len(keys[2]) == 128
