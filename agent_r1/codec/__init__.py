"""JSON: strict reading and writing, and records as JSON and back."""

from agent_r1.codec.checks import WireError, integer, mapping, text
from agent_r1.codec.records import observation_from_json, observation_to_json
from agent_r1.codec.strict_json import read_json, write_json

__all__ = [
    "WireError",
    "integer",
    "mapping",
    "observation_from_json",
    "observation_to_json",
    "read_json",
    "text",
    "write_json",
]
