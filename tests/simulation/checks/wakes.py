"""Subscriptions: every wake has the next generation, only the current one is acked, acks never move back, and no
subscription that follows a stream that has grown is left asleep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driftq.core.model import subscriptions as w
from driftq.core.model.facts import ClockSet
from driftq.core.model.stream_facts import SubscriptionCreated, SubscriptionDeleted, WakeEnded, WakeHeld, WakeMade
from driftq.core.state.state import State
from tests.simulation.checks.queues import hinted
from tests.simulation.checks.violation import Violation, demand
from tests.simulation.operation import Operation


class SubscriptionModel:
    """One subscription, from its facts."""

    __slots__ = ("generation", "name", "until_ms", "wake_id")

    def __init__(self, name: str) -> None:
        self.name = name
        self.generation = 0
        self.wake_id = ""
        self.until_ms = 0


class WakesCheck:
    """All subscriptions, by number."""

    def __init__(self) -> None:
        self._known: dict[int, SubscriptionModel] = {}
        self.count = 0

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        return {
            SubscriptionCreated: self._created,
            SubscriptionDeleted: self._deleted,
            WakeMade: self._made,
            WakeHeld: self._held,
            WakeEnded: self._ended,
            ClockSet: self._clock_set,
        }

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {}

    def _created(self, fact: SubscriptionCreated, op: Operation) -> None:
        demand(fact.number not in self._known, "wakes", f"{op}: subscription number {fact.number} is taken")
        self._known[fact.number] = SubscriptionModel(fact.subscription)

    def _deleted(self, fact: SubscriptionDeleted, op: Operation) -> None:
        del self._known[fact.number]

    def _made(self, fact: WakeMade, op: Operation) -> None:
        known = self._known[fact.number]
        demand(
            fact.generation == known.generation + 1,
            "wakes",
            f"{op}: generation {fact.generation} behind {known.generation}",
        )
        known.generation, known.wake_id, known.until_ms = fact.generation, fact.wake_id, fact.until_ms
        self.count += 1

    def _held(self, fact: WakeHeld, op: Operation) -> None:
        known = self._known[fact.number]
        command = op.command
        if isinstance(command, w.AckWake) and (command.generation, command.wake_id) != (
            known.generation,
            known.wake_id,
        ):
            raise Violation("wakes", f"{op}: an ended wake was acked")
        if isinstance(command, w.FinishWake) and command.generation != known.generation:
            raise Violation("wakes", f"{op}: an ended wake was finished")
        known.until_ms = fact.until_ms

    def _ended(self, fact: WakeEnded, op: Operation) -> None:
        known = self._known[fact.number]
        demand(known.wake_id, "wakes", f"{op}: what was asleep was ended")
        known.wake_id, known.until_ms = "", 0

    def _clock_set(self, fact: ClockSet, op: Operation) -> None:
        for known in self._known.values():
            if known.until_ms > fact.from_ms:
                known.until_ms += fact.at_ms - fact.from_ms

    def compare(self, state: State, now_ms: int) -> None:
        demand(
            list(state.subscriptions.by_number) == list(self._known),
            "wakes",
            "other subscriptions exist than were made",
        )
        for number, subscription in state.subscriptions.by_number.items():
            known = self._known[number]
            shown = (subscription.generation, subscription.wake_id, subscription.until_ms)
            demand(shown == (known.generation, known.wake_id, known.until_ms), "wakes", f"{known.name} shows {shown}")
            if known.until_ms and known.wake_id:
                hinted(state, known.until_ms, now_ms, ("wake", number, 0))
            for path, link in subscription.links.items():
                stream = state.streams.by_path.get(path)
                if stream is None or stream.soft_deleted or path == subscription.config.wake_stream:
                    continue
                grown = state.logs[stream.log_id].end > link.acked
                demand(not grown or known.wake_id, "wakes", f"{known.name} sleeps though {path} has grown")
