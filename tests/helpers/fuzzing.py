"""How many examples property tests try: few in `make coverage`, some in `make test`, all in `make fuzz`."""

import os

from hypothesis import HealthCheck, settings

IS_THOROUGH = "FUZZ_CASES" in os.environ
FEW_CASES = int(os.environ.get("FEW_CASES", "0"))
"""With more than 0, the most examples of any property."""
CASES = int(os.environ.get("FUZZ_CASES", "60"))
"""Examples for each kind of input of the fuzz suite (rows, configurations, service requests, tool output)."""


def cases(thorough: int) -> int:
    """Examples of a property test: all in `make fuzz`, a third of them in `make test`."""
    return _at_most_few(thorough if IS_THOROUGH else -(-thorough // 3))


def _at_most_few(count: int) -> int:
    return min(count, FEW_CASES) if FEW_CASES else count


def fuzz_settings(share: float = 1.0, *, deadline_ms: int = 30_000) -> settings:
    """Settings of one property: its share of the cases of its kind of input, and a deadline for each case."""
    return settings(
        max_examples=_at_most_few(max(1, round(CASES * share))),
        deadline=deadline_ms,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
