"""The observers of one server, as one part that starts and stops: samples, the index of runs, the feed of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.server.observation.event_feed import EventFeed
from driftq.server.observation.run_index import RunIndex
from driftq.server.observation.sampler import Sampler

if TYPE_CHECKING:
    from driftq.engine.engine import Engine
    from driftq.server.metrics.registry import Metrics


class Observers:
    """What looks at the facts and counters of an engine, for people."""

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self.metrics = metrics
        self.sampler = Sampler(engine, metrics)
        self.runs = RunIndex(engine)
        self.events = EventFeed(engine)

    async def start(self) -> None:
        """Do what a server does in the background. Without it, samples are taken and runs are indexed on demand."""
        await self.sampler.start()
        self.runs.start()

    async def stop(self) -> None:
        """At a clean stop."""
        self.runs.stop()
        await self.sampler.stop()
