"""For the tests of your own code: the real broker in memory, a clock that you move, and bad deliveries on purpose.

    def test_an_order_is_charged_once(driftq_broker):
        driftq_broker.topics.create("orders")
        driftq_broker.send("orders", {"id": 1})
        driftq_broker.chaos(charge, seed=1)          # duplicates, lost acks, another order
        assert gateway.charges == ["1"]

Nothing is imported before it is used: the pytest plugin is in this package, and every test run with driftq loads it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driftq.testing.broker import MemoryBroker as MemoryBroker
    from driftq.testing.broker import memory_broker as memory_broker
    from driftq.testing.chaos import Chaos as Chaos
    from driftq.testing.chaos import Report as Report
    from driftq.testing.clock import HandClock as HandClock

__all__ = ["memory_broker", "MemoryBroker", "HandClock", "Chaos", "Report"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'driftq.testing' has no attribute {name!r}")
    module = {"Chaos": "chaos", "Report": "chaos", "HandClock": "clock"}.get(name, "broker")
    return getattr(importlib.import_module(f"driftq.testing.{module}"), name)
