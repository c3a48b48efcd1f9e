"""Pictures as models take them: encoded once, held in bounded memory, made again exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent_r1.errors import ConfigError, EngineRequestError
from agent_r1.images import (
    EncodedImage,
    ImageError,
    ImageProcessor,
    ImageStore,
    Picture,
    is_image_id,
    load_image_processor,
    read_picture,
)
from agent_r1.images import store as store_module
from agent_r1.images.memory import InputCache, PictureSources
from tests.helpers.tiny_vlms import FAMILIES, make_tiny_vlm


def picture(seed: int, width: int = 24, height: int = 16) -> Picture:
    return read_picture(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("vlms")
    return {family: make_tiny_vlm(family, root / family, weights=False) for family in FAMILIES}


def processor_of(folder: Path, monkeypatch: pytest.MonkeyPatch, **limits: int) -> ImageProcessor:
    """A processor with a store of its own, within small limits if asked."""
    sources = PictureSources(limits.get("sources", 2**20), limits.get("spilled", 2**30))
    store = ImageStore(sources, InputCache(limits.get("inputs", 2**20)))
    monkeypatch.setattr("agent_r1.images.processor.image_store", lambda: store)
    processor = load_image_processor(folder)
    assert processor is not None
    return processor


def count_calls(processor: ImageProcessor) -> list[Any]:
    calls, real = list[Any](), processor._image_processor

    class Counted:
        merge_size = getattr(real, "merge_size", None)

        def __call__(self, **options: Any) -> Any:
            calls.append(options)
            return real(**options)

    processor._image_processor = Counted()
    return calls


@pytest.mark.parametrize("family", FAMILIES)
def test_image_tokens_of_a_prompt_are_those_of_the_image_in_order(
    family: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = processor_of(folders[family], monkeypatch)
    for size in ((24, 16), (8, 8), (1, 1), (200, 3), (16, 90)):
        image = processor.encode(picture(0, *size))
        ids = processor.prompt_ids(image)
        assert tuple(one for one in ids if is_image_id(one)) == image.token_ids
        assert processor.placeholder_id not in ids
        if image.grid is not None:
            assert image.grid[0] * image.grid[1] == image.num_tokens
        assert all(not array.flags.writeable for array in image.inputs.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_picture_is_processed_once_and_made_again_exactly_when_it_was_evicted(
    family: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = processor_of(folders[family], monkeypatch, inputs=1, sources=1)  # one of each at a time
    calls = count_calls(processor)
    first = processor.encode(picture(1))
    before = {name: array.copy() for name, array in first.inputs.items()}
    assert processor.encode(picture(1)) is first
    assert len(calls) == 1
    for seed in range(2, 6):
        assert processor.encode(picture(seed)).num_tokens == first.num_tokens
    assert len(calls) == 1  # the number of tokens is a matter of the size
    for seed in range(2, 6):
        processor.prepare(picture(seed))
    assert len(calls) == 5
    for name, array in before.items():
        np.testing.assert_array_equal(first.inputs[name], array, strict=True)
    assert len(calls) == 6


def test_sources_beyond_memory_are_files_and_beyond_the_disk_limit_forgotten(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    processor = processor_of(folders["llava"], monkeypatch, inputs=1, sources=1, spilled=3000)
    images = [processor.encode(picture(seed)) for seed in range(6)]
    processor.prepare(picture(5))
    with pytest.raises(ImageError, match="no longer held"):
        dict(images[0].inputs)
    assert dict(images[-2].inputs)
    assert processor.encode(picture(0)).inputs["pixel_values"].shape == (1, 3, 16, 16)


def test_processors_with_other_settings_have_other_ids(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = processor_of(folders["smolvlm"], monkeypatch)
    two = processor_of(make_tiny_vlm("smolvlm", tmp_path, weights=False, splits=False), monkeypatch)
    own, other = one.encode(picture(1)), two.encode(picture(1))
    assert own.num_tokens > other.num_tokens
    assert not set(own.token_ids) & set(other.token_ids)
    assert processor_of(folders["smolvlm"], monkeypatch).encode(picture(1)).token_ids == own.token_ids


def test_a_text_model_has_no_processor(model_folder: Path) -> None:
    assert load_image_processor(model_folder) is None
    assert load_image_processor("no_such_folder") is None
    assert load_image_processor(model_folder / "missing") is None


def test_settings_in_one_file_of_newer_models_are_read(tmp_path: Path) -> None:
    folder = make_tiny_vlm("qwen2_vl", tmp_path, weights=False)
    before = load_image_processor(folder).encode(picture(1)).num_tokens
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").unlink()
    whole = {
        "processor_class": "Qwen2VLProcessor",
        "image_processor": {**settings, "image_processor_type": "Qwen2VLImageProcessorFast"},
    }
    (folder / "processor_config.json").write_text(json.dumps(whole))
    assert load_image_processor(folder).encode(picture(1)).num_tokens == before


def test_folders_that_cannot_work_are_refused_by_name(tmp_path: Path) -> None:
    folder = make_tiny_vlm("llava", tmp_path, weights=False)
    file = folder / "preprocessor_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "image_processor_type": "PixtralImageProcessor"}))
    with pytest.raises(ConfigError, match="'PixtralImageProcessor', which is not supported"):
        load_image_processor(folder)
    file.write_text("{")
    with pytest.raises(ConfigError, match=r"image processor of .* cannot be loaded"):
        load_image_processor(folder)


def test_what_the_model_s_processor_refuses_is_an_error_of_the_image(folders: dict[str, Path]) -> None:
    processor = load_image_processor(folders["qwen2_vl"])
    with pytest.raises(ImageError, match=r"refuses an image of 500 x 2 pixels: .*aspect ratio"):
        processor.encode(picture(1, 500, 2))


def test_two_images_with_the_same_ids_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """49 bits of a hash: nobody waits for a collision, so one is made."""
    monkeypatch.setattr(
        "agent_r1.images.encoded.image_token_ids", lambda key, number: tuple(range(2**62, 2**62 + number))
    )
    store = store_module.ImageStore()
    store.add(EncodedImage(key="one", num_tokens=2, inputs={}))
    store.add(EncodedImage(key="one", num_tokens=2, inputs={}))
    with pytest.raises(EngineRequestError, match="same token ids"):
        store.add(EncodedImage(key="two", num_tokens=2, inputs={}))


def test_the_cache_of_inputs_drops_what_was_used_longest_ago() -> None:
    cache = InputCache(max_bytes=2 * 80)
    arrays = {name: {"pixels": np.full(10, number, dtype=np.float64)} for number, name in enumerate("abc")}
    cache.add("a", arrays["a"])
    cache.add("b", arrays["b"])
    assert cache.get("a") is arrays["a"]
    cache.add("c", arrays["c"])
    assert cache.get("b") is None
    assert cache.get("a") is arrays["a"]
    assert cache.num_bytes == 160
    cache.max_bytes = 3 * 80
    cache.add("b", arrays["b"])
    assert cache.get("a") is arrays["a"], "there is room for three now"
