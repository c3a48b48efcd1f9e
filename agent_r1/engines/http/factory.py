"""Builds `ServersEngine` from a configuration, and checks the configuration before a model is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agent_r1.config import Config
from agent_r1.engines.base import Engine
from agent_r1.engines.http.commands import find_python, read_variables, vllm_build
from agent_r1.errors import ConfigError, report_problems, require_installed
from agent_r1.files import is_gguf

if TYPE_CHECKING:
    from agent_r1.engines.http.images import ServerImages
    from agent_r1.engines.http.probe import ProbeText


def check_servers(config: Config) -> None:
    """Raise one `ConfigError` for everything in `engine.servers` that cannot work."""
    require_installed("aiohttp", "aiohttp", "servers", f"engine={config.engine.name}")
    settings, rollout, problems = config.engine.servers, config.rollout, list[str]()
    if not settings.urls and not settings.start:
        problems.append(
            "engine.servers.urls is empty: name running servers (agent-r1 serve-engine MODEL starts one), or let the "
            "run start some with engine.servers.start=1"
        )
    problems += [
        f"engine.servers.urls has {url!r:.100}; expected an address such as http://127.0.0.1:8000"
        for url in settings.urls
        if not _is_address(url)
    ]
    if len(set(settings.urls)) < len(settings.urls):
        problems.append("engine.servers.urls names a server twice")
    if settings.key_env is not None and not os.environ.get(settings.key_env):
        problems.append(f"engine.servers.key_env={settings.key_env}: this environment variable is not set")
    if config.engine.name == "vllm" and (rollout.top_p < 1 or rollout.top_k > 0):
        problems.append(
            f"rollout.top_p={rollout.top_p} and rollout.top_k={rollout.top_k}: vLLM gives log-probs renormalised over "
            "the tokens they keep, which the trainer's are not. Use top_p=1 and top_k=0, or an SGLang server"
        )
    problems += _start_problems(config)
    report_problems(problems, ConfigError, f"engine={config.engine.name} cannot be used:")


def _start_problems(config: Config) -> list[str]:
    settings, kind, problems = config.engine.servers, config.engine.name, list[str]()
    if settings.start and is_gguf(config.model.path):
        problems.append("engine.servers.start cannot start a server from a GGUF file; give a Hugging Face folder or id")
    if settings.start and kind == "http":
        problems.append("engine.servers.start needs to know what to start: set engine=vllm or engine=sglang")
    if settings.devices and len(settings.devices) != settings.start:
        problems.append(
            f"engine.servers.devices has {len(settings.devices)} entries and engine.servers.start={settings.start}; "
            "give one entry per started server"
        )
    if settings.start:
        try:
            python, variables = find_python(settings.python), read_variables(settings.environment)
            if kind == "vllm":
                vllm_build(python, tuple(variables.items()))
        except ConfigError as error:
            problems.append(f"engine.servers.start={settings.start}: {error}")
    return problems


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def make_servers_engine(config: Config, policy: Any, context_length: int) -> Engine:
    """The engine; servers that the run starts itself are started here and answer later."""
    check_servers(config)
    from agent_r1.engines.http.engine import EngineSettings, ServersEngine
    from agent_r1.engines.http.images import ServerImages
    from agent_r1.engines.http.policy_weights import server_dtype, vocabulary_of
    from agent_r1.engines.http.processes import start_servers
    from agent_r1.engines.http.server import ServerSettings, image_problem

    settings = config.engine.servers
    dtype = server_dtype(config, policy)
    images = ServerImages.of_model(config.model.path)
    problem = None if images is None else image_problem(config.engine.name, images.family)
    if problem is not None:
        raise ConfigError(f"model.path={config.model.path}: {problem}")
    shared = ServerSettings(
        kind=config.engine.name,
        model=settings.model,
        context_length=context_length,
        vocabulary=vocabulary_of(policy),
        timeout=settings.timeout,
        admin_timeout=settings.admin_timeout,
        images=images,
    )
    started = start_servers(config, context_length, dtype)
    return ServersEngine(
        EngineSettings(
            urls=(*settings.urls, *started.urls),
            servers=shared,
            concurrency=settings.concurrency,
            retries=settings.retries,
            lost_seconds=max(settings.lost_seconds, settings.start_timeout if started.urls else 0.0),
            weights_folder=None if settings.weights_folder is None else Path(settings.weights_folder).absolute(),
            key=os.environ.get(settings.key_env) if settings.key_env else None,
        ),
        _writer(policy, _probe_texts(policy, context_length, images), dtype=dtype, tolerance=settings.tolerance),
        started=started,
    )


def _probe_texts(policy: Any, context_length: int, images: ServerImages | None) -> tuple[ProbeText, ...]:
    """The texts of the probe: one of text alone, and for a model that reads images one with an image."""
    from agent_r1.engines.http.images import probe_picture
    from agent_r1.engines.http.policy_weights import media_ids, vocabulary_of
    from agent_r1.engines.http.probe import ProbeText

    sizes: Any = {"vocabulary": vocabulary_of(policy), "context_length": context_length, "omitted": media_ids(policy)}
    with_image = None if images is None else ProbeText.with_image(images.image_ids(probe_picture()), **sizes)
    return (ProbeText.of(**sizes), *(() if with_image is None else (with_image,)))


def _writer(policy: Any, texts: tuple[ProbeText, ...], *, dtype: str, tolerance: float | None) -> Any:
    """What writes weights for servers and computes the trainer's answer to the probe."""
    from agent_r1.engines.http.policy_weights import next_logprobs, write_weights
    from agent_r1.engines.http.probe import Probe, make_probe

    def write(weights: Iterable[tuple[str, Any]] | None, folder: Path, before: Probe | None) -> Probe:
        write_weights(policy, weights, folder, dtype=dtype)
        logprobs = next_logprobs(policy, texts, folder=folder)
        return make_probe(texts, logprobs, before=before, dtype=dtype, tolerance=tolerance)

    return write
