"""Models that read images: the families that are supported, the encoding of images, and the images of a pass."""

from agent_r1.models.vision.cache import ByteCache
from agent_r1.models.vision.encoder import Vision, vision_of
from agent_r1.models.vision.families import (
    FAMILIES,
    VisionFamily,
    freeze_vision,
    places_in_two_dimensions,
    set_attention,
    vision_family,
)
from agent_r1.models.vision.inputs import decoder_inputs
from agent_r1.models.vision.passes import ImagePass

__all__ = [
    "FAMILIES",
    "ByteCache",
    "ImagePass",
    "Vision",
    "VisionFamily",
    "decoder_inputs",
    "freeze_vision",
    "places_in_two_dimensions",
    "set_attention",
    "vision_family",
    "vision_of",
]
