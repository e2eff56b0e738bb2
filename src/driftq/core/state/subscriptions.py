"""Subscriptions: which streams each follows, how far it has acked, and its wake.

A subscription has at most one wake at a time, so the wake is stored with it. The decisions are in
`core.rules.subscriptions` and `core.transitions.wakes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from driftq.core.model.stream_facts import (
    SigningKeyMade,
    StreamPosition,
    SubscriptionConfig,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionLink,
    SubscriptionLinked,
    SubscriptionState,
    SubscriptionUnlinked,
    WakeEnded,
    WakeHeld,
    WakeMade,
)

if TYPE_CHECKING:
    from driftq.core.model.facts import Fact
    from driftq.core.state.deadlines import Deadlines


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern matches a path: `*` is one segment, `**` any number of segments, also none."""
    segments = [segment for segment in path.split("/") if segment]
    reached = [True] + [False] * len(segments)  # reached[i]: the pattern so far matches the first i segments
    for part in (part for part in pattern.split("/") if part):
        if part == "**":
            for index in range(1, len(reached)):
                reached[index] = reached[index] or reached[index - 1]
        else:
            hits = [part in ("*", segment) for segment in segments]
            reached = [False] + [before and hit for before, hit in zip(reached, hits)]
    return reached[-1]


class SubscriptionRecord:
    """One subscription and its wake."""

    __slots__ = ("created", "generation", "holder", "links", "tails", "until_ms", "wake_id")

    def __init__(self, created: SubscriptionCreated) -> None:
        self.created = created
        self.links: dict[str, SubscriptionLink] = {}
        self.generation = 0
        self.wake_id = ""  # "": no wake
        self.holder = ""
        self.until_ms = 0  # the end of the lease; 0: none
        self.tails: tuple[StreamPosition, ...] = ()

    @property
    def number(self) -> int:
        return self.created.number

    @property
    def config(self) -> SubscriptionConfig:
        return self.created.config

    def snapshot(self) -> SubscriptionState:
        return SubscriptionState(
            self.created,
            tuple(self.links.values()),
            self.generation,
            self.wake_id,
            self.holder,
            self.until_ms,
            self.tails,
        )


class SubscriptionTable:
    """All subscriptions, by name, by number and by the streams that they follow."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self.by_name: dict[str, SubscriptionRecord] = {}
        self.by_number: dict[int, SubscriptionRecord] = {}
        self.by_path: dict[str, dict[int, SubscriptionRecord]] = {}
        self.seed = b""
        self.folds: dict[type, Callable[[Any], None]] = {
            SubscriptionCreated: self._created,
            SubscriptionDeleted: self._deleted,
            SubscriptionLinked: self._linked,
            SubscriptionUnlinked: self._unlinked,
            WakeMade: self._woken,
            WakeHeld: self._held,
            WakeEnded: self._ended,
            SigningKeyMade: self._key_made,
            SubscriptionState: self._restored,
        }

    @property
    def next_number(self) -> int:
        return max(self.by_number, default=0) + 1

    def _created(self, fact: SubscriptionCreated) -> None:
        self._add(SubscriptionRecord(fact), fact.links)

    def _add(self, subscription: SubscriptionRecord, links: tuple[SubscriptionLink, ...]) -> None:
        self.by_name[subscription.created.subscription] = self.by_number[subscription.number] = subscription
        self._link(subscription, links)

    def _link(self, subscription: SubscriptionRecord, links: tuple[SubscriptionLink, ...]) -> None:
        for link in links:
            subscription.links[link.path] = link
            self.by_path.setdefault(link.path, {})[subscription.number] = subscription

    def _unlink(self, subscription: SubscriptionRecord, path: str) -> None:
        del subscription.links[path]
        followers = self.by_path[path]
        del followers[subscription.number]
        if not followers:
            del self.by_path[path]

    def _deleted(self, fact: SubscriptionDeleted) -> None:
        subscription = self.by_number.pop(fact.number)
        del self.by_name[subscription.created.subscription]
        for path in list(subscription.links):
            self._unlink(subscription, path)

    def _linked(self, fact: SubscriptionLinked) -> None:
        self._link(self.by_number[fact.number], fact.links)

    def _unlinked(self, fact: SubscriptionUnlinked) -> None:
        self._unlink(self.by_number[fact.number], fact.path)

    def stream_deleted(self, path: str) -> None:
        """Subscriptions that named the stream will follow the next one at that path from its start. Links by pattern
        are removed; a pattern matches a new stream anyway."""
        for subscription in list(self.by_path.get(path, {}).values()):
            if subscription.links[path].by_name:
                subscription.links[path] = SubscriptionLink(path, 0, True, False)
            else:
                self._unlink(subscription, path)

    def _woken(self, fact: WakeMade) -> None:
        subscription = self.by_number[fact.number]
        subscription.generation, subscription.wake_id = fact.generation, fact.wake_id
        subscription.holder, subscription.until_ms, subscription.tails = "", fact.until_ms, fact.tails
        self.schedule(subscription)

    def _held(self, fact: WakeHeld) -> None:
        subscription = self.by_number[fact.number]
        subscription.holder, subscription.until_ms = fact.holder, fact.until_ms
        for path, offset in fact.acks:
            link = subscription.links[path]
            subscription.links[path] = SubscriptionLink(path, offset, link.by_name, link.by_pattern)
        self.schedule(subscription)

    def _ended(self, fact: WakeEnded) -> None:
        subscription = self.by_number[fact.number]
        subscription.wake_id = subscription.holder = ""
        subscription.until_ms, subscription.tails = 0, ()

    def schedule(self, subscription: SubscriptionRecord) -> None:
        self._deadlines.push(("wake", subscription.number, 0), subscription.until_ms or None)

    def _key_made(self, fact: SigningKeyMade) -> None:
        self.seed = fact.seed

    # --- snapshots ---

    def snapshot(self) -> Iterator[Fact]:
        if self.seed:
            yield SigningKeyMade(self.seed)
        for subscription in self.by_number.values():
            yield subscription.snapshot()

    def _restored(self, fact: SubscriptionState) -> None:
        subscription = SubscriptionRecord(fact.created)
        subscription.generation, subscription.wake_id = fact.generation, fact.wake_id
        subscription.holder, subscription.until_ms, subscription.tails = fact.holder, fact.until_ms, fact.tails
        self._add(subscription, fact.links)
        self.schedule(subscription)
