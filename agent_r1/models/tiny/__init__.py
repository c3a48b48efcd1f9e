"""Tiny models for recipes that train offline, made on the spot: one for text, one that also reads images."""

from agent_r1.models.tiny.text import CHAT_TEMPLATE, build_tiny_model, train_tokenizer
from agent_r1.models.tiny.tower import add_vision_tower
from agent_r1.models.tiny.vision import build_tiny_vision_model

__all__ = ["CHAT_TEMPLATE", "add_vision_tower", "build_tiny_model", "build_tiny_vision_model", "train_tokenizer"]
