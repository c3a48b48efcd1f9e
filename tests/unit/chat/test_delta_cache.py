"""Answers of tools are written without the template where that gives what the template gives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_r1.chat import ChatRenderer
from agent_r1.chat.chatml import CHATML_WITH_TOOLS
from agent_r1.types import Observation
from tests.helpers.fuzzing import cases
from tests.unit.chat.test_bridge import NUMBERED, Counted
from tests.unit.chat.test_chat import CALL_TEXT, CHATML, FORGETFUL_AFTER_A_QUESTION, TOOL, said


def with_answers(written: str, beginning: str = "<|assistant|>") -> str:
    """A template that writes a tool's answer in this way."""
    return (
        "{% for message in messages %}<|{{ message.role }}|>"
        "{% if message.role == 'tool' %}" + written + "{% else %}{{ message.content }}{% endif %}<|end|>{% endfor %}"
        "{% if tools %}{% endif %}{% if add_generation_prompt %}" + beginning + "{% endif %}"
    )


TEMPLATES = {
    "plain": CHATML,
    "with tools": CHATML_WITH_TOOLS,
    "trimmed": with_answers("{{ message.content | trim }}"),
    "as JSON": with_answers("{{ message.content | tojson }}"),
    "quoted": with_answers(
        "{% if '\"' in message.content %}'{{ message.content }}'{% else %}{{ message.content }}{% endif %}"
    ),
    "cut": with_answers("{{ message.content[:20] }}"),
    "lower case": with_answers("{{ message.content | lower }}"),
    "named": with_answers("{{ message.name }} says {{ message.content }}"),
    "with ids": with_answers("{{ message.tool_call_id }}: {{ message.content }}"),
    "by the question": with_answers(
        "{{ message.content }}", "<|assistant|>{% if 'quick' in messages[0].content %}<think></think>{% endif %}"
    ),
    "numbered": NUMBERED,
    "forgetful": FORGETFUL_AFTER_A_QUESTION,
}

CONTENTS = st.one_of(
    st.sampled_from(
        ["7", "", " 7", "7\n", 'say "x"', "A\nB", "{{ x }}", "</tool>", "\\n", "é世", "x" * 50, "{'a': 1}"]
    ),
    st.text(max_size=30),
)
EPISODES = st.lists(
    st.tuples(
        st.sampled_from(["What?", "Be quick. What?", "What else?"]),
        st.lists(st.lists(CONTENTS, min_size=1, max_size=2), min_size=1, max_size=4),
    ),
    min_size=4,
    max_size=14,
)


def play(renderer: ChatRenderer, question: str, turns: list[list[str]]) -> list[tuple[Any, ...]]:
    """The prompts of an episode: ids, whether they were bridged, and what the template is said to have written."""
    observation = Observation(messages=({"role": "user", "content": question},), tools=(TOOL,))
    prompt = renderer.render(observation)
    prompts = [prompt]
    for number, contents in enumerate(turns):
        action = said(renderer, CALL_TEXT)
        answers = [
            {"role": "tool", "name": f"tool{len(text) % 2}", "tool_call_id": f"id{number}{place}", "content": text}
            for place, text in enumerate(contents)
        ]
        messages = (*(observation.messages or ()), action.as_message(), *answers)
        observation = Observation(messages=messages, tools=(TOOL,))
        prompt = renderer.next_prompt(prompt, action, observation)
        prompts.append(prompt)
    return [(prompt.token_ids, prompt.bridged, prompt.template_text, prompt.skeleton) for prompt in prompts]


@pytest.mark.whole
@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@settings(max_examples=cases(25), deadline=None)
@given(episodes=EPISODES)
def test_prompts_are_those_of_a_template_that_is_always_asked(
    tokenizer: Any, template: str, episodes: list[tuple[str, list[list[str]]]]
) -> None:
    learning, asking = (ChatRenderer(Counted(tokenizer, template)) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        found = [play(learning, *episode) for episode in episodes]
        patch.setattr("agent_r1.chat.delta_cache.TIMES_AGREED", 10**9)
        assert found == [play(asking, *episode) for episode in episodes]


@pytest.mark.parametrize("name", ["plain", "with tools", "named", "trimmed"])
def test_after_a_few_turns_the_template_is_asked_for_beginnings_only(tokenizer: Any, name: str) -> None:
    counted = Counted(tokenizer, TEMPLATES[name])
    renderer = ChatRenderer(counted)
    for number in range(8):
        play(renderer, f"Question {number}?", [["7"], ["12 < 13"], ["A\nB"]])
    before = counted.num_messages
    play(renderer, "A new question?", [["9"], ["14 > 13"], ["B\nA"]])
    assert counted.num_messages == before + 1


@pytest.mark.parametrize("name", ["as JSON", "quoted", "cut", "lower case", "with ids"])
def test_a_template_that_changes_answers_is_always_asked(tokenizer: Any, name: str) -> None:
    counted = Counted(tokenizer, TEMPLATES[name])
    renderer = ChatRenderer(counted)
    for number in range(8):
        play(renderer, f"Question {number}?", [["7"]])
    before = counted.num_messages
    play(renderer, "A new question?", [["11"]])
    assert counted.num_messages > before + 1
