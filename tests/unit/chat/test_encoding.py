"""Encoding straight through `tokenizers` and in threads: the ids are those of the tokenizer's own call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from agent_r1.chat import ChatRenderer, Prompt
from agent_r1.chat.bridge import Draft
from agent_r1.chat.control_tokens import SPLIT, encode_pieces
from agent_r1.chat.encoding import MAX_KNOWN, EncodingThreads, TextEncoder, fast_backend, fast_decoder
from agent_r1.types import Action, Message, Observation, TokenIds
from tests.helpers.fuzzing import cases

CORPUS = [
    "The quick brown fox jumps over the lazy dog, 12 times in 1999.",
    '<tool_call>{"name": "search", "arguments": {"query": "Zürich"}}</tool_call>',
    "I do not know; naïve café 東京 is a city.\n\n[1] Tea\nA drink made of leaves.",
] * 20
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = "{% for m in messages %}[{{ m.role }}] {{ m.content }}<|im_end|>{% endfor %}[assistant] "
LLAMA = (
    "{% for m in messages %}<|start|>{{ m.role }}<|sep|>\n\n{{ m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|sep|>\n\n{% endif %}"
)
TEMPLATES = (CHATML, PLAIN, LLAMA)


def wrapped(bpe: Tokenizer, vocabulary: int = 400, template: str = CHATML, **arguments: Any) -> Any:
    bpe.add_special_tokens([AddedToken(text, normalized=False) for text in ("<|im_end|>", "<|im_start|>")])
    bpe.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("  ", normalized=False)])
    trainer_of = {
        "BPE": trainers.BpeTrainer,
        "Unigram": trainers.UnigramTrainer,
        "WordPiece": trainers.WordPieceTrainer,
    }
    kind = type(bpe.model).__name__
    options: dict[str, Any] = {"unk_token": "<unk>"} if kind == "Unigram" else {}
    special = ["<unk>", "<|im_end|>", "<|im_start|>"]
    trainer = trainer_of.get(kind, trainers.WordPieceTrainer)(
        vocab_size=vocabulary, special_tokens=special, show_progress=False, **options
    )
    bpe.train_from_iterator(CORPUS, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", unk_token="<unk>", **arguments)
    tokenizer.chat_template = template
    return tokenizer


def byte_level(**arguments: Any) -> Any:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    return wrapped(bpe, **arguments)


def sentencepiece_like(**arguments: Any) -> Any:
    """Puts a space before any text and normalises it."""
    unigram = Tokenizer(models.Unigram())
    unigram.normalizer = normalizers.NFKC()
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    return wrapped(unigram, **arguments)


def word_pieces(**arguments: Any) -> Any:
    """Lower-cases, and cleans up spaces when it decodes."""
    pieces = Tokenizer(models.WordPiece(unk_token="<unk>"))
    pieces.normalizer = normalizers.Lowercase()
    pieces.pre_tokenizer = pre_tokenizers.Whitespace()
    pieces.decoder = decoders.WordPiece()
    return wrapped(pieces, clean_up_tokenization_spaces=True, **arguments)


MAKERS = {"byte level": byte_level, "sentencepiece": sentencepiece_like, "word pieces": word_pieces}
TOKENIZERS = {name: make() for name, make in MAKERS.items()}

TEXTS = st.lists(
    st.one_of(
        st.text(max_size=40),
        st.sampled_from(["<|im_end|>", "<|im_start|>user\n", "<tool_call>", "  ", "\n\n", "é", "e\u0301", "ﬁ", SPLIT]),
        st.sampled_from(CORPUS),
    ),
    max_size=8,
).map("".join)


def slow_ids(tokenizer: Any, text: str) -> TokenIds:
    """The oracle: the tokenizer's own call, piece by piece."""
    plain = text.encode("utf-8", "replace").decode("utf-8")
    return tuple(encode_pieces(lambda piece: tokenizer.encode(piece, add_special_tokens=False), plain))


# --- the same ids ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
@given(text=TEXTS)
@settings(max_examples=cases(100))
def test_a_prompt_has_no_more_tokens_than_its_text_tells(name: str, text: str) -> None:
    draft = Draft(text, lambda ids: Prompt(observation=Observation(text=text), token_ids=ids))
    assert len(slow_ids(TOKENIZERS[name], text)) <= draft.most_tokens


@pytest.mark.parametrize("normalizer", ["NFC", "NFD", "NFKC", "NFKD"])
@given(text=st.text(st.characters(codec="utf-8"), max_size=20))
@settings(max_examples=cases(100))
def test_the_longest_normal_form_counts(normalizer: str, text: str) -> None:
    normal = getattr(normalizers, normalizer)().normalize_str(text)
    draft = Draft(text, lambda ids: Prompt(observation=Observation(text=text), token_ids=ids))
    assert len(normal.encode()) < draft.most_tokens


def test_a_prompt_that_certainly_fits_is_checked_without_encoding_it() -> None:
    renderer = ChatRenderer(TOKENIZERS["byte level"])
    observation = Observation(messages=({"role": "user", "content": "Where is Zürich?"},))
    whole = renderer.render(observation)
    assert renderer.render_to_check(observation, room=len(whole.token_ids)).token_ids == whole.token_ids
    easy = renderer.render_to_check(observation, room=1000)
    assert easy.token_ids == ()
    assert easy.observation == whole.observation


@pytest.mark.parametrize("name", MAKERS)
def test_tokenizers_of_the_library_are_called_directly(name: str) -> None:
    assert fast_backend(TOKENIZERS[name]) is not None


@settings(max_examples=cases(60), deadline=None)
@given(name=st.sampled_from(list(MAKERS)), text=TEXTS)
def test_the_short_way_gives_the_ids_of_the_tokenizers_own_call(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    encoder = TextEncoder(tokenizer)
    ids = encoder.encode(text)
    assert ids == slow_ids(tokenizer, text)
    assert encoder.decode(ids) == tokenizer.decode(list(ids), skip_special_tokens=False)


@settings(max_examples=cases(25), deadline=None)
@given(
    name=st.sampled_from(list(MAKERS)),
    template=st.sampled_from(TEMPLATES),
    question=TEXTS,
    results=st.lists(TEXTS, min_size=1, max_size=3),
)
def test_prompts_of_many_templates_are_the_same_with_and_without_the_short_way_and_threads(
    name: str, template: str, question: str, results: list[str]
) -> None:
    tokenizer = TOKENIZERS[name]
    tokenizer.chat_template = template
    fast, threads, slow = (ChatRenderer(tokenizer) for _ in range(3))
    threads.encode_in_threads()
    slow._encoder._backend = slow._encoder._decoder = None
    assert asyncio.run(prompts(fast, question, results)) == asyncio.run(prompts(slow, question, results))
    assert asyncio.run(prompts(threads, question, results)) == asyncio.run(prompts(slow, question, results))


async def prompts(renderer: ChatRenderer, question: str, results: Sequence[str]) -> list[TokenIds]:
    """The prompts of an episode in which each result answers an action; long enough for threads."""
    messages: tuple[Message, ...] = ({"role": "user", "content": question + " and" * 100},)
    prompt = await renderer.prompt_async(Observation(messages=messages), None)
    found = [prompt.token_ids]
    for result in results:
        ids = (*renderer.encode("I search."), renderer.stop_ids[0])
        action: Action = renderer.parse(ids, truncated=False)
        messages = (*messages, action.as_message(), {"role": "tool", "content": result + " found" * 60})
        observation = Observation(messages=messages)
        expected = renderer.next_prompt(prompt, action, observation)
        prompt = await renderer.prompt_async(observation, (prompt, action))
        assert prompt == expected
        found.append(prompt.token_ids)
    return found


# --- where the short way is not taken -------------------------------------------------------------------------------


def test_a_tokenizer_with_a_call_of_its_own_is_asked() -> None:
    class Shouting(PreTrainedTokenizerFast):
        def encode(self, text: str, **arguments: Any) -> list[int]:
            return super().encode(text.upper(), **arguments)

    tokenizer = Shouting(tokenizer_object=byte_level().backend_tokenizer, eos_token="<|im_end|>")
    assert fast_backend(tokenizer) is None
    encoder = TextEncoder(tokenizer)
    encoder.use_threads()
    expected = tuple(tokenizer.encode("tea " * 200, add_special_tokens=False))
    assert encoder.encode("tea " * 200) == asyncio.run(encoder.encode_async("tea " * 200)) == expected


def test_a_tokenizer_that_is_no_tokenizer_of_the_library_is_asked() -> None:
    class Letters:
        eos_token_id, chat_template = 0, ""

        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return [ord(letter) for letter in text]

        def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
            return "".join(map(chr, token_ids))

    encoder = TextEncoder(Letters())
    assert encoder.encode("tea") == (116, 101, 97)
    assert encoder.decode((116, 101, 97)) == "tea"


def test_a_tokenizer_whose_text_is_cleaned_up_decodes_itself() -> None:
    tokenizer = TOKENIZERS["word pieces"]
    assert fast_decoder(tokenizer, fast_backend(tokenizer)) is None


def test_truncation_and_split_tokens_that_others_switched_on_change_no_ids() -> None:
    tokenizer = byte_level()
    encoder = TextEncoder(tokenizer)
    encoder.use_threads()
    texts = [f"{number} plain words<|im_end|> and more " * 20 for number in range(3)]
    expected = [slow_ids(byte_level(), text) for text in texts]
    tokenizer("cut", truncation=True, max_length=2)
    assert tokenizer.backend_tokenizer.truncation is not None
    assert encoder.encode(texts[0]) == expected[0]
    tokenizer.encode("a<|im_end|>", split_special_tokens=True)
    assert asyncio.run(encoder.encode_async(texts[1])) == expected[1]
    assert asyncio.run(encoder.encode_async(texts[2])) == expected[2]


def test_half_a_surrogate_pair_is_encoded_as_a_replacement() -> None:
    encoder = TextEncoder(byte_level())
    encoder.use_threads()
    text = "tea \ud83d " * 80
    assert encoder.encode(text) == encoder.encode("tea ? " * 80)
    assert asyncio.run(TextEncoder(byte_level()).encode_async(text)) == encoder.encode(text)


def test_only_so_many_texts_are_remembered() -> None:
    encoder = TextEncoder(byte_level())
    for number in range(MAX_KNOWN + 10):
        encoder.encode(str(number))
    assert len(encoder._known) == MAX_KNOWN


# --- threads --------------------------------------------------------------------------------------------------------


class Gate:
    """Encodes when it is opened, and counts."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.calls: list[list[str]] = []

    def encode(self, texts: Sequence[str]) -> list[TokenIds]:
        assert threading.current_thread() is not threading.main_thread()
        self.calls.append(list(texts))
        assert self.opened.wait(30)
        if "bad" in texts:
            raise ValueError("bad text")
        return [(len(text),) for text in texts]


def test_texts_of_one_round_are_encoded_together_and_each_once() -> None:
    gate = Gate()
    threads = EncodingThreads(gate.encode, 1)

    async def run() -> list[TokenIds]:
        waiting = [asyncio.ensure_future(threads.submit(text)) for text in ("a", "bb", "a", "ccc")]
        while not gate.calls:
            await asyncio.sleep(0.001)
        late = asyncio.ensure_future(threads.submit("bb"))  # while it is encoded
        await asyncio.sleep(0)
        gate.opened.set()
        return await asyncio.gather(*waiting, late)

    assert asyncio.run(run()) == [(1,), (2,), (1,), (3,), (2,)]
    assert gate.calls == [["a", "bb", "ccc"]]


def test_the_callers_of_one_round_continue_together() -> None:
    """Otherwise the engine would compute their next prompts in one step per thread."""
    slow, other_has_ended = threading.Event(), threading.Event()
    order: list[str] = []

    def encode(texts: Sequence[str]) -> list[TokenIds]:
        if "0" in texts:
            assert slow.wait(30)
        else:
            other_has_ended.set()
        return [(len(text),) for text in texts]

    threads = EncodingThreads(encode, 2)

    async def ask(text: str) -> None:
        await threads.submit(text)
        order.append(text)

    async def run() -> None:
        texts = [str(number) for number in range(10)]
        waiting = asyncio.gather(*map(ask, texts))
        while not other_has_ended.is_set():
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.001)
        assert order == []
        slow.set()
        await waiting
        assert order == texts

    asyncio.run(run())


def test_the_event_loop_continues_while_a_text_is_encoded_and_a_cancelled_caller_cancels_no_other() -> None:
    gate = Gate()
    threads = EncodingThreads(gate.encode, 2)

    async def run() -> TokenIds:
        cancelled, kept = (asyncio.ensure_future(threads.submit("same")) for _ in range(2))
        while not gate.calls:
            await asyncio.sleep(0.001)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        gate.opened.set()
        return await kept

    assert asyncio.run(run()) == (4,)


def test_an_error_reaches_all_who_wait_for_the_text_and_the_next_text_is_encoded() -> None:
    gate = Gate()
    gate.opened.set()
    threads = EncodingThreads(gate.encode, 1)

    async def run() -> TokenIds:
        failed = await asyncio.gather(threads.submit("bad"), threads.submit("bad"), return_exceptions=True)
        assert [str(error) for error in failed] == ["bad text"] * 2
        return await threads.submit("good")

    assert asyncio.run(run()) == (4,)


def test_a_text_that_an_ended_event_loop_waited_for_is_encoded_in_the_next_one() -> None:
    gate = Gate()
    threads = EncodingThreads(gate.encode, 1)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(threads.submit("text"), 0.05)

    asyncio.run(give_up())
    gate.opened.set()
    assert asyncio.run(threads.submit("text")) == (4,)


def test_without_threads_nothing_waits() -> None:
    """Where the engine computes on the event loop, the order of events is a function of the requests alone."""
    renderer = ChatRenderer(TOKENIZERS["byte level"])
    rendering = renderer.prompt_async(Observation(messages=({"role": "user", "content": "word " * 300},)), None)
    with pytest.raises(StopIteration):
        rendering.send(None)
