"""Encoding images: from the processor's arrays to the embeddings that stand where image tokens are."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from agent_r1.errors import EngineError
from agent_r1.images import EncodedImage
from agent_r1.models.vision.cache import ByteCache
from agent_r1.models.vision.families import VisionFamily, vision_family
from agent_r1.models.vision.positions import steady_positions
from agent_r1.models.vision.segments import attend_in_segments

Inputs = dict[str, npt.NDArray[Any]]
"""What a processor made of one image."""

BATCH_ELEMENTS = 2**25
"""Numbers of pixels that go through a tower at once: about fifty images of 448 x 448."""

SMALL_BYTES = 2**16
"""Arrays of fewer bytes are joined before they are sent to a GPU."""

FEATURE_BYTES = {"cpu": 2**30, "cuda": 2**32}
"""How many bytes of features are kept per frozen tower."""


def vision_of(model: nn.Module) -> Vision | None:
    """The part of a model that reads images; None for a model that reads none."""
    family = vision_family(getattr(model, "config", None))
    return None if family is None else Vision(model, family)


class Vision:
    """A model's tower and projector."""

    def __init__(self, model: nn.Module, family: VisionFamily) -> None:
        self.family = family
        self._model: Any = model
        self._tower = model.get_submodule(family.tower)
        steady_positions(self._tower)
        attend_in_segments(self._tower)
        self._projector = model.get_submodule(family.projectors[0])

    @property
    def device(self) -> torch.device:
        """Where the tower is."""
        return next(self._tower.parameters()).device

    def encode(
        self, images: Sequence[EncodedImage], *, one_by_one: bool = False, keep_features: bool = False
    ) -> list[Tensor]:
        """The embeddings [tokens, width] of each image, with gradient where gradients are on and parts are trained.

        Images of equal shape go through the tower together; `one_by_one` they do not, so that the embeddings of an
        image never depend on others. `keep_features` keeps what a frozen tower made for the next call.
        """
        if keep_features and self.family.projects_last and self._is_frozen():
            features = self._features(images, one_by_one=one_by_one)
            return self._by_shape(images, features, self._project)
        encoded: dict[int, Tensor] = {}
        for indices, inputs in _batches(images, one_by_one):
            rows = self._embeddings(self._image_features(inputs))
            encoded |= zip(indices, _split(rows, [images[index] for index in indices], per_token=True), strict=True)
        return [encoded[index] for index in range(len(images))]

    def _image_features(self, arrays: Sequence[Inputs]) -> Any:
        """What the model's own function makes of some images of equal shape."""
        inputs = {name: _join_on_device([each[name] for each in arrays], self.device) for name in arrays[0]}
        try:
            return self._model.model.get_image_features(**inputs)
        except (TypeError, ValueError, RuntimeError, IndexError) as error:
            shapes = {name: tuple(tensor.shape) for name, tensor in inputs.items()}
            raise EngineError(
                f"{type(self._model).__name__} cannot encode an image with the inputs {shapes}: {error}"
            ) from error

    def _embeddings(self, output: Any) -> Tensor:
        """All rows of an output, side by side with those that deeper layers add where the family has them."""
        rows = _as_one_tensor(output.pooler_output)
        if not self.family.deepstack:
            return rows
        return torch.cat([rows, *(_as_one_tensor(features) for features in output.deepstack_features)], dim=1)

    # --- features of a frozen tower --------------------------------------------------------------------------------

    def _is_frozen(self) -> bool:
        return not any(parameter.requires_grad for parameter in self.family.tower_parameters(self._model))

    def _features(self, images: Sequence[EncodedImage], *, one_by_one: bool) -> list[Tensor]:
        """What the tower gives the projector for each image, from the cache where it is there."""
        cache = self._feature_cache()
        kind = torch.get_autocast_dtype(self.device.type) if torch.is_autocast_enabled(self.device.type) else None
        cached = [cache.get((image.key, kind)) for image in images]
        missing = [image for image, features in zip(images, cached, strict=True) if features is None]
        fresh: dict[str, Tensor] = {}
        for indices, inputs in _batches(missing, one_by_one):
            chosen = [missing[index] for index in indices]
            for image, features in zip(chosen, _split(self._projector_input(inputs), chosen), strict=True):
                fresh[image.key] = features.clone()
                cache.put((image.key, kind), fresh[image.key])
        return [
            fresh[image.key] if features is None else features for image, features in zip(images, cached, strict=True)
        ]

    def _projector_input(self, inputs: Sequence[Inputs]) -> Tensor:
        seen: list[Tensor] = []
        hook = self._projector.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        try:
            with torch.no_grad():
                self._image_features(inputs)
        finally:
            hook.remove()
        [features] = seen
        return features

    def _project(self, features: Tensor) -> Tensor:
        rows = self._projector(features)
        return cast(Tensor, rows.reshape(-1, rows.shape[-1]))

    def _by_shape(self, images: Sequence[EncodedImage], features: Sequence[Tensor], compute: Any) -> list[Tensor]:
        groups: defaultdict[torch.Size, list[int]] = defaultdict(list)
        for index, entry in enumerate(features):
            groups[entry.shape[1:]].append(index)
        computed: dict[int, Tensor] = {}
        for indices in groups.values():
            rows = compute(torch.cat([features[index] for index in indices]))
            chosen = [images[index] for index in indices]
            computed |= zip(indices, _split(rows, chosen, per_token=True), strict=True)
        return [computed[index] for index in range(len(images))]

    def _feature_cache(self) -> ByteCache:
        """The features of this tower, as long as its weights are what they were."""
        state = hash(
            tuple(
                (entry.data_ptr(), entry._version, entry.dtype) for entry in self.family.tower_parameters(self._model)
            )
        )
        known = _FEATURES.get(self._tower)
        if known is None or known[0] != state:
            known = state, ByteCache(FEATURE_BYTES.get(self.device.type, FEATURE_BYTES["cpu"]))
            _FEATURES[self._tower] = known
        return known[1]


_FEATURES: WeakKeyDictionary[nn.Module, tuple[int, ByteCache]] = WeakKeyDictionary()
"""The features of each tower, and the state of its weights that made them."""


def _batches(images: Sequence[EncodedImage], one_by_one: bool) -> Iterator[tuple[list[int], list[Inputs]]]:
    """Images that can go through a tower together: their indices, and their inputs, which are read once and held no
    longer than necessary."""
    open_batches: defaultdict[Any, tuple[list[int], list[Inputs]]] = defaultdict(lambda: ([], []))
    sizes: Counter[Any] = Counter()
    for index, image in enumerate(images):
        inputs = dict(image.inputs)
        if one_by_one:
            yield [index], [inputs]
            continue
        kind = tuple((name, array.shape[1:], array.dtype.str) for name, array in inputs.items())
        size = max(array.size for array in inputs.values())
        if sizes[kind] and sizes[kind] + size > BATCH_ELEMENTS:
            yield open_batches.pop(kind)
            sizes[kind] = 0
        indices, batch = open_batches[kind]
        indices.append(index)
        batch.append(inputs)
        sizes[kind] += size
    yield from open_batches.values()


def _join_on_device(arrays: Sequence[Any], device: torch.device) -> Tensor:
    """The arrays of several images as one tensor. On a GPU they are joined there: on the host, the new memory for
    hundreds of MB costs more than the copy."""
    tensors = [torch.from_numpy(_array(array)) for array in arrays]
    if device.type != "cpu" and tensors[0].nbytes < SMALL_BYTES:
        return torch.cat(tensors).to(device)
    on_device = [tensor.to(device) for tensor in tensors]
    return torch.cat(on_device) if len(on_device) > 1 else on_device[0]


def _array(array: Any) -> npt.NDArray[Any]:
    kinds: dict[str, Any] = {"f": np.float32, "b": np.bool_}
    # Writable: torch would warn of others, though it does not write.
    return np.require(array, kinds.get(np.asarray(array).dtype.kind, np.int64), ["C", "W"])


def _as_one_tensor(parts: Any) -> Tensor:
    """The rows of all images, which some models return as one tensor per image."""
    rows: Tensor = torch.cat(list(parts)) if isinstance(parts, (list, tuple)) else parts
    return rows.reshape(-1, rows.shape[-1])


def _split(rows: Tensor, images: Sequence[EncodedImage], *, per_token: bool = False) -> tuple[Tensor, ...]:
    """The rows of each image: one `per_token`, otherwise several per token or one for several tokens."""
    total = sum(image.num_tokens for image in images)
    sizes = [len(rows) * image.num_tokens // total for image in images]
    if sum(sizes) != len(rows) or (per_token and len(rows) != total):
        raise EngineError(
            f"the model made {len(rows)} embeddings of {len(images)} images, and their processor counted {total} "
            "tokens; the processor belongs to another model, or to another version of it"
        )
    return torch.split(rows, sizes)
