"""The command lines that start inference servers the way `engines/http` needs them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from agent_r1.errors import ConfigError
from agent_r1.images import is_vision_model

KINDS = ("vllm", "sglang")

_NOT_INHERITED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""What belongs to this environment and not to the server's."""

PILLOW_FLAGS = {
    "vllm": ["--mm-processor-kwargs", '{"use_fast": false}'],
    "sglang": ["--disable-fast-image-processor"],
}
"""Make a server resize images with Pillow, as the trainer does. torchvision rounds in another way."""

_CPU_TOKENS = 16384
"""Prompt tokens per step of a server on a CPU, unless the context is longer."""

_LOOK_INTO_VLLM = """
import importlib.util, json, pathlib
found = importlib.util.find_spec("vllm")
root = pathlib.Path(found.submodule_search_locations[0]) if found else None
flags = [file.read_text() for file in root.glob("entrypoints/**/cli_args.py")] if root else []
print(json.dumps({
    "installed": found is not None,
    "has_scale_out": any("enable_scale_out" in text or "enable-scale-out" in text for text in flags),
    "is_for_cpus": root is not None and any(root.glob("_C_AVX*")),
}))
"""
"""Says what vLLM of an environment is like, without importing it: that takes long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VllmBuild:
    """What the command line of a vLLM depends on."""

    installed: bool = True
    has_scale_out: bool = True
    """Whether token ids in and out need the flag `--enable-scale-out`; vLLM 0.26 always has them."""
    is_for_cpus: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerCommand:
    """A command and what its environment has beyond this process's."""

    arguments: tuple[str, ...]
    variables: Mapping[str, str]

    @property
    def environment(self) -> dict[str, str]:
        """The whole environment of the server."""
        inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        return {**inherited, **self.variables}

    def __str__(self) -> str:
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return " ".join([*variables, shlex.join(self.arguments)])


def server_command(
    kind: str,
    model: str,
    *,
    python: str,
    host: str,
    port: int,
    context_length: int | None = None,
    dtype: str | None = None,
    devices: str | None = None,
    arguments: Sequence[str] = (),
    variables: Sequence[str] = (),
    build: VllmBuild | None = None,
) -> ServerCommand:
    """The command of a server. `arguments` come last, so that they win; so do `variables` (`NAME=VALUE`). What the
    flags of vLLM depend on is looked up in its environment, unless `build` says it."""
    added_variables = read_variables(variables)
    settings: dict[str, str] = {}
    if kind == "vllm":
        build = build or vllm_build(python, tuple(added_variables.items()))
        settings = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
        fixed = [
            *("-m", "vllm.entrypoints.openai.api_server", "--model", model, "--host", host, "--port", str(port)),
            *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
            *(["--enable-scale-out"] if build.has_scale_out else []),
        ]
        if build.is_for_cpus:
            # A prompt that is cut into chunks kills a CPU server when its request has a seed.
            tokens = str(max(_CPU_TOKENS, context_length or 0))
            fixed += ["--enforce-eager", "--no-enable-chunked-prefill", "--max-num-batched-tokens", tokens]
            settings["VLLM_CPU_KVCACHE_SPACE"] = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1")
    else:
        fixed = ["-m", "sglang.launch_server", "--model-path", model, "--host", host, "--port", str(port)]
    if _reads_images(model):
        fixed += PILLOW_FLAGS[kind]
    if context_length is not None:
        fixed += ["--max-model-len" if kind == "vllm" else "--context-length", str(context_length)]
    if dtype is not None:
        fixed += ["--dtype", dtype]
    if devices is not None:
        settings["CUDA_VISIBLE_DEVICES"] = devices
    return ServerCommand(arguments=(python, *fixed, *arguments), variables={**settings, **added_variables})


def _reads_images(model: str) -> bool:
    """Whether a folder, or a model of the hub that was used here before, is one that reads images. Nothing is
    downloaded for it."""
    if Path(model).is_dir():
        return is_vision_model(model)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    with suppress(HFValidationError):
        file = try_to_load_from_cache(model, "config.json")
        return isinstance(file, str) and is_vision_model(Path(file).parent)
    return False


@cache
def vllm_build(python: str, variables: tuple[tuple[str, str], ...] = ()) -> VllmBuild:
    """What vLLM in the environment of an interpreter is like; `ConfigError` when there is none."""
    looking = ServerCommand(arguments=(python, "-c", _LOOK_INTO_VLLM), variables=dict(variables))
    try:
        process = subprocess.run(
            looking.arguments, env=looking.environment, capture_output=True, text=True, timeout=120, check=True
        )
        build = VllmBuild(**json.loads(process.stdout))
    except (OSError, ValueError, TypeError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{python} cannot be asked for its vLLM ({error}); give the path of a Python") from error
    if not build.installed:
        raise ConfigError(f"vLLM is not installed in the environment of {python}; give the Python of one that has it")
    return build


def find_python(name: str | None) -> str:
    """The path of an interpreter, given as a path or as a command (`python3`); None: the one that runs this."""
    path = shutil.which(name or sys.executable)
    if path is None:
        raise ConfigError(f"{name} does not exist, or cannot be run; give the path of a Python")
    return path


def read_variables(entries: Sequence[str]) -> dict[str, str]:
    """Environment variables written as `NAME=VALUE`."""
    return dict(map(_variable, entries))


def _variable(entry: str) -> tuple[str, str]:
    name, separator, value = entry.partition("=")
    if not name.strip() or not separator:
        raise ConfigError(f"an environment variable is written NAME=VALUE, found {entry!r:.80}")
    return name, value
