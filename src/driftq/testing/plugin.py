"""The pytest plugin: `driftq_broker` is a fresh broker in memory for each test, with a clock that moves by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from driftq.testing.broker import MemoryBroker


@pytest.fixture
def driftq_broker() -> Iterator[MemoryBroker]:
    """A broker with nothing in it. `advance` moves its time, `drain` runs workers, `chaos` runs them badly."""
    from driftq.testing.broker import memory_broker  # noqa: PLC0415  # only those who use it pay for it

    with memory_broker() as broker:
        yield broker
