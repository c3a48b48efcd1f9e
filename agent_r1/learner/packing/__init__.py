"""Packing samples into micro-batches: padded rows, or token tries in which shared prefixes are computed once."""

from agent_r1.learner.packing.samples import MicroBatch, Packer, Sample, pack
from agent_r1.learner.packing.trie import build_rows, pack_tries
from agent_r1.learner.packing.trie_attention import TRIE_ATTENTION

__all__ = ["TRIE_ATTENTION", "MicroBatch", "Packer", "Sample", "build_rows", "pack", "pack_tries"]
