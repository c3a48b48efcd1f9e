"""One server with the tiny model for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.served_model import Served, served, tiny_agent

pytest.importorskip("uvicorn", reason="the server needs the extra 'serve'")


@pytest.fixture(scope="package")
def tiny(model_folder: Path) -> Iterator[Served]:
    """The tiny model, served."""
    with served(tiny_agent(model_folder)) as running:
        yield running
