"""Messages to token ids, and sampled ids back to an action.

*Render* applies the model's chat template to a whole conversation. *Bridge* is what happens between two turns: when the
new messages only extend the old ones, the next prompt is

    previous prompt ids + sampled ids + rendered delta

so sampled ids are never decoded and encoded again. The delta is what the template writes after the sampled turn,
including the separators between turns (see `bridge`). When the template would have written the earlier turns
differently (some drop earlier thinking), the bridge notices and the prompt is rendered from scratch instead.

A chat template that never mentions tools gets the tools as text (see `tools_as_text`); so does every template when the
format is plain text that no template writes (`react`). A template that refuses a tool's answer without a call (the
answer to a malformed action) gets it as a user message.

Text that did not come from the template never becomes control tokens (see `control_tokens`). Messages of a data row
that asks for control tokens are `trusted`: they are encoded unchanged.

For a model that sees, images in messages become image tokens (see `pictures`); a picture keeps its ids in every prompt.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent_r1.chat.bridge import DeltaFinder, Draft, Prompt, Rendered, RenderedPrefix
from agent_r1.chat.control_tokens import ControlTokens
from agent_r1.chat.encoding import TextEncoder, Tokenizer
from agent_r1.chat.formats import ToolFormat, tool_formats
from agent_r1.chat.formats.base import end_of_turn_of, marks_of_own_turn, writes_as_text
from agent_r1.chat.pictures import PromptImages, copy_of, is_plain
from agent_r1.chat.tools_as_text import knows_tools, orphan_tool_results_as_user, without_tools
from agent_r1.errors import ChatTemplateError, ConfigError
from agent_r1.images import ImageProcessor
from agent_r1.types import Action, Completion, Message, Observation, TokenIds


class ChatRenderer:
    """Renders, bridges and parses for one tokenizer and one tool-call format; with `processor` for a model that sees.

    renderer = ChatRenderer(tokenizer)
    prompt = renderer.render(observation)
    action = renderer.parse(completion.token_ids, truncated=False)
    prompt = renderer.next_prompt(prompt, action, next_observation)
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        tool_format: str = "hermes",
        stop_ids: Sequence[int] = (),
        processor: ImageProcessor | None = None,
    ) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                "the model's tokenizer has no chat template; add chat_template.jinja to the model folder "
                "or choose an instruction-tuned model"
            )
        self.tokenizer = tokenizer
        self.format: ToolFormat = tool_formats.get(tool_format)()
        self._end_of_turn = end_of_turn_of(self.format)
        self._encoder = TextEncoder(tokenizer)
        self._images = PromptImages(processor, self._apply_template)
        self._beginnings: deque[tuple[Any, tuple[tuple[Message, ...], str]]] = deque(maxlen=4)
        self._tools: tuple[Sequence[Mapping[str, Any]], Any] = (), []  # the last ones, and with control tokens cut
        self.template_shows_tools = knows_tools(tokenizer.chat_template) and not writes_as_text(self.format)
        eos = tokenizer.eos_token_id
        stop_tokens = [*([] if eos is None else [int(eos)]), *stop_ids, *self._single_ids(self.format.stop_tokens)]
        self.stop_ids: TokenIds = tuple(dict.fromkeys(stop_tokens))
        if not self.stop_ids:
            raise ConfigError("the model's tokenizer has no end-of-turn token; set eos_token in tokenizer_config.json")
        # Ids that the tokenizer does not know, such as those of a padded vocabulary, have no text in a prompt.
        ends = [end for id_ in self.stop_ids if (end := str(tokenizer.decode([id_], skip_special_tokens=False)))]
        self._deltas = DeltaFinder(ends)
        self.control_tokens = ControlTokens(tokenizer, ends, marks_of_own_turn(self.format), self._images.placeholders)

    @property
    def processor(self) -> ImageProcessor | None:
        """What makes image tokens; None for a model that reads text only."""
        return self._images.processor

    @property
    def sees_images(self) -> bool:
        """Whether messages may hold images."""
        return self.processor is not None

    def render(self, observation: Observation, *, trusted: Collection[Message] = ()) -> Prompt:
        """The prompt of an observation, from scratch. Control tokens count in messages that equal one of `trusted`, and
        in a raw text that is the content of one; everywhere else their characters are ordinary text. Raises
        `UnsupportedMediaError` for images that the model does not see, `ChatTemplateError` for those that its template
        does not show, and `ImageError` for those beyond a limit."""
        draft = self._draft(self._images.normal(observation), trusted)
        return draft if isinstance(draft, Prompt) else draft.prompt(self.encode_rendered(draft.text))

    def render_to_check(self, observation: Observation, *, room: int, trusted: Collection[Message] = ()) -> Prompt:
        """What `render` returns; without its ids where these are certainly fewer than `room`."""
        draft = self._draft(self._images.normal(observation), trusted)
        if isinstance(draft, Prompt):
            return draft
        return draft.prompt(() if draft.most_tokens < room else self.encode_rendered(draft.text))

    def _draft(self, observation: Observation, trusted: Collection[Message]) -> Draft | Prompt:
        if observation.token_ids is not None:
            return Prompt(observation=observation, token_ids=observation.token_ids)
        if observation.text is not None:
            is_trusted = any(message.get("content") == observation.text for message in trusted)
            plain = observation.text if is_trusted else self.control_tokens.plain(observation.text)
            return Draft(plain, lambda ids: Prompt(observation=observation, token_ids=ids))
        messages, text = self._render_first(tuple(observation.messages or ()), observation, tuple(trusted))
        pictures = self._images.of(messages)

        def prompt(ids: TokenIds) -> Prompt:
            return Prompt(
                observation=observation,
                token_ids=self._images.expand(ids, pictures),
                skeleton=messages,
                template_text=text,
                before=RenderedPrefix(skeleton=messages, template_text=text),
            )

        return Draft(text, prompt, pictures)

    def _render_first(
        self, messages: tuple[Message, ...], observation: Observation, trusted: tuple[Message, ...]
    ) -> tuple[tuple[Message, ...], str]:
        """Messages as the template accepts them, and what it writes; the members of a group render it once."""
        key = messages, observation.tools, trusted
        for known_key, beginning in self._beginnings:
            if known_key == key:
                return beginning
        plain = self.control_tokens.messages(messages, trusted)
        try:
            rendered = plain, self._template(plain, observation)
        except ChatTemplateError:
            changed = orphan_tool_results_as_user(plain)
            if changed == plain:
                raise
            rendered = changed, self._template(changed, observation)
        self._images.require_shown(rendered[1], rendered[0], lambda some: self._template(some, observation))
        if all(map(is_plain, messages)):
            copies = tuple(map(copy_of, messages)), observation.tools, tuple(map(copy_of, trusted))
            self._beginnings.appendleft((copies, rendered))
        return rendered

    def next_prompt(
        self, previous: Prompt, action: Action, observation: Observation, *, trusted: Collection[Message] = ()
    ) -> Prompt:
        """The prompt after `action`: bridged when `observation` extends that of `previous`, else rendered from scratch.

        With previous ids [1, 2, 3], sampled ids [7, 8, EOS] and a tool answer whose rendering after EOS is
        [NL, 4, 5], the next prompt is [1, 2, 3, 7, 8, EOS, NL, 4, 5]. `trusted` is as in `render`.
        """
        observation = self._images.normal(observation, previous.observation)
        draft = self._bridge(previous, action, observation, trusted) or self._draft(observation, trusted)
        return draft if isinstance(draft, Prompt) else draft.prompt(self.encode_rendered(draft.text))

    async def prompt_async(
        self, observation: Observation, after: tuple[Prompt, Action] | None, *, trusted: Collection[Message] = ()
    ) -> Prompt:
        """What `render` (without `after`) or `next_prompt` returns. After `encode_in_threads`, the event loop continues
        while long texts and images are encoded; otherwise nothing here waits."""
        observation = self._images.normal(observation, None if after is None else after[0].observation)
        bridged = None if after is None else self._bridge(*after, observation, trusted)
        draft = bridged or self._draft(observation, trusted)
        if isinstance(draft, Prompt):
            return draft
        if draft.pictures and self.processor is not None and self._encoder.has_threads:
            for picture in draft.pictures:
                if not self.processor.is_prepared(picture):
                    await asyncio.to_thread(self.processor.prepare, picture)
        return draft.prompt(await self._encoder.encode_async(draft.text))

    def encode_in_threads(self) -> None:
        """From now on `prompt_async` encodes in threads. For engines that do not compute on the event loop."""
        self._encoder.use_threads()

    def own_turn(self, completion: Completion) -> Completion:
        """What was sampled, up to where the model continued after its call (`end_of_turn` of the format).

        No sampled token depends on later ones, so this is what sampling that stopped there would have given.
        """
        if self._end_of_turn is None:
            return completion
        ids = completion.token_ids
        text = self.text_of(ids)
        end = self._end_of_turn(text)
        if end is None:
            return completion
        # As many ids as write nothing beyond the end; one token may end both a call and its line.
        end = len(text) - len(text[end:].lstrip())
        count = bisect_right(range(len(ids) + 1), end, key=lambda number: len(self.text_of(ids[:number]))) - 1
        if not count:
            return completion
        return replace(
            completion,
            token_ids=ids[:count],
            logprobs=completion.logprobs[:count],
            policy_versions=completion.policy_versions[:count],
            finish_reason="stop",
        )

    def text_of(self, ids: TokenIds) -> str:
        """The text of sampled ids without the end of turn."""
        without_stop = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        return self._encoder.decode(self._images.collapse(without_stop))

    def parse(self, token_ids: Sequence[int], *, truncated: bool, text: str | None = None) -> Action:
        """The action of the sampled ids; `text` replaces their text where a stop text cut it."""
        ids = tuple(token_ids)
        text = self.text_of(ids) if text is None else text
        parsed = self.format.parse(text, truncated=truncated)
        return Action(
            text=text,
            content=parsed.content,
            token_ids=ids,
            tool_calls=parsed.tool_calls,
            parse_error=parsed.parse_error,
            repairs=parsed.repairs,
            final_answer=parsed.final_answer,
            history_text=parsed.history_text,
        )

    def encode_turn(self, prompt: Prompt, message: Message, *, trusted: Collection[Message] = ()) -> TokenIds:
        """The ids an assistant message is written as after `prompt`, up to and including its end of turn.

        This is what a demonstration trains on. Raises ValueError when the template does not write the
        message directly after the prompt. `trusted` is as in `render`.
        """
        [message] = self.control_tokens.messages([message], trusted)
        if self._images.of([message]):
            raise ValueError("an assistant's turn holds an image, which no model writes")
        text = self._template([*prompt.skeleton, message], prompt.observation, add_generation_prompt=False)
        if prompt.template_text is None or not text.startswith(prompt.template_text):
            raise ValueError("the chat template does not write the assistant's turn after its generation prompt")
        ids = self.encode_rendered(text[len(prompt.template_text) :])
        end = next((index for index, token in enumerate(ids) if token in self.stop_ids), None)
        if end is None:
            raise ValueError("the chat template does not close the assistant's turn with an end-of-turn token")
        return ids[: end + 1]

    def _bridge(
        self, previous: Prompt, action: Action, observation: Observation, trusted: Collection[Message]
    ) -> Draft | None:
        old, new = previous.observation.messages, observation.messages
        if old is None or new is None or previous.template_text is None or previous.before is None:
            return None
        extends = (
            len(new) > len(old)
            and list(new[: len(old)]) == list(old)
            and new[len(old)] == action.as_message()
            and tuple(observation.tools) == tuple(previous.observation.tools)
        )
        if not extends:
            return None

        def template(messages: Sequence[Message], begin_turn: bool) -> str:
            return self._template(messages, observation, add_generation_prompt=begin_turn)

        so_far = Rendered(skeleton=previous.skeleton, template_text=previous.template_text)
        turn, answers = new[len(old)], self.control_tokens.messages(new[len(old) + 1 :], trusted)
        action = self.control_tokens.action(action)
        delta = self._deltas.find(template, so_far, previous.before, action, answers)
        if delta is None:
            _, *rest = orphan_tool_results_as_user((turn, *answers))
            changed = tuple(rest)
            if changed != answers:
                delta = self._deltas.find(template, so_far, previous.before, action, changed)
        pictures = self._images.of(answers)
        if delta is None or not self._images.are_shown(delta.text, pictures):
            return None
        before = previous.before.after(action)

        def prompt(ids: TokenIds) -> Prompt:
            delta_ids = self._images.expand(self._without_end_of_turn(action.token_ids, ids), pictures)
            return Prompt(
                observation=observation,
                token_ids=previous.token_ids + action.token_ids + delta_ids,
                skeleton=delta.skeleton,
                template_text=delta.template_text,
                bridged=True,
                before=before,
            )

        return Draft(delta.text, prompt, pictures)

    def _without_end_of_turn(self, sampled: TokenIds, delta: TokenIds) -> TokenIds:
        """The delta without the end of turn that the model sampled itself, and without spaces before it."""
        if not sampled or sampled[-1] not in self.stop_ids or sampled[-1] not in delta:
            return delta
        end = delta.index(sampled[-1])
        if not end:
            return delta[1:]
        spaces = self._encoder.decode(delta[:end])
        return delta if spaces.strip() else delta[end + 1 :]

    def _template(
        self, messages: Sequence[Message], observation: Observation, *, add_generation_prompt: bool = True
    ) -> str:
        schemas, tools = self._tools
        if schemas != observation.tools:
            tools = self.control_tokens.value([dict(schema) for schema in observation.tools])
            self._tools = observation.tools, tools
        if tools and not self.template_shows_tools:
            messages, tools = without_tools(messages, tools, self.format), []
        return self._apply_template(self._images.for_template(messages), tools, add_generation_prompt)

    def _apply_template(
        self, messages: Sequence[Message], tools: Any = None, add_generation_prompt: bool = True
    ) -> str:
        try:
            rendered: str = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=tools or None,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
            )
        except Exception as error:
            what = str(error) or type(error).__name__  # such as MemoryError
            raise ChatTemplateError(f"the model's chat template refuses the conversation: {what}") from error
        return rendered

    def _single_ids(self, tokens: Sequence[str]) -> list[int]:
        """The ids of those `tokens` that are one token of the vocabulary."""
        encoded = [(token, self.encode_rendered(token)) for token in tokens]
        return [
            ids[0]
            for token, ids in encoded
            if len(ids) == 1 and str(self.tokenizer.decode(list(ids), skip_special_tokens=False)).strip() == token
        ]

    def encode(self, text: str) -> TokenIds:
        """The ids of text that no chat template wrote, nothing added: control tokens in it are ordinary characters."""
        return self.encode_rendered(self.control_tokens.plain(text))

    def encode_rendered(self, text: str) -> TokenIds:
        """The ids of what a chat template or a model writes: control tokens count, unless they are cut.

        Cached: the members of a group have the same prompt.
        """
        return self._encoder.encode(text)
