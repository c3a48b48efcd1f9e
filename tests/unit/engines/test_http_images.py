"""Images for engines behind HTTP, against conformance servers (`tests/helpers/engine_server.py`), which stand in for
SGLang and for vLLM on a GPU. `tests/integration/test_vllm_images.py` runs a real vLLM on a CPU."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from agent_r1.chat import ChatRenderer, load_renderer
from agent_r1.config import Config, load_config
from agent_r1.engines import make_engine
from agent_r1.engines.http.commands import VllmBuild, server_command
from agent_r1.engines.http.images import ServerImages
from agent_r1.engines.local.engine import LocalEngine
from agent_r1.errors import ConfigError, EngineLostError, EngineRequestError
from agent_r1.images import Picture, read_picture
from agent_r1.models import load_policy, merged_weights
from agent_r1.types import Completion, Observation, SamplingParams, TokenIds
from tests.helpers.engine_server import RunningServer, engine_server
from tests.helpers.tiny_vlms import make_tiny_vlm

CONTEXT = 512
CASES = [
    ("vllm", "smolvlm"),
    pytest.param(("sglang", "qwen2_5_vl"), marks=pytest.mark.whole),
    pytest.param(("vllm", "llava"), marks=pytest.mark.whole),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def made(family: str) -> Path:
        return make_tiny_vlm(family, tmp_path_factory.mktemp("models") / family)

    return made


@pytest.fixture(scope="module")
def serve(folders: Callable[[str], Path]) -> Iterator[Callable[[str, str], RunningServer]]:
    """Servers of this module, each started once."""
    with ExitStack() as stack:

        @cache
        def started(kind: str, family: str) -> RunningServer:
            return stack.enter_context(engine_server(folders(family), kind))

        yield started


def picture(seed: int, size: tuple[int, int] = (40, 30)) -> Picture:
    pixels = Image.frombytes("RGB", (5, 4), random.Random(seed).randbytes(60))
    return read_picture(pixels.resize(size, Image.Resampling.NEAREST))


def asked(*pictures: Picture) -> Observation:
    parts = [{"type": "image", "image": picture} for picture in pictures]
    return Observation(messages=({"role": "user", "content": [{"type": "text", "text": "What is it? "}, *parts]},))


@cache
def base_config() -> Config:
    return load_config(None, ["model.path=given", "engine.servers.lost_seconds=0.2"])


def config_of(kind: str, server: RunningServer, folder: Path) -> Config:
    base = base_config()
    chosen = replace(base.engine.servers, urls=[server.url])
    engine = replace(base.engine, name=kind.partition("-")[0], servers=chosen)
    return replace(base, engine=engine, model=replace(base.model, path=str(folder)))


def run(config: Config, policy: nn.Module, work: Callable[[Any], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        engine = make_engine(config, policy, CONTEXT)
        try:
            async with asyncio.timeout(30):
                return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


def policy_of(folder: Path) -> nn.Module:
    return load_policy(str(folder), dtype="float32", device=torch.device("cpu"))


def second_turn(renderer: ChatRenderer, first: TokenIds, completion: Completion) -> TokenIds:
    """The prompt after an action and another image, over the sampled ids."""
    new = renderer.render(asked(picture(2, (20, 50)))).token_ids
    return (*first, *completion.token_ids, *new)


@pytest.mark.parametrize("case", CASES)
def test_servers_sample_after_images_what_the_local_engine_samples(
    case: tuple[str, str], folders: Callable[[str], Path], serve: Callable[[str, str], RunningServer]
) -> None:
    kind, family = case
    folder = folders(family)
    policy, renderer = policy_of(folder), load_renderer(str(folder))
    first = renderer.render(asked(picture(0), picture(1))).token_ids
    banned = renderer.processor.placeholder_id if renderer.processor is not None else -1
    sampling = SamplingParams(max_tokens=6, temperature=1.0, seed=3, stop=(banned,))

    async def turns(engine: Any) -> list[Completion]:
        begun = await engine.generate(first, sampling)
        return [begun, await engine.generate(second_turn(renderer, first, begun), sampling)]

    served = run(config_of(kind, serve(kind, family), folder), policy, turns)
    local = asyncio.run(turns(LocalEngine(policy, context_length=CONTEXT)))
    for found, expected in zip(served, local, strict=True):
        assert found.token_ids == expected.token_ids
        assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


@pytest.mark.whole
def test_images_of_equal_size_are_told_apart(
    folders: Callable[[str], Path], serve: Callable[[str, str], RunningServer]
) -> None:
    folder = folders("smolvlm")
    renderer = load_renderer(str(folder))
    prompts = [renderer.render(asked(picture(number))).token_ids for number in (0, 1)]
    assert len(prompts[0]) == len(prompts[1])

    async def both(engine: Any) -> list[Completion]:
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        return [await engine.generate(prompt, sampling) for prompt in prompts]

    one, other = run(config_of("vllm", serve("vllm", "smolvlm"), folder), policy_of(folder), both)
    assert one.logprobs != pytest.approx(other.logprobs, abs=1e-3)


@pytest.mark.whole
@pytest.mark.parametrize(("family", "tower"), [("smolvlm", "vision_model"), ("llava", "vision_tower")])
def test_new_weights_of_the_tower_reach_the_server(
    family: str, tower: str, folders: Callable[[str], Path], serve: Callable[[str, str], RunningServer]
) -> None:
    folder, server = folders(family), serve("vllm", family)
    policy: Any = policy_of(folder)
    prompt = load_renderer(str(folder)).render(asked(picture(0))).token_ids
    sampling = SamplingParams(max_tokens=4, temperature=0.0)

    async def updated(engine: Any) -> Completion:
        await engine.generate(prompt, sampling)
        with torch.no_grad():
            for parameter in policy.model.get_submodule(tower).parameters():
                parameter.mul_(1.3)
        await engine.update_weights(merged_weights(policy), 1)
        return await engine.generate(prompt, sampling)

    found = run(config_of("vllm", server, folder), policy, updated)
    expected = asyncio.run(LocalEngine(policy, context_length=CONTEXT).generate(prompt, sampling))
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert "/reset_encoder_cache" in server.state()["calls"]


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("kind", "family", "reason"),
    [
        ("vllm-0.26", "llava", "the server ignores images beside token ids, as vLLM before 0.32 does"),
        ("sglang-0.5.12", "qwen2_5_vl", "keep the given ids"),
    ],
)
def test_a_server_that_cannot_take_the_images_is_refused_by_name(
    kind: str, family: str, reason: str, folders: Callable[[str], Path], serve: Callable[[str, str], RunningServer]
) -> None:
    folder = folders(family)
    prompt = load_renderer(str(folder)).render(asked(picture(0))).token_ids
    config = config_of(kind, serve(kind, family), folder)
    with pytest.raises(EngineLostError, match=reason):
        run(config, policy_of(folder), lambda engine: engine.generate(prompt, SamplingParams(max_tokens=2)))


@pytest.mark.parametrize("name", ["sglang", pytest.param("http", marks=pytest.mark.whole)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_families_that_sglang_does_not_take_images_with_are_refused_by_name(
    name: str, folders: Callable[[str], Path], serve: Callable[[str, str], RunningServer]
) -> None:
    folder, policy = folders("smolvlm"), policy_of(folders("smolvlm"))
    address = RunningServer("http://127.0.0.1:1") if name == "sglang" else serve("sglang", "smolvlm")
    config = config_of(name, address, folder)
    expected = (ConfigError, EngineLostError)[name == "http"]
    with pytest.raises(expected, match=r"takes no images beside token ids with a model of type smolvlm \(it does"):
        run(config, policy, lambda engine: engine.generate([1], SamplingParams(max_tokens=2)))


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_server_that_normalises_images_in_another_way_is_refused_by_the_probe(
    folders: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, other = folders("llava"), tmp_path / "other"
    shutil.copytree(folder, other)
    file = other / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"image_mean": [0.4, 0.5, 0.6]}))
    prompt = load_renderer(str(folder)).render(asked(picture(0))).token_ids
    with (
        engine_server(other, "vllm") as server,
        pytest.raises(EngineLostError, match=r"log-probs after an image differ.*resize and normalise images"),
    ):
        run(
            config_of("vllm", server, folder),
            policy_of(folder),
            lambda engine: engine.generate(prompt, SamplingParams(max_tokens=2)),
        )


def test_a_prompt_has_one_placeholder_per_image_and_the_pictures_beside_it(folders: Callable[[str], Path]) -> None:
    folder = folders("smolvlm")
    images, renderer = ServerImages.of_model(str(folder)), load_renderer(str(folder))
    assert images is not None
    ids = renderer.render(asked(picture(0), picture(1), picture(0))).token_ids
    prompt = images.prompt(ids)
    assert prompt.pictures == (picture(0), picture(1), picture(0))
    assert prompt.token_ids.count(images.placeholder_id) == 3
    assert len(prompt.expanded) == len(ids)
    text = [token for token in prompt.token_ids if token != images.placeholder_id]
    assert len(text) < len(
        [token for token in prompt.expanded if token != images.placeholder_id]
    )  # what is around tiles
    assert prompt.followed_by([5]).expanded == (*prompt.expanded, 5)
    assert images.prompt([1, 2]).pictures == ()


@pytest.mark.parametrize(
    ("kind", "flag"), [("vllm", "--mm-processor-kwargs"), ("sglang", "--disable-fast-image-processor")]
)
def test_servers_of_models_that_read_images_are_started_to_resize_with_pillow(
    kind: str, flag: str, folders: Callable[[str], Path], model_folder: Path
) -> None:
    def arguments(model: str) -> tuple[str, ...]:
        place: Any = {"python": "python3", "host": "127.0.0.1", "port": 1, "build": VllmBuild()}
        return server_command(kind, model, **place).arguments

    assert flag in arguments(str(folders("smolvlm")))
    for other in (str(model_folder), "never/used-here", "no model at all"):
        assert flag not in arguments(other)


def test_parts_of_images_and_placeholders_as_text_are_refused(folders: Callable[[str], Path]) -> None:
    folder = folders("smolvlm")
    images, renderer = ServerImages.of_model(str(folder)), load_renderer(str(folder))
    assert images is not None
    ids = renderer.render(asked(picture(0))).token_ids
    image = images.image_ids(picture(0))
    for part in (image[:-1], image[1:], image[2:], (*image[:3], 7, *image[3:])):
        with pytest.raises(EngineRequestError, match="a server takes whole images alone"):
            images.prompt((1, 2, *part))
    with pytest.raises(EngineRequestError, match="'<image>' as text beside 1 images"):
        images.prompt((*ids, images.placeholder_id))
