"""One command being judged: what a rule may look at, and the facts it has written down so far.

A case knows the tentative ends of logs, so that one command can append to the same log twice. Time and chance come in
from outside; nothing is changed until the facts are applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from driftq.core.model.facts import Appended, AppendMetadata, Fact
from driftq.wire.records import Record, stamp

if TYPE_CHECKING:
    from driftq.core.model.limits import BrokerLimits
    from driftq.core.state.logs import Log
    from driftq.core.state.state import State

EVENT_BYTES = 2_400  # what a history tells of one message, at the most and without its error


class LogReader(Protocol):
    """The immutable records that are durable already. Only decisions read them, never the fold."""

    def end(self, log_id: int) -> int:
        """The durable end: nobody is shown a record at or above it."""

    def record(self, log_id: int, offset: int) -> Record:
        """Raises `Unreadable` if it is damaged."""

    def batch_end(self, log_id: int, offset: int) -> int:
        """The end of the append that holds this offset."""

    def time_of(self, log_id: int, offset: int) -> int: ...

    def offset_at(self, log_id: int, at_ms: int) -> int: ...

    def spans(self, log_id: int) -> Sequence[tuple[int, int, int, int]]:
        """(first offset, end offset, bytes, last time) of what retention can drop, oldest first."""


class Unreadable(Exception):
    """A durable record cannot be read back: its bytes on disk are damaged."""


class Chance(Protocol):
    """Whatever must not be predictable."""

    def uniform(self) -> float:
        """In [0, 1)."""

    def token(self) -> str:
        """Unguessable and new."""


class DecisionContext:
    """Everything a rule needs to judge one command."""

    __slots__ = (
        "batch_bytes", "burials", "chance", "ends", "facts", "forks_gone", "limits", "now_ms", "reader",
        "softly_deleted", "state", "stream_made",
    )  # fmt: skip

    def __init__(self, state: State, limits: BrokerLimits, reader: LogReader, chance: Chance, now_ms: int) -> None:
        self.state = state
        self.limits = limits
        self.reader = reader
        self.chance = chance
        self.now_ms = now_ms
        self.facts: list[Fact] = []
        self.ends: dict[int, int] = {}
        self.batch_bytes = 0
        self.burials: dict[tuple[int, int, int], tuple[str, str]] = {}  # (group, log, offset): reason and error
        self.forks_gone: dict[int, int] = {}  # forks that this case deleted, by the log of their source
        self.softly_deleted: set[int] = set()
        self.stream_made: dict[str, int] = {}  # paths and logs of streams that this case creates

    def append(
        self, log: Log, batch: bytes, count: int, payload_bytes: int, along: AppendMetadata | None = None
    ) -> int:
        """Write down an append and return its first offset."""
        first_offset = self.ends.get(log.log_id, log.end)
        self.ends[log.log_id] = first_offset + count
        self.batch_bytes += len(batch)
        now_ms = self.now_ms
        self.facts.append(
            Appended(log.log_id, first_offset, count, payload_bytes, now_ms, stamp(batch, first_offset, now_ms), along)
        )
        return first_offset

    def expect_event(self, log: Log, error: str) -> None:
        """Leave room for what the history, if there is one, will tell of a failure."""
        if log.log_id in self.state.history_logs:
            self.batch_bytes += EVENT_BYTES + 6 * len(error)  # JSON may write a character as six

    def is_full(self) -> bool:
        """Whether one frame holds enough: what else there is to bury waits for the next."""
        return self.batch_bytes >= self.limits.batch_bytes
