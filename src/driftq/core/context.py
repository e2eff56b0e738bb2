"""The context of one decision: what a rule may read, and the facts it has recorded so far.

Nothing changes until the facts are applied, so a context also keeps what they will change for the rest of the same
command, such as the new ends of logs: one command can append to the same log twice. Time and chance are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from driftq.core.model.facts import Appended, AppendMetadata, Fact
from driftq.wire.records import Record, stamp

if TYPE_CHECKING:
    from driftq.core.model.commands import Command
    from driftq.core.model.limits import BrokerLimits
    from driftq.core.model.replies import Reply
    from driftq.core.state.logs import Log
    from driftq.core.state.state import State

EVENT_BYTES = 2_400  # the largest history event of one message, without its error text


class LogReader(Protocol):
    """Durable, immutable records. Only decisions read them, never the fold."""

    def end(self, log_id: int) -> int:
        """The durable end: no client sees a record at or above it."""

    def record(self, log_id: int, offset: int) -> Record:
        """Raises `Unreadable` if it is damaged."""

    def head(self, log_id: int, offset: int) -> bytes:
        """The head of a record, without its value. Raises `Unreadable` if it is damaged."""

    def batch_end(self, log_id: int, offset: int) -> int:
        """The end of the append that holds this offset."""

    def time_of(self, log_id: int, offset: int) -> int:
        """When a record was appended."""

    def offset_at(self, log_id: int, at_ms: int) -> int:
        """The first offset that was appended at this time or later."""

    def spans(self, log_id: int) -> Sequence[tuple[int, int, int, int]]:
        """(first offset, end offset, bytes, last time) of what retention can drop, oldest first."""


class Unreadable(Exception):
    """A durable record cannot be read back: its bytes on disk are damaged."""


class Chance(Protocol):
    """Random values that a client cannot predict."""

    def uniform(self) -> float:
        """In [0, 1)."""

    def token(self) -> str:
        """A new unguessable string."""


class Savepoint(NamedTuple):
    """How far a decision had come, to return to if a part of its command is refused."""

    facts: int
    ends: dict[int, int]
    batch_bytes: int


class DecisionContext:
    """Everything a rule needs to decide one command."""

    __slots__ = (
        "batch_bytes", "chance", "created_streams", "dead_letters", "deleted_forks", "ends", "facts", "limits",
        "now_ms", "reader", "rules", "softly_deleted", "state",
    )  # fmt: skip

    def __init__(
        self,
        state: State,
        limits: BrokerLimits,
        reader: LogReader,
        chance: Chance,
        now_ms: int,
        rules: Mapping[type[Command], Callable[[DecisionContext, Any], Reply]],
    ) -> None:
        self.state = state
        self.limits = limits
        self.reader = reader
        self.chance = chance
        self.now_ms = now_ms
        self.rules = rules  # by type of command; for rules that run other rules
        self.facts: list[Fact] = []  # the frame so far
        self.ends: dict[int, int] = {}  # by log: its end after these facts
        self.batch_bytes = 0  # size of the batches appended so far, and of the events to expect
        self.dead_letters: dict[tuple[int, int, int], tuple[str, str]] = {}  # (group, log, offset): reason and error
        self.deleted_forks: dict[int, int] = {}  # by the log of the source: how many of its forks are deleted here
        self.softly_deleted: set[int] = set()  # logs of streams that are softly deleted here
        self.created_streams: dict[str, int] = {}  # by path: the logs of streams that are created here

    def decide(self, command: Command) -> Reply:
        """Run the rule of another command as a part of this one: its facts go into the same frame. If it is refused,
        the rule that asked must refuse too or roll back, because facts recorded before the refusal stay in this
        context."""
        return self.rules[type(command)](self, command)

    def savepoint(self) -> Savepoint:
        return Savepoint(len(self.facts), dict(self.ends), self.batch_bytes)

    def roll_back(self, savepoint: Savepoint) -> None:
        """Forget the facts and appends since a savepoint. Dead letters and streams are not covered."""
        del self.facts[savepoint.facts :]
        self.ends = savepoint.ends
        self.batch_bytes = savepoint.batch_bytes

    def append(
        self, log: Log, batch: bytes, count: int, payload_bytes: int, along: AppendMetadata | None = None
    ) -> int:
        """Record an append and return its first offset."""
        first_offset = self.ends.get(log.log_id, log.end)
        self.ends[log.log_id] = first_offset + count
        self.batch_bytes += len(batch)
        now_ms = self.now_ms
        self.facts.append(
            Appended(log.log_id, first_offset, count, payload_bytes, now_ms, stamp(batch, first_offset, now_ms), along)
        )
        return first_offset

    def expect_event(self, log: Log, error: str) -> None:
        """Reserve room for the history event of a failure, if the topic keeps a history."""
        if log.log_id in self.state.history_logs:
            self.batch_bytes += EVENT_BYTES + 6 * len(error)  # JSON may escape a character as six

    def is_full(self) -> bool:
        """Whether the frame has reached its limit: the remaining dead letters wait for the next command."""
        return self.batch_bytes >= min(self.limits.slice_bytes, self.limits.batch_bytes)
