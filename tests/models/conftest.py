"""All tests on real models run where all tests run: they are slow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.models.forward import Worker

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """A process that runs models, and may be aborted by them."""
    running = Worker()
    yield running
    running.pool.shutdown()
