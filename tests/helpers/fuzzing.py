"""How many cases the fuzz suite tries: `make test` keeps it quick, `make fuzz` asks for thousands."""

import os

from hypothesis import HealthCheck, settings

CASES = int(os.environ.get("FUZZ_CASES", "200"))
"""Examples for each kind of input (rows, configurations, service requests, tool output)."""


def fuzz_settings(share: float = 1.0, *, deadline_ms: int = 30_000) -> settings:
    """Settings of one property: its share of the cases of its kind of input, and a deadline for each case."""
    return settings(
        max_examples=max(1, round(CASES * share)),
        deadline=deadline_ms,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
