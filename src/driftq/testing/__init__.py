"""For the tests of your own code: the real broker in memory, a clock that moves by hand, and deliveries gone wrong.

    def test_an_order_is_charged_once(driftq_broker):
        driftq_broker.topics.create("orders")
        driftq_broker.send("orders", {"id": 1})
        driftq_broker.chaos(charge, seed=1)          # twice, late, in another order
        assert gateway.charges == ["1"]

Nothing is imported before it is used: the pytest plugin lives here, and is loaded by every test run that has driftq.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driftq.testing.broker import HandClock as HandClock
    from driftq.testing.broker import MemoryBroker as MemoryBroker
    from driftq.testing.broker import memory_broker as memory_broker
    from driftq.testing.chaos import Chaos as Chaos
    from driftq.testing.chaos import Report as Report

__all__ = ["memory_broker", "MemoryBroker", "HandClock", "Chaos", "Report"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'driftq.testing' has no attribute {name!r}")
    place = "chaos" if name in ("Chaos", "Report") else "broker"
    return getattr(importlib.import_module(f"driftq.testing.{place}"), name)
