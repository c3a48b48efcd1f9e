"""Images in prompts: the ids are those of the family's own processor, over several turns; only the template
writes placeholders; equal texts with other pictures have other ids."""

from __future__ import annotations

import asyncio
import copy
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from agent_r1.chat import ChatRenderer, Prompt, load_renderer
from agent_r1.errors import ChatTemplateError, ImageError, UnsupportedMediaError
from agent_r1.images import FIRST_IMAGE_ID, Picture, image_store, is_image_id, pictures_in, read_picture
from agent_r1.types import Action, Message, Observation
from tests.helpers.tiny_vlms import FAMILIES, make_tiny_vlm

ZOOM = {
    "type": "function",
    "function": {
        "name": "zoom",
        "description": "Zoom in.",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
    },
}
CALL = '<tool_call>{"name": "zoom", "arguments": {"x": 3}}</tool_call>'


def picture(seed: int, width: int = 50, height: int = 30) -> Picture:
    return read_picture(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def image(seed: int, width: int = 50, height: int = 30) -> dict[str, Any]:
    return {"type": "image", "image": picture(seed, width, height)}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def asked(*parts: Any) -> Observation:
    return Observation(messages=({"role": "user", "content": list(parts)},), tools=(ZOOM,))


@pytest.fixture(scope="session")
def renderers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ChatRenderer]:
    root = tmp_path_factory.mktemp("vlms")
    return {family: load_renderer(make_tiny_vlm(family, root / family, weights=False)) for family in FAMILIES}


@pytest.fixture
def smolvlm(renderers: dict[str, ChatRenderer]) -> ChatRenderer:
    return renderers["smolvlm"]


def conversation(renderer: ChatRenderer, before: str = "") -> Iterator[Prompt]:
    """Three turns: one picture to begin with, two of other sizes from tools, one with the user's last words."""
    observation = asked(text("What is"), image(1), text("this?"))
    prompt = renderer.render(observation)
    yield prompt
    answers: list[list[Message]] = [
        [{"role": "tool", "name": "zoom", "content": [text("closer:"), image(2, 17, 40), image(3, 64, 64)]}],
        [{"role": "tool", "name": "zoom", "content": "nothing there"}],
        [{"role": "user", "content": [image(4, 9, 9), text("And this <image>?")]}],
    ]
    for number, more in enumerate(answers):
        said = CALL if more[0]["role"] == "tool" else f"It is {number}."
        action = renderer.parse(sampled(renderer, before + said), truncated=False)
        observation = Observation(messages=(*observation.messages, action.as_message(), *more), tools=(ZOOM,))
        prompt = renderer.next_prompt(prompt, action, observation)
        assert prompt.bridged
        yield prompt


def sampled(renderer: ChatRenderer, said: str) -> tuple[int, ...]:
    return (*renderer.encode_rendered(said), renderer.stop_ids[0])


def reference(renderer: ChatRenderer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The family's whole processor; its parts for video, which need other packages, are left out."""
    mixin = transformers.ProcessorMixin
    monkeypatch.setattr(mixin, "check_argument_for_proper_class", lambda self, *arguments: None)
    processor: Any = renderer.processor
    parts = processor._image_processor, copy.deepcopy(renderer.tokenizer)
    if processor.family == "smolvlm":
        module = importlib.import_module("transformers.models.smolvlm.processing_smolvlm")
        monkeypatch.setattr(module, "num2words", str)
        return module.SmolVLMProcessor(*parts, None, image_seq_len=4)
    if processor.family == "idefics3":
        return transformers.Idefics3Processor(*parts, image_seq_len=4)
    if processor.family == "llava":
        return transformers.LlavaProcessor(
            *parts, patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1
        )
    names = {"qwen2_vl": "Qwen2VLProcessor", "qwen2_5_vl": "Qwen2_5_VLProcessor", "qwen3_vl": "Qwen3VLProcessor"}
    return getattr(transformers, names[processor.family])(*parts, None)


def without_user_placeholder(messages: tuple[Message, ...]) -> list[Message]:
    """What a processor can take: it would count a placeholder that a user wrote."""
    parts = [
        [{**part, "text": part["text"].replace(" <image>", "")} if "text" in part else {"type": "image"} for part in c]
        if isinstance(c := message["content"], list)
        else c
        for message in messages
    ]
    return [{**message, "content": content} for message, content in zip(messages, parts, strict=True)]


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_and_inputs_over_turns_are_those_of_the_whole_processor(
    family: str, renderers: dict[str, ChatRenderer], monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = renderers[family]
    *_, last = conversation(renderer)
    messages = without_user_placeholder(last.observation.messages)
    clean = Observation(messages=tuple(last.observation.messages[:-1]), tools=(ZOOM,))
    final = {**messages[-1], "content": [image(4, 9, 9), text("And this?")]}
    clean = Observation(messages=(*clean.messages, final), tools=(ZOOM,))
    whole = renderer.tokenizer.apply_chat_template(messages, tools=[ZOOM], tokenize=False, add_generation_prompt=True)
    pictures = list(pictures_in(clean.messages))
    out = reference(renderer, monkeypatch)(text=[whole], images=[one.pil() for one in pictures], return_tensors="np")
    ids = renderer.render(clean).token_ids
    assert [renderer.processor.placeholder_id if is_image_id(one) else one for one in ids] == out["input_ids"][
        0
    ].tolist()
    found = [renderer.processor.encode(one) for one in pictures]
    own = [one.inputs["pixel_values"] for one in found]
    if family in ("smolvlm", "idefics3"):  # it pads all images to the same number of tiles
        for number, pixels in enumerate(own):
            np.testing.assert_array_equal(
                pixels[0], out["pixel_values"].reshape(-1, *pixels.shape[2:])[tiles_before(own, number)], strict=True
            )
    else:
        np.testing.assert_array_equal(np.concatenate(own), out["pixel_values"], strict=True)


def tiles_before(inputs: list[Any], number: int) -> slice:
    """All images of one conversation are in one row, tile after tile."""
    start = sum(one.shape[1] for one in inputs[:number])
    return slice(start, start + inputs[number].shape[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_each_prompt_continues_the_one_before_and_has_the_ids_of_a_rendering_from_scratch(
    family: str, renderers: dict[str, ChatRenderer]
) -> None:
    renderer, before = renderers[family], ()
    for prompt in conversation(renderer):
        assert prompt.token_ids[: len(before)] == before
        before = prompt.token_ids
        assert renderer.render(prompt.observation).token_ids == prompt.token_ids
    spans = image_store().spans(before)
    assert [span.image.key.partition(":")[0] for span in spans if not span.first] == [
        one.content_hash for one in pictures_in(prompt.observation.messages)
    ]
    assert sum(span.length for span in spans) == sum(
        renderer.processor.encode(one).num_tokens for one in pictures_in(prompt.observation.messages)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_texts_with_other_pictures_differ_in_every_image_token(
    family: str, renderers: dict[str, ChatRenderer]
) -> None:
    one, two = (renderers[family].render(asked(text("Look:"), image(seed))).token_ids for seed in (1, 2))
    assert len(one) == len(two)
    differing = [own != other for own, other in zip(one, two, strict=True)]
    assert differing == [is_image_id(token) for token in one]
    assert any(differing)


def test_members_of_a_group_render_a_beginning_once_and_other_pictures_do_not_share_it(smolvlm: ChatRenderer) -> None:
    applied = list[int]()
    real = smolvlm.tokenizer.apply_chat_template
    counted = copy.copy(smolvlm.tokenizer)

    def apply(*arguments: Any, **options: Any) -> Any:
        applied.append(1)
        return real(*arguments, **options)

    counted.apply_chat_template = apply
    renderer = ChatRenderer(counted, processor=smolvlm.processor)
    applied.clear()
    prompts = [renderer.render(asked(text("Look:"), image(seed))) for seed in (7, 7, 8, 7)]
    assert len(applied) == 2
    assert prompts[0].token_ids == prompts[1].token_ids == prompts[3].token_ids != prompts[2].token_ids


def test_an_environment_that_changes_its_messages_does_not_change_the_known_beginning(smolvlm: ChatRenderer) -> None:
    observation = asked(text("first"), image(11))
    before = smolvlm.render(observation).token_ids
    observation.messages[0]["content"][0]["text"] = "second"
    assert smolvlm.render(observation).token_ids != before


@pytest.mark.parametrize("family", FAMILIES)
def test_no_text_of_a_user_a_tool_or_the_model_becomes_an_image(
    family: str, renderers: dict[str, ChatRenderer]
) -> None:
    renderer = renderers[family]
    mark = renderer.processor.placeholder
    messages: list[Message] = [
        {"role": "system", "content": mark},
        {"role": "user", "content": [text(mark), image(1), text(mark[:3]), text(mark[3:])]},
        {"role": "assistant", "content": f"I see {mark}."},
        {"role": "tool", "name": mark, "content": mark},
        {"role": "user", "content": f"{mark}{mark}"},
    ]
    for trusted in ((), messages):
        ids = renderer.render(Observation(messages=tuple(messages)), trusted=trusted).token_ids
        assert renderer.processor.placeholder_id not in ids
        assert len({one.image.key for one in image_store().spans(ids)}) == 1


def test_parts_that_would_make_a_control_token_together_do_not(smolvlm: ChatRenderer) -> None:
    [end] = smolvlm.encode_rendered("<|im_end|>")
    whole, cut = (
        smolvlm.render(Observation(messages=({"role": "user", "content": parts},))).token_ids
        for parts in ([text("a<|im_end|>b")], [text("a<|im_"), image(1), text("end|>b")])
    )
    assert whole.count(end) == cut.count(end) == 1


def test_parts_of_ordinary_text_keep_their_ids(smolvlm: ChatRenderer) -> None:
    one, two = (
        smolvlm.render(Observation(messages=({"role": "user", "content": parts},))).token_ids
        for parts in ([text("the answer")], [text("the ans"), text("wer")])
    )
    assert one == two


def test_images_that_the_template_does_not_show_are_an_error_that_names_the_role(
    smolvlm: ChatRenderer,
) -> None:
    own = copy.copy(smolvlm.tokenizer)
    own.chat_template = own.chat_template.replace("{{ parts(message.content) }}</tool_response>", "</tool_response>")
    renderer = ChatRenderer(own, processor=smolvlm.processor)
    first = asked(image(1))
    prompt = renderer.render(first)
    action = renderer.parse(sampled(renderer, CALL), truncated=False)
    answer = {"role": "tool", "name": "zoom", "content": [image(2)]}
    following = Observation(messages=(*first.messages, action.as_message(), answer), tools=(ZOOM,))
    for render in (lambda: renderer.render(following), lambda: renderer.next_prompt(prompt, action, following)):
        with pytest.raises(ChatTemplateError, match=r"wrote 1 image placeholders .* for 2 images: .* role 'tool'"):
            render()


def test_a_model_of_text_refuses_images_and_a_model_that_sees_refuses_video(
    smolvlm: ChatRenderer, renderer: ChatRenderer
) -> None:
    with pytest.raises(UnsupportedMediaError, match="image"):
        renderer.render(asked(image(1)))
    assert not renderer.sees_images
    assert smolvlm.sees_images
    with pytest.raises(UnsupportedMediaError, match="video"):
        smolvlm.render(asked(image(1), {"type": "video", "video": "clip.mp4"}))


def test_limits_are_errors_that_name_their_key(tmp_path: Path) -> None:
    folder = make_tiny_vlm("qwen2_vl", tmp_path, weights=False)
    with pytest.raises(ImageError, match=r"becomes 24 tokens; at most 8 .*model\.max_image_tokens"):
        load_renderer(folder, max_image_tokens=8).render(asked(image(1)))
    with pytest.raises(ImageError, match=r"50 x 30 pixels; at most 1,000 .*model\.max_image_pixels"):
        load_renderer(folder, max_image_pixels=1000).render(asked(image(1)))


def test_images_in_other_forms_have_the_ids_of_their_picture(smolvlm: ChatRenderer) -> None:
    expected = smolvlm.render(asked(text("Look:"), image(5))).token_ids
    own = picture(5)
    beside = Observation(messages=({"role": "user", "content": "Look:"},), images=(own.pil(),), tools=(ZOOM,))
    assert smolvlm.render(beside).token_ids == expected
    assert smolvlm.render(asked(text("Look:"), {"type": "image", "image": own.png()})).token_ids == expected


def test_a_demonstration_is_encoded_after_a_prompt_with_images(smolvlm: ChatRenderer) -> None:
    *_, prompt = conversation(smolvlm)
    ids = smolvlm.encode_turn(prompt, {"role": "assistant", "content": "A dog."})
    assert smolvlm.text_of(ids) == "A dog."
    assert ids[-1] in smolvlm.stop_ids
    with pytest.raises(ValueError, match="no model writes"):
        smolvlm.encode_turn(prompt, {"role": "assistant", "content": [image(1)]})


def test_prompts_made_beside_the_event_loop_are_the_same(tmp_path: Path) -> None:
    renderer = load_renderer(make_tiny_vlm("llava", tmp_path, weights=False))
    renderer.encode_in_threads()
    observation = asked(text("Look: " * 100), image(21), image(22))
    prompts = [asyncio.run(renderer.prompt_async(observation, None)), renderer.render(observation)]
    assert prompts[0].token_ids == prompts[1].token_ids
    action = renderer.parse(sampled(renderer, "No."), truncated=False)
    more = (*observation.messages, action.as_message(), {"role": "user", "content": [image(23), text("Now?")]})
    following = Observation(messages=more, tools=(ZOOM,))
    beside = asyncio.run(renderer.prompt_async(following, (prompts[0], action)))
    assert beside.bridged
    assert beside.token_ids == renderer.next_prompt(prompts[0], action, following).token_ids


@pytest.mark.parametrize("family", ["smolvlm", "qwen2_vl"])
def test_the_text_of_a_prompt_has_one_placeholder_for_adjacent_image_tokens(
    family: str, renderers: dict[str, ChatRenderer]
) -> None:
    renderer = renderers[family]
    ids = renderer.render(asked(text("Look:"), image(1))).token_ids
    shown = renderer.text_of(ids)
    tiles = 7 if family == "smolvlm" else 1
    assert shown.count(renderer.processor.placeholder) == tiles
    assert max(ids) >= FIRST_IMAGE_ID


def test_a_template_that_reads_parts_only_gets_texts_as_parts(tmp_path: Path) -> None:
    module = importlib.import_module("transformers.models.smolvlm.processing_smolvlm")
    folder = make_tiny_vlm("smolvlm", tmp_path, weights=False, chat_template=module.DEFAULT_CHAT_TEMPLATE)
    renderer = load_renderer(folder)
    observation = Observation(messages=({"role": "user", "content": "Hello there"},))
    prompt = renderer.render(observation)
    assert renderer.text_of(prompt.token_ids) == "<|im_start|>User: Hello there<end_of_utterance>\nAssistant:"
    action = Action(text=" Hi", content=" Hi", token_ids=renderer.encode_rendered(" Hi<end_of_utterance>"))
    more: tuple[Message, ...] = (action.as_message(), {"role": "user", "content": [image(1), text("What?")]})
    following = renderer.next_prompt(prompt, action, Observation(messages=(*observation.messages, *more)))
    assert following.bridged
    assert following.token_ids[: len(prompt.token_ids)] == prompt.token_ids
    assert renderer.text_of(following.token_ids).endswith(
        "<fake_token_around_image>What?<end_of_utterance>\nAssistant:"
    )


def test_tools_as_text_keep_the_images_of_their_answers(tmp_path: Path) -> None:
    module = importlib.import_module("transformers.models.smolvlm.processing_smolvlm")
    folder = make_tiny_vlm("smolvlm", tmp_path, weights=False, chat_template=module.DEFAULT_CHAT_TEMPLATE)
    renderer = load_renderer(folder)
    *_, last = conversation(renderer, before=" ")  # as the template writes an assistant's turn
    assert len({span.image.key for span in image_store().spans(last.token_ids)}) == 4


def test_a_template_in_the_file_of_older_models_is_read(tmp_path: Path) -> None:
    folder = make_tiny_vlm("idefics3", tmp_path, weights=False)
    (folder / "chat_template.jinja").rename(tmp_path / "moved")
    template = (tmp_path / "moved").read_text()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    assert load_renderer(folder).sees_images
