"""The state of each message of a log for one group, in a naive form: one entry for each message.

The product uses ranges and heaps; this model uses sets and dicts, which do not have the same bugs.
"""

from __future__ import annotations

from typing import NamedTuple

from driftq.core.model.facts import LaneKey


class Holding(NamedTuple):
    """A lease as the last delivery gave it."""

    owner: str
    token: str
    until_ms: int
    at_ms: int = 0  # of the delivery


class Places:
    """One group's view of one log."""

    __slots__ = (
        "attempts", "errors", "floor", "fresh_version", "held", "history", "how", "lane_tops", "last", "log_id",
        "losses", "lost", "resting", "seeks", "settled", "top_version", "unseen", "versions",
    )  # fmt: skip

    def __init__(self, log_id: int, start: int) -> None:
        self.log_id = log_id
        self.seeks = 0
        self.top_version = 0
        self.restart(start)
        self.fresh_version = 1

    def restart(self, start: int) -> None:
        self.floor = start  # everything below is settled
        self.settled: set[int] = set()  # above the floor
        self.how: dict[int, int] = {}  # how each was settled
        self.held: dict[int, Holding] = {}
        self.last: dict[int, Holding] = {}  # of messages in backoff: the last holder
        self.lost: set[int] = set()  # in backoff after a lost lease, without a reason from the holder
        self.resting: dict[int, int] = {}  # until when
        self.attempts: dict[int, int] = {}
        self.versions: dict[int, int] = {}
        self.losses: dict[int, int] = {}
        self.errors: dict[int, str] = {}
        self.history: set[int] = set()  # delayed, failed or released messages
        self.unseen: set[int] = set()  # released unsent
        self.lane_tops: dict[LaneKey | None, int] = {}  # highest first delivery of each lane
        self.fresh_version = self.top_version + 1

    def is_settled(self, offset: int) -> bool:
        return offset < self.floor or offset in self.settled

    def settle(self, offset: int, how: int) -> None:
        self.forget(offset)
        if offset < self.floor:
            return
        self.how.setdefault(offset, how)
        self.settled.add(offset)
        while self.floor in self.settled:
            self.settled.remove(self.floor)
            self.floor += 1

    def forget(self, offset: int) -> None:
        for table in (self.held, self.last, self.resting):
            table.pop(offset, None)
        self.unseen.discard(offset)
        self.lost.discard(offset)
        self.history.discard(offset)

    def rest(self, offset: int, until_ms: int) -> None:
        self.resting[offset] = until_ms
        self.history.add(offset)

    def trim(self, start: int) -> None:
        """Retention dropped everything below."""
        for offset in [*self.held, *self.resting, *self.unseen]:
            if offset < start:
                self.forget(offset)
        if start > self.floor:
            self.settled = {offset for offset in self.settled if offset >= start}
            self.floor = start
            while self.floor in self.settled:
                self.settled.remove(self.floor)
                self.floor += 1
