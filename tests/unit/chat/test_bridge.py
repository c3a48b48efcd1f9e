"""Long conversations: what comes after a turn is found without the turns between, where that gives the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from agent_r1.chat import ChatRenderer, Prompt
from agent_r1.types import Action, Observation
from tests.unit.chat.test_chat import CALL_TEXT, CHATML, FORGETFUL_AFTER_A_QUESTION, QUESTION, TOOL, after, said
from tests.unit.chat.test_strict_templates import BEGINS_THINKING, STRICT_AND_FORGETFUL

# Every turn of a tool has its number, so what comes after a turn depends on how many there were.
NUMBERED = (
    "{% set count = namespace(tools=0) %}{% for message in messages %}"
    "{% if message.role == 'tool' %}{% set count.tools = count.tools + 1 %}{% endif %}"
    "<|{{ message.role }}|>{% if message.role == 'tool' %}{{ count.tools }}: {% endif %}{{ message.content }}<|end|>"
    "{% endfor %}{% if tools %}{% endif %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

THOUGHTFUL = f"<think>\nSo.\n</think>\n\n{CALL_TEXT}"


class Counted:
    """A tokenizer that counts the messages its template is asked to write."""

    def __init__(self, tokenizer: Any, template: str) -> None:
        self._inner = copy.deepcopy(tokenizer)
        self._inner.chat_template = self.chat_template = template
        self.num_messages = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        self.num_messages += len(conversation)
        return self._inner.apply_chat_template(conversation, **kwargs)


def play(renderer: ChatRenderer, words: list[str], answers: list[list[str]]) -> list[Prompt]:
    """The prompts of an episode."""
    observation = Observation(messages=(QUESTION,), tools=(TOOL,))
    prompts = [renderer.render(observation)]
    for text, told in zip(words, answers, strict=True):
        action: Action = said(renderer, text)
        observation = after(observation, action, *told)
        prompts.append(renderer.next_prompt(prompts[-1], action, observation))
    return prompts


@pytest.mark.whole
@pytest.mark.parametrize(
    "template", [CHATML, NUMBERED, FORGETFUL_AFTER_A_QUESTION, BEGINS_THINKING, STRICT_AND_FORGETFUL]
)
def test_forty_turns_have_the_tokens_of_whole_renderings(
    tokenizer: Any, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [THOUGHTFUL if turn % 7 == 3 else CALL_TEXT for turn in range(40)]
    answers = [[f"{turn}"] * (1 + turn % 2) if turn % 5 else [""] for turn in range(40)]
    found = [play(ChatRenderer(Counted(tokenizer, template)), words, answers) for _ in range(2)]
    monkeypatch.setattr("agent_r1.chat.bridge.TIMES_AGREED", 10**9)
    whole = play(ChatRenderer(Counted(tokenizer, template)), words, answers)
    for prompts in found:
        assert [(prompt.token_ids, prompt.bridged) for prompt in prompts] == [
            (prompt.token_ids, prompt.bridged) for prompt in whole
        ]
        assert prompts[-1].template_text == whole[-1].template_text


def test_the_template_writes_few_messages_however_long_the_conversation_is(tokenizer: Any) -> None:
    counted = Counted(tokenizer, CHATML)
    renderer = ChatRenderer(counted)
    for _ in range(4):
        before = counted.num_messages
        play(renderer, [CALL_TEXT] * 40, [["7"]] * 40)
    assert counted.num_messages - before <= 1 + 40 * 3


def test_a_template_that_counts_turns_is_always_asked_for_all_of_them(tokenizer: Any) -> None:
    counted = Counted(tokenizer, NUMBERED)
    prompt = play(ChatRenderer(counted), [CALL_TEXT] * 20, [["7"]] * 20)[-1]
    assert "<|tool|>20: 7<|end|>" in str(prompt.template_text)
    assert counted.num_messages > 400
