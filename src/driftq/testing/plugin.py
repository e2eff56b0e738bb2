"""The pytest plugin: `driftq_broker` is a new in-memory broker for each test, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from driftq.testing.broker import MemoryBroker


@pytest.fixture
def driftq_broker() -> Iterator[MemoryBroker]:
    """An empty broker. `advance` moves its clock, `drain` runs workers, `chaos` runs them with bad deliveries."""
    from driftq.testing.broker import memory_broker  # noqa: PLC0415  # costs time: only for tests that use it

    with memory_broker() as broker:
        yield broker
