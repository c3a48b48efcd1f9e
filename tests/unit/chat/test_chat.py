"""Render, bridge and parse, with a real tokenizer."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_r1.chat import ChatRenderer, HermesFormat, Prompt
from agent_r1.errors import ConfigError, UnknownNameError
from agent_r1.types import Action, Message, Observation, TokenIds
from tests.helpers.fuzzing import cases

QUESTION: Message = {"role": "user", "content": "What do 3 apple cost?"}
TOOL: Message = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "The price of one item.",
        "parameters": {"type": "object", "properties": {"item": {"type": "string"}}},
    },
}
OTHER_TOOL: Message = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Work it out.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
CALL_TEXT = '<tool_call>{"name": "price", "arguments": {"item": "apple"}}</tool_call>'

# A newline after the end-of-turn token, as Qwen and most ChatML models have.
CHATML = (
    "{% if tools %}<|im_start|>system{{ '\n' }}{{ tools | tojson }}<|end|>{{ '\n' }}{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}{{ '\n' }}{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    '<tool_call>{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}'
    "</tool_call>{% endfor %}<|end|>{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}{% endif %}"
)

# Earlier thinking is always dropped.
FORGETFUL = (
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.role == 'assistant' %}{{ message.content.split('</think>')[-1].lstrip('\n') }}"
    "{% else %}{{ message.content }}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# Thinking is dropped only from turns before the last question, as Qwen3 does.
FORGETFUL_AFTER_A_QUESTION = (
    "{% set last = namespace(question=0) %}"
    "{% for message in messages %}{% if message.role == 'user' %}{% set last.question = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.role == 'assistant' and loop.index0 < last.question %}"
    "{{ message.content.split('</think>')[-1].lstrip('\n') }}"
    "{% else %}{{ message.content }}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

# A space before the end-of-turn token, as Llama 2 has.
SPACED_END = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }} <|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def renderer_with(tokenizer: Any, template: str) -> ChatRenderer:
    other = copy.deepcopy(tokenizer)
    other.chat_template = template
    return ChatRenderer(other)


def encode(renderer: ChatRenderer, text: str) -> TokenIds:
    return tuple(renderer.tokenizer.encode(text, add_special_tokens=False))


def decode(renderer: ChatRenderer, token_ids: TokenIds) -> str:
    return str(renderer.tokenizer.decode(list(token_ids), skip_special_tokens=False))


def said(renderer: ChatRenderer, text: str) -> Action:
    """An action sampled as the canonical tokens of a text, closed by the model."""
    return renderer.parse((*encode(renderer, text), renderer.stop_ids[0]), truncated=False)


def after(observation: Observation, action: Action, *answers: str, role: str = "tool") -> Observation:
    """The observation extended by an action and the answers to it."""
    messages = (*(observation.messages or ()), action.as_message(), *({"role": role, "content": a} for a in answers))
    return Observation(messages=messages, tools=observation.tools)


def first_turn(renderer: ChatRenderer, text: str = CALL_TEXT) -> tuple[Prompt, Action]:
    return renderer.render(Observation(messages=(QUESTION,), tools=(TOOL,))), said(renderer, text)


# Render


def test_render_is_the_template_with_a_generation_prompt(renderer: ChatRenderer) -> None:
    prompt = renderer.render(Observation(messages=(QUESTION,), tools=(TOOL,)))
    assert decode(renderer, prompt.token_ids) == (
        "<|system|>price(item): The price of one item.\n<|end|><|user|>What do 3 apple cost?<|end|><|assistant|>"
    )
    assert not prompt.bridged


def test_the_members_of_a_group_ask_the_template_once(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    renderer, asked = ChatRenderer(tokenizer), list[str]()
    plain = renderer._template

    def counting(messages: Any, observation: Observation, **options: Any) -> str:
        asked.append(messages[-1]["content"])
        return plain(messages, observation, **options)

    monkeypatch.setattr(renderer, "_template", counting)
    message = {"role": "user", "content": "6 * 7?"}
    first, second = (renderer.render(Observation(messages=(message,))) for _ in range(2))
    assert (first, asked) == (second, ["6 * 7?"])
    message["content"] = "6 * 8?"  # whoever writes in what it gave is read again
    assert "6 * 8?" in str(renderer.render(Observation(messages=(message,))).template_text)
    schema = {"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}
    assert renderer.render(Observation(messages=(message,), tools=(schema,))).template_text != first.template_text
    assert asked == ["6 * 7?", "6 * 8?", "6 * 8?"]


def test_raw_text_is_tokenised_as_it_stands(renderer: ChatRenderer) -> None:
    prompt = renderer.render(Observation(text="3 apple"))
    assert prompt.token_ids == encode(renderer, "3 apple")


def test_exact_ids_are_the_prompt(renderer: ChatRenderer) -> None:
    assert renderer.render(Observation(token_ids=(9, 8, 7))).token_ids == (9, 8, 7)


def test_tokenizer_without_chat_template_is_refused(tokenizer: Any) -> None:
    bare = copy.deepcopy(tokenizer)
    bare.chat_template = None
    with pytest.raises(ConfigError, match=r"chat_template\.jinja"):
        ChatRenderer(bare)


def test_tokenizer_without_end_of_turn_is_refused(tokenizer: Any) -> None:
    endless = copy.deepcopy(tokenizer)
    endless.eos_token = None
    with pytest.raises(ConfigError, match="end-of-turn"):
        ChatRenderer(endless)


def test_unknown_tool_format_names_the_nearest(tokenizer: Any) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'hermes'"):
        ChatRenderer(tokenizer, "hermez")


def test_stop_ids_are_the_tokenizers_then_the_given_ones_each_once(tokenizer: Any) -> None:
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    assert ChatRenderer(tokenizer, stop_ids=[pad, eos, pad]).stop_ids == (eos, pad)


# Bridge


def test_next_prompt_is_previous_ids_plus_sampled_ids_plus_rendered_delta(renderer: ChatRenderer) -> None:
    prompt, action = first_turn(renderer)
    following = renderer.next_prompt(prompt, action, after(prompt.observation, action, "7"))
    delta = encode(renderer, "<|user|><tool_response>7</tool_response><|end|><|assistant|>")
    assert following.bridged
    assert following.token_ids == prompt.token_ids + action.token_ids + delta


def test_sampled_ids_that_are_not_canonical_survive_the_bridge(renderer: ChatRenderer, tokenizer: Any) -> None:
    canonical = encode(renderer, "price")
    spelled = tuple(tokenizer.convert_tokens_to_ids(list("price")))
    assert len(canonical) == 1
    assert len(spelled) == 5
    assert decode(renderer, spelled) == "price"

    prompt = renderer.render(Observation(messages=(QUESTION,)))
    action = renderer.parse((*spelled, renderer.stop_ids[0]), truncated=False)
    following = renderer.next_prompt(prompt, action, after(prompt.observation, action, "Well?", role="user"))
    start = len(prompt.token_ids)
    assert following.token_ids[start : start + 6] == (*spelled, renderer.stop_ids[0])
    assert action.as_message() == {"role": "assistant", "content": "price"}


@settings(deadline=None, max_examples=cases(60))
@given(data=st.data())
def test_any_sampled_ids_survive_the_bridge(renderer: ChatRenderer, tokenizer: Any, data: st.DataObject) -> None:
    sampled = tuple(data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=12)))
    truncated = data.draw(st.booleans())
    prompt = renderer.render(Observation(messages=(QUESTION,), tools=(TOOL,)))
    action = renderer.parse(sampled, truncated=truncated)
    following = renderer.next_prompt(prompt, action, after(prompt.observation, action, "7"))
    assert action.token_ids == sampled
    assert following.token_ids[: len(prompt.token_ids) + len(sampled)] == prompt.token_ids + sampled


@pytest.mark.parametrize("template", [None, CHATML], ids=["quickstart", "newline_after_end_of_turn"])
def test_bridged_ids_say_what_rendering_the_whole_conversation_says(tokenizer: Any, template: str | None) -> None:
    renderer = renderer_with(tokenizer, template or tokenizer.chat_template)
    prompt, action = first_turn(renderer, "Let me look." + CALL_TEXT)
    observation = after(prompt.observation, action, "7", "8")
    bridged = renderer.next_prompt(prompt, action, observation)
    assert bridged.bridged
    assert decode(renderer, bridged.token_ids) == decode(renderer, renderer.render(observation).token_ids)


def test_newline_after_the_end_of_turn_is_kept_at_every_boundary(tokenizer: Any) -> None:
    renderer = renderer_with(tokenizer, CHATML)
    prompt = renderer.render(Observation(messages=(QUESTION,)))
    action = said(renderer, "21")
    following = renderer.next_prompt(prompt, action, after(prompt.observation, action, "Sure?", role="user"))
    delta = encode(renderer, "\n<|im_start|>user\nSure?<|end|>\n<|im_start|>assistant\n")
    assert following.token_ids == prompt.token_ids + action.token_ids + delta


@pytest.mark.parametrize("template", [None, CHATML], ids=["quickstart", "newline_after_end_of_turn"])
def test_three_turns_in_a_row_bridge(tokenizer: Any, template: str | None) -> None:
    renderer = renderer_with(tokenizer, template or tokenizer.chat_template)
    prompt, action = first_turn(renderer)
    sampled: list[tuple[Prompt, Action]] = []
    for text in (CALL_TEXT, "one moment", CALL_TEXT):
        action = said(renderer, text)
        sampled.append((prompt, action))
        prompt = renderer.next_prompt(prompt, action, after(prompt.observation, action, "7"))
        assert prompt.bridged
    for earlier, action in sampled:
        reach = len(earlier.token_ids) + len(action.token_ids)
        assert prompt.token_ids[:reach] == earlier.token_ids + action.token_ids
    assert decode(renderer, prompt.token_ids) == decode(renderer, renderer.render(prompt.observation).token_ids)


def test_turn_cut_by_length_is_closed_by_the_bridge_and_not_by_the_action(renderer: ChatRenderer) -> None:
    prompt = renderer.render(Observation(messages=(QUESTION,), tools=(TOOL,)))
    cut = encode(renderer, '<tool_call>{"name": "pri')
    action = renderer.parse(cut, truncated=True)
    following = renderer.next_prompt(prompt, action, after(prompt.observation, action, "Error: cut"))
    assert action.token_ids == cut
    delta = encode(renderer, "<|end|><|user|><tool_response>Error: cut</tool_response><|end|><|assistant|>")
    assert delta[0] == renderer.stop_ids[0]
    assert following.token_ids == prompt.token_ids + cut + delta


def test_turn_the_model_closed_is_not_closed_twice(renderer: ChatRenderer) -> None:
    prompt, action = first_turn(renderer)
    following = renderer.next_prompt(prompt, action, after(prompt.observation, action, "7"))
    inserted = following.token_ids[len(prompt.token_ids) + len(action.token_ids) :]
    assert action.token_ids[-1] == renderer.stop_ids[0]
    assert inserted[0] != renderer.stop_ids[0]


def test_space_before_the_end_of_turn_does_not_close_a_closed_turn_twice(tokenizer: Any) -> None:
    renderer = renderer_with(tokenizer, SPACED_END)
    prompt = renderer.render(Observation(messages=(QUESTION,)))
    action = said(renderer, "21")
    following = renderer.next_prompt(prompt, action, after(prompt.observation, action, "Sure?", role="user"))
    assert decode(renderer, following.token_ids) == (
        "<|user|>What do 3 apple cost? <|end|><|assistant|>21<|end|><|user|>Sure? <|end|><|assistant|>"
    )


def test_action_without_any_token_bridges(renderer: ChatRenderer) -> None:
    prompt = renderer.render(Observation(messages=(QUESTION,)))
    action = renderer.parse((), truncated=True)
    observation = after(prompt.observation, action, "Well?", role="user")
    following = renderer.next_prompt(prompt, action, observation)
    assert following.token_ids == renderer.render(observation).token_ids


def rewrites(prompt: Prompt, action: Action) -> dict[str, Observation]:
    old, new = prompt.observation, after(prompt.observation, action, "7")
    messages = new.messages or ()
    return {
        "cut": Observation(messages=messages[1:], tools=old.tools),
        "edited": Observation(messages=({**QUESTION, "content": "Cost?"}, *messages[1:]), tools=old.tools),
        "other answer": Observation(
            messages=(messages[0], {"role": "assistant", "content": "no"}, *messages[2:]), tools=old.tools
        ),
        "other tools": Observation(messages=messages, tools=(OTHER_TOOL,)),
        "nothing added": Observation(messages=old.messages, tools=old.tools),
        "raw text": Observation(text="What now?"),
        "exact ids": Observation(token_ids=(5, 6)),
    }


@pytest.mark.parametrize(
    "how", ["cut", "edited", "other answer", "other tools", "nothing added", "raw text", "exact ids"]
)
def test_rewritten_history_is_rendered_afresh(renderer: ChatRenderer, how: str) -> None:
    prompt, action = first_turn(renderer)
    observation = rewrites(prompt, action)[how]
    following = renderer.next_prompt(prompt, action, observation)
    assert not following.bridged
    assert following.token_ids == renderer.render(observation).token_ids


def test_bridge_goes_on_after_a_rewrite(renderer: ChatRenderer) -> None:
    prompt, action = first_turn(renderer)
    rewritten = renderer.next_prompt(prompt, action, rewrites(prompt, action)["edited"])
    again = said(renderer, "21")
    following = renderer.next_prompt(rewritten, again, after(rewritten.observation, again, "ok"))
    assert following.bridged
    assert following.token_ids[: len(rewritten.token_ids)] == rewritten.token_ids


def test_template_that_drops_earlier_thinking_branches(tokenizer: Any) -> None:
    renderer = renderer_with(tokenizer, FORGETFUL)
    prompt = renderer.render(Observation(messages=(QUESTION,)))
    action = said(renderer, "<think>\n3 times 7\n</think>\n\n21")
    following = renderer.next_prompt(prompt, action, after(prompt.observation, action, "Sure?", role="user"))
    assert not following.bridged
    assert decode(renderer, following.token_ids) == (
        "<|user|>What do 3 apple cost?<|end|><|assistant|>21<|end|><|user|>Sure?<|end|><|assistant|>"
    )


def test_template_that_drops_thinking_still_bridges_turns_without_any(tokenizer: Any) -> None:
    renderer = renderer_with(tokenizer, FORGETFUL)
    prompt = renderer.render(Observation(messages=(QUESTION,)))
    action = said(renderer, "21")
    assert renderer.next_prompt(prompt, action, after(prompt.observation, action, "Sure?", role="user")).bridged


def test_thinking_is_bridged_while_the_template_keeps_it_and_branches_when_it_goes(tokenizer: Any) -> None:
    renderer = renderer_with(tokenizer, FORGETFUL_AFTER_A_QUESTION)
    prompt = renderer.render(Observation(messages=(QUESTION,)))
    thought = said(renderer, "<think>\nprice first\n</think>\n\nprice?")
    kept = renderer.next_prompt(prompt, thought, after(prompt.observation, thought, "7"))
    assert kept.bridged
    assert kept.token_ids[: len(prompt.token_ids + thought.token_ids)] == prompt.token_ids + thought.token_ids

    answer = said(renderer, "21")
    dropped = renderer.next_prompt(kept, answer, after(kept.observation, answer, "Sure?", role="user"))
    assert not dropped.bridged
    assert decode(renderer, dropped.token_ids) == (
        "<|user|>What do 3 apple cost?<|end|><|assistant|>price?<|end|><|tool|>7<|end|><|assistant|>21<|end|>"
        "<|user|>Sure?<|end|><|assistant|>"
    )


# Parse and encode_turn


def test_action_text_is_without_the_end_of_turn_and_its_ids_are_with_it(renderer: ChatRenderer) -> None:
    ids = (*encode(renderer, "21"), renderer.stop_ids[0])
    action = renderer.parse(ids, truncated=False)
    assert (action.text, action.content, action.token_ids) == ("21", "21", ids)


def test_any_of_several_stop_ids_is_left_out_of_the_text(tokenizer: Any) -> None:
    renderer = ChatRenderer(tokenizer, stop_ids=[tokenizer.pad_token_id])
    assert renderer.parse((*encode(renderer, "21"), tokenizer.pad_token_id), truncated=False).text == "21"


def test_demonstrated_turn_ends_with_its_end_of_turn_and_nothing_after(tokenizer: Any) -> None:
    renderer = renderer_with(tokenizer, CHATML)
    prompt = renderer.render(Observation(messages=(QUESTION,)))
    assert renderer.encode_turn(prompt, {"role": "assistant", "content": "21"}) == encode(renderer, "21<|end|>")


def test_template_that_does_not_close_turns_cannot_be_demonstrated(tokenizer: Any) -> None:
    template = "{% for message in messages %}{{ message.role }}: {{ message.content }}. {% endfor %}"
    renderer = renderer_with(tokenizer, template + "{% if add_generation_prompt %}assistant: {% endif %}")
    prompt = renderer.render(Observation(messages=(QUESTION,)))
    with pytest.raises(ValueError, match="does not close"):
        renderer.encode_turn(prompt, {"role": "assistant", "content": "21"})


def test_template_that_writes_turns_without_the_generation_prompt_cannot_be_demonstrated(tokenizer: Any) -> None:
    template = (
        "{% for message in messages %}{{ message.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    renderer = renderer_with(tokenizer, template)
    prompt = renderer.render(Observation(messages=(QUESTION,)))
    with pytest.raises(ValueError, match="after its generation prompt"):
        renderer.encode_turn(prompt, {"role": "assistant", "content": "21"})


# Hermes


def hermes(text: str, *, truncated: bool = False) -> tuple[str, list[tuple[str, dict[str, Any]]], str | None]:
    """Content, calls as (name, arguments), and error."""
    parsed = HermesFormat().parse(text, truncated=truncated)
    return parsed.content, [(call.name, dict(call.arguments)) for call in parsed.tool_calls], parsed.parse_error


def test_text_without_a_call_is_content() -> None:
    assert hermes(" 21 ") == ("21", [], None)


def test_several_calls_are_found_in_order_with_ids_and_the_text_around_them() -> None:
    text = (
        'First <tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call> and '
        '<tool_call>{"name": "b"}</tool_call> last'
    )
    assert hermes(text) == ("First  and  last", [("a", {"x": 1}), ("b", {})], None)
    assert [call.call_id for call in HermesFormat().parse(text, truncated=False).tool_calls] == [
        "call00000",
        "call00001",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('<tool_call>{"name": a}</tool_call>', "Tool call 1 is malformed: not valid JSON"),
        ('<tool_call>{"name": "a"}', "Tool call 1 is malformed: </tool_call> is missing"),
        ('{"name": "a"}</tool_call>', "</tool_call> without <tool_call>"),
        ('<tool_call>{"arguments": {}}</tool_call>', '"name" must be the name of a tool'),
        ('<tool_call>{"name": ""}</tool_call>', '"name" must be the name of a tool'),
        ('<tool_call>{"name": 3}</tool_call>', '"name" must be the name of a tool'),
        ('<tool_call>{"name": "a", "arguments": [1]}</tool_call>', '"arguments" must be an object'),
        ('<tool_call>{"name": "a", "arguments": null}</tool_call>', '"arguments" must be an object'),
        ("<tool_call>[]</tool_call>", 'expected an object with "name" and "arguments"'),
        ("<tool_call></tool_call>", "not valid JSON"),
        ("<tool_call>" + "[" * 100_000 + "</tool_call>", "nested too deeply"),
        ("<tool_call>" + "1" * 5000 + "</tool_call>", "Tool call 1 is malformed"),
    ],
)
def test_malformed_call_is_told_and_none_runs(text: str, complaint: str) -> None:
    content, calls, error = hermes(text)
    assert (content, calls) == (text, [])
    assert error is not None
    assert complaint in error


def test_one_malformed_call_keeps_the_others_from_running() -> None:
    text = '<tool_call>{"name": "a"}</tool_call><tool_call>{"name"</tool_call>'
    _, calls, error = hermes(text)
    assert calls == []
    assert error is not None
    assert error.startswith("Tool call 2 is malformed: not valid JSON")


def test_unclosed_call_after_a_malformed_one_is_counted_as_the_second() -> None:
    _, _, error = hermes('<tool_call>{"name"</tool_call><tool_call>{"name": "a"}')
    assert error is not None
    assert "Tool call 1 is malformed: not valid JSON" in error
    assert "Tool call 2 is malformed: </tool_call> is missing" in error


def test_call_cut_by_length_is_told_as_cut_and_not_as_a_missing_tag() -> None:
    _, calls, error = hermes('<tool_call>{"name": "a", "argum', truncated=True)
    assert calls == []
    assert error == "Tool call 1 is malformed: it was cut by the length limit."


def test_answer_cut_by_length_is_told() -> None:
    assert hermes("The price of", truncated=True)[2] == "The answer was cut by the length limit."


def test_whole_call_before_the_cut_still_runs() -> None:
    content, calls, error = hermes('<tool_call>{"name": "a"}</tool_call> and th', truncated=True)
    assert (content, calls, error) == ("and th", [("a", {})], None)


BITS_OF_CALLS = st.sampled_from(
    ["<tool_call>", "</tool_call>", '{"name": "a"', ', "arguments": {', "}", "[", "NaN", '"\\ud800"', "1" * 4400]
)
# A chosen alphabet: the whole of Unicode takes hypothesis seconds to tabulate.
TEXTS = st.text(alphabet="ab01 \n\t\"'\\{}[]<>/:,.-é漢😀\x00\x7f\u2028", max_size=8)


@settings(deadline=None, max_examples=cases(60))
@given(text=st.lists(BITS_OF_CALLS | TEXTS, max_size=12).map("".join), truncated=st.booleans())
def test_nothing_a_model_writes_raises(text: str, truncated: bool) -> None:
    parsed = HermesFormat().parse(text, truncated=truncated)
    assert parsed.parse_error is None or (parsed.tool_calls == () and parsed.content == text)
    assert all(call.name and isinstance(call.arguments, dict) for call in parsed.tool_calls)


NAMES = TEXTS.filter(bool)
ARGUMENTS = st.dictionaries(TEXTS, st.integers() | st.booleans() | TEXTS, max_size=3)


@settings(deadline=None, max_examples=cases(60))
@given(calls=st.lists(st.tuples(NAMES, ARGUMENTS), max_size=4))
def test_well_formed_calls_are_read_back(calls: list[tuple[str, dict[str, Any]]]) -> None:
    bodies = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    assert hermes("".join(f"<tool_call>{body}</tool_call>" for body in bodies)) == ("", calls, None)
