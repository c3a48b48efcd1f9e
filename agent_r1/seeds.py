"""Seeds.

Everything random in a run is a pure function of the run's seed and of where it happens, so a resumed run draws what the
uninterrupted one would have drawn, without any generator state being saved.
"""

from __future__ import annotations


def mix_seed(*parts: int) -> int:
    """One 63-bit seed from several numbers; different parts give unrelated seeds (splitmix64).

    >>> mix_seed(1, 2) == mix_seed(1, 2), mix_seed(1, 2) == mix_seed(2, 1)
    (True, False)
    """
    state = 0
    for part in parts:
        state = (state + part + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1


def unit_float(*parts: int) -> float:
    """A number in [0, 1) with 53 random bits, the same for the same parts."""
    return (mix_seed(*parts) >> 10) / 9007199254740992.0
