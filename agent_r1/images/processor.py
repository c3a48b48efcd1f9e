"""From pictures to what a model takes, through the image processor of the model's folder.

`transformers` is imported only when a processor is loaded. Its processors work with Pillow and NumPy here: torchvision
is never needed, and the pixels are the same on every machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from agent_r1.errors import AgentR1Error, ConfigError, ImageError, require_installed
from agent_r1.images.encoded import EncodedImage
from agent_r1.images.families import FAMILIES, Family, FamilySettings, ImageLayout
from agent_r1.images.ids import MAX_IMAGE_TOKENS
from agent_r1.images.memory import BoundedInputs, Inputs
from agent_r1.images.picture import Picture
from agent_r1.images.store import image_store
from agent_r1.types import TokenIds


def load_image_processor(
    path: str | Path,
    tokenizer: Any = None,
    *,
    max_tokens: int | None = None,
    max_pixels: int | None = None,
) -> ImageProcessor | None:
    """The image processor of a model folder or hub id; None for a model of text, or of a family that is not supported.

    `tokenizer` is the model's, if it is loaded already. `max_tokens` and `max_pixels` are what one image may have.
    """
    config = read_model_json(path, "config.json") or {}
    name = str(config.get("model_type"))
    if name not in FAMILIES:
        return None
    require_installed("PIL", "pillow", "images", f"the model '{path}' ({name})")
    processor_config = read_model_json(path, "processor_config.json") or {}
    # Newer folders have one file for both.
    settings = processor_config.get("image_processor") or read_model_json(path, "preprocessor_config.json") or {}
    image_processor_class = _image_processor_class(FAMILIES[name], settings.get("image_processor_type"), path)
    try:
        image_processor = image_processor_class.from_pretrained(str(path))
        if tokenizer is None:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(str(path))
    except Exception as error:
        raise ConfigError(f"the image processor of '{path}' cannot be loaded: {error}") from error
    return ImageProcessor(
        name,
        image_processor,
        tokenizer,
        config=config,
        processor_config=processor_config,
        max_tokens=max_tokens,
        max_pixels=max_pixels,
    )


class ImageProcessor:
    """Encodes pictures for one model.

    processor = load_image_processor("models/SmolVLM")
    image = processor.encode(read_picture("cat.png", folder="data"))
    prompt_ids = processor.prompt_ids(image)
    """

    def __init__(
        self,
        family: str,
        image_processor: Any,
        tokenizer: Any,
        *,
        config: Mapping[str, Any],
        processor_config: Mapping[str, Any],
        max_tokens: int | None = None,
        max_pixels: int | None = None,
    ) -> None:
        self.family = family
        """The `model_type` of the model."""
        self._family: Family = FAMILIES[family]
        self._image_processor = image_processor
        self._tokenizer = tokenizer
        self._store = image_store()
        self.max_tokens = min(max_tokens or MAX_IMAGE_TOKENS, MAX_IMAGE_TOKENS)
        self.max_pixels = max_pixels

        def token(name: str, usual: str) -> str:
            return str(getattr(tokenizer, name, None) or usual)

        image_token = processor_config.get("image_token") or self._family.image_token
        self.placeholder: str = token("image_token", str(image_token))
        """What the chat template writes for an image; it is one token."""
        self.placeholder_id: int = self._single_id(self.placeholder)
        self._settings = FamilySettings(
            image_token=self.placeholder, config=config, processor=processor_config, tokens=token
        )
        self.name = f"{family}-{_fingerprint(image_processor, self._settings)}"
        """Equal names mean equal inputs for equal pictures."""
        self._layouts: dict[str, ImageLayout] = {}
        self._sizes: dict[tuple[int, int], ImageLayout] = {}
        self._distinct: dict[ImageLayout, ImageLayout] = {}
        self._prompt_ids: dict[str, tuple[int, ...]] = {}

    def encode(self, picture: Picture) -> EncodedImage:
        """The picture as the model takes it, known to the store from now on. Raises `ImageError` for one that is beyond
        a limit. A picture that was encoded before costs nothing."""
        key = f"{picture.content_hash}:{self.name}"
        self._check_pixels(picture)
        layout = self._layout(key, picture)
        if layout.num_tokens > self.max_tokens:
            raise ImageError(
                f"an image of {picture.width} x {picture.height} pixels becomes {layout.num_tokens} tokens; at most "
                f"{self.max_tokens} are allowed (model.max_image_tokens). Make it smaller, or raise the limit (to "
                f"{MAX_IMAGE_TOKENS} at most)"
            )
        self._store.sources.add(picture)
        image = self._store.get(key)
        if image is None:
            image = self._new(key, picture.content_hash, layout)
            self._store.add(image)
        return image

    def prepare(self, picture: Picture) -> None:
        """Make the inputs of a picture now, in whatever thread this is called, unless they are held already."""
        dict(self.encode(picture).inputs)

    def is_prepared(self, picture: Picture) -> bool:
        """Whether the inputs of a picture are held."""
        return self._store.inputs.get(f"{picture.content_hash}:{self.name}") is not None

    def prompt_ids(self, image: EncodedImage) -> TokenIds:
        """The ids that the placeholder of an encoded image becomes: its tokens, with what the model has around them."""
        layout = self._layouts[image.key]
        template = self._prompt_ids.get(layout.text)
        if template is None:
            template = tuple(self._tokenizer.encode(layout.text, add_special_tokens=False))
            if template.count(self.placeholder_id) != layout.num_tokens:
                raise ConfigError(
                    f"the tokenizer writes {template.count(self.placeholder_id)} image tokens for an image of "
                    f"{layout.num_tokens}; '{self.placeholder}' must be a special token of it"
                )
            self._prompt_ids[layout.text] = template
        tokens = iter(image.token_ids)
        return tuple(next(tokens) if token == self.placeholder_id else token for token in template)

    def _layout(self, key: str, picture: Picture) -> ImageLayout:
        """The picture's place in a prompt, which depends on its size alone: only the first of a size is processed."""
        size = picture.width, picture.height
        layout = self._sizes.get(size)
        if layout is None:
            output = self._process(picture)
            layout = self._family.layout(output, self._settings, self._image_processor)
            # Many sizes have the same layout, whose text is long.
            layout = self._sizes[size] = self._distinct.setdefault(layout, layout)
            self._store.inputs.add(key, self._inputs_of(output))
        self._layouts[key] = layout
        return layout

    def _new(self, key: str, content_hash: str, layout: ImageLayout) -> EncodedImage:
        def make() -> Inputs:
            return self._inputs_of(self._process(self._store.sources.get(content_hash)))

        inputs = BoundedInputs(key, self._store.inputs, make)
        return EncodedImage(key=key, num_tokens=layout.num_tokens, inputs=inputs, grid=layout.grid)

    def _process(self, picture: Picture) -> Mapping[str, Any]:
        try:
            output: Mapping[str, Any] = self._image_processor(
                images=[picture.pil()], return_tensors="np", **self._family.options
            )
        except AgentR1Error:
            raise
        except Exception as error:
            raise ImageError(
                f"the model's image processor refuses an image of {picture.width} x {picture.height} pixels: {error}"
            ) from error
        return output

    def _inputs_of(self, output: Mapping[str, Any]) -> Inputs:
        return {name: _frozen(output[name]) for name in self._family.inputs if name in output}

    def _check_pixels(self, picture: Picture) -> None:
        if self.max_pixels is not None and picture.width * picture.height > self.max_pixels:
            raise ImageError(
                f"an image has {picture.width} x {picture.height} pixels; at most {self.max_pixels:,} are allowed "
                "(model.max_image_pixels). Make it smaller, or raise the limit"
            )

    def _single_id(self, token: str) -> int:
        ids = list(self._tokenizer.encode(token, add_special_tokens=False))
        if len(ids) != 1:
            raise ConfigError(f"the model's tokenizer has no image token '{token}'")
        return int(ids[0])


def _image_processor_class(family: Family, class_name: str | None, path: str | Path) -> Any:
    """The class that works with Pillow, from its own module: `AutoImageProcessor` asks for torchvision in some versions
    of `transformers`."""
    name = next(iter(family.processors)) if class_name is None else class_name.removesuffix("Fast").removesuffix("Pil")
    if name not in family.processors:
        raise ConfigError(
            f"the model '{path}' has the image processor '{class_name}', which is not supported for its family "
            f"(supported: {', '.join(family.processors)})"
        )
    package = family.processors[name]
    module = import_module(f"transformers.models.{package}.image_processing_pil_{package}")
    return getattr(module, f"{name}Pil")


def _frozen(value: Any) -> Any:
    import numpy as np

    array = np.ascontiguousarray(value)
    array.flags.writeable = False
    return array


def _fingerprint(image_processor: Any, settings: FamilySettings) -> str:
    """What decides the inputs and the number of tokens."""
    vision = settings.config.get("vision_config")
    decisive = [image_processor.to_dict(), settings.processor, vision, settings.config.get("scale_factor")]
    return hashlib.sha256(json.dumps(decisive, sort_keys=True, default=str).encode()).hexdigest()[:16]


def is_vision_model(path: str | Path) -> bool:
    """Whether a model folder or hub id is of a family that sees."""
    return str((read_model_json(path, "config.json") or {}).get("model_type")) in FAMILIES


def read_model_json(path: str | Path, name: str) -> dict[str, Any] | None:
    """A JSON file of a model folder or hub id; None when there is none."""
    file = model_file(path, name)
    if file is None:
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def model_file(path: str | Path, name: str) -> Path | None:
    """A file of a model folder or hub id; None when there is none."""
    if Path(path).is_dir():
        file = Path(path) / name
        return file if file.is_file() else None
    if str(path).count("/") != 1 or Path(path).is_absolute() or Path(path).exists():
        return None  # no hub id
    from transformers.utils.hub import cached_file

    found = cached_file(
        str(path),
        name,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if found is None else Path(found)
