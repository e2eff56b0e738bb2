"""The history of a topic: what happens to its messages, as records of `<topic>.history`, in the same frame.

Events are derived from the facts of a command before they are applied, so no rule has to record them: every delivery,
settlement, failure and release has its events, one batch per partition and command. Values are JSON, the key is the
group. A topic without a history costs one dictionary lookup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import json

from driftq.core.model import facts as f
from driftq.core.model.commands import Ack, AckThrough, Claim, Command, CommitOutcome, ReleaseMessages
from driftq.core.model.replies import Rejected
from driftq.wire.errors import Code
from driftq.wire.fields import to_rfc3339
from driftq.wire.namespaces import own_name
from driftq.wire.records import pack_columns

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.model.ranges import Range
    from driftq.core.state.logs import Log
    from driftq.core.state.progress import Progress

BATCH_RECORDS = 50_000

_HOW = {f.ACKED: "acked", f.DEAD: "dead", f.CANCELLED: "cancelled", f.SKIPPED: "skipped"}
_UNBOUNDED = (Ack, AckThrough, CommitOutcome, ReleaseMessages)
_quoted = json.Encoder().encode


class _Run(NamedTuple):
    """Messages with the same holder and history."""

    first: int
    end: int
    owner: str
    attempt: int


class _EventWriter:
    """Collects the events of one command, by the log that they are appended to."""

    def __init__(self, ctx: DecisionContext) -> None:
        self._ctx = ctx
        self._at = _quoted(to_rfc3339(ctx.now_ms))
        self._new_groups: dict[int, str] = {}
        self.values: dict[int, list[bytes]] = {}
        self.keys: dict[int, list[bytes]] = {}

    def group_created(self, fact: f.GroupCreated) -> None:
        self._new_groups[fact.group_id] = fact.group

    def leased(self, fact: f.Leased) -> None:
        progress = self._progress(fact)
        until = b',"lease_until":' + _quoted(to_rfc3339(fact.until_ms))
        for first, end in fact.ranges:
            entry = progress.entries.get(first) if progress is not None else None
            attempt = entry.attempts + 1 if entry is not None else 1
            self._add(fact, "delivered", _Run(first, end, fact.owner, attempt), until)

    def settled(self, fact: f.Settled) -> None:
        for run in self._runs(fact, fact.ranges):
            details = b""
            if fact.how == f.DEAD:
                reason, error = self._ctx.dead_letters.get((fact.group_id, fact.log_id, run.first), ("rejected", ""))
                details = b',"reason":%b,"error":%b' % (_quoted(reason), _quoted(error))
            elif fact.error:  # it was moved
                details = b',"reason":%b' % _quoted(fact.error)
            self._add(fact, _HOW[fact.how], run, details)

    def failed(self, fact: f.Failed) -> None:
        details = b',"error":%b,"retry_at":%b' % (_quoted(fact.error), _quoted(to_rfc3339(fact.retry_at_ms)))
        for run in self._runs(fact, ((fact.offset, fact.offset + 1),)):
            self._add(fact, "expired" if fact.lease_lost else "failed", run, details)

    def explained(self, fact: f.FailureExplained) -> None:
        details = b',"error":%b,"retry_at":%b' % (_quoted(fact.error), _quoted(to_rfc3339(fact.retry_at_ms)))
        for run in self._runs(fact, ((fact.offset, fact.offset + 1),)):
            self._add(fact, "failed", run, details)

    def released(self, fact: f.Released) -> None:
        details = b',"retry_at":' + _quoted(to_rfc3339(fact.retry_at_ms))
        for run in self._runs(fact, fact.ranges):
            self._add(fact, "released", run, details)

    def _add(self, fact: Any, event: str, run: _Run, details: bytes) -> None:
        log: Log = self._ctx.state.logs[fact.log_id]
        group_id: int = fact.group_id
        known = self._ctx.state.groups.get(group_id)
        group = known.name if known is not None else self._new_groups[group_id]
        front = b'{"event":"%b","topic":%b,"partition":%d,"offset":' % (
            event.encode(),
            _quoted(own_name(log.topic)),
            log.partition,
        )
        back = b',"group":%b,"owner":%b,"attempt":%d,"at":%b%b}' % (
            _quoted(group), _quoted(run.owner), run.attempt, self._at, details,
        )  # fmt: skip
        target = self._ctx.state.history_logs[fact.log_id]
        values = [b"%b%d%b" % (front, offset, back) for offset in range(run.first, run.end)]
        self.values.setdefault(target, []).extend(values)
        self.keys.setdefault(target, []).extend([group.encode()] * len(values))

    def _progress(self, fact: Any) -> Progress | None:
        """None if the group is created by the same command."""
        state = self._ctx.state
        return state.progress_of(fact.group_id, fact.log_id) if fact.group_id in state.groups else None

    def _runs(self, fact: Any, ranges: tuple[Range, ...]) -> Iterator[_Run]:
        """The last owners of these messages and their attempts. A fact about a single message that was never delivered
        gives a run without an owner; messages that are settled already are skipped."""
        progress = self._progress(fact)
        for first, end in ranges:
            runs: list[_Run] = []
            if progress is not None:
                for low, high, lease in progress.held.overlapping(first, end):
                    runs.append(_Run(low, high, lease.owner, 1))
                for offset in progress.entries_in(first, end):
                    entry = progress.entries[offset]
                    owner = entry.lease.owner if entry.lease is not None else ""
                    runs.append(_Run(offset, offset + 1, owner, entry.attempts))
            if not runs and end == first + 1:
                runs.append(_Run(first, end, "", 0))
            yield from sorted(runs)


_EVENTS: dict[type[f.Fact], Callable[[_EventWriter, Any], None]] = {
    f.Leased: _EventWriter.leased,
    f.Settled: _EventWriter.settled,
    f.Failed: _EventWriter.failed,
    f.FailureExplained: _EventWriter.explained,
    f.Released: _EventWriter.released,
}


def record(ctx: DecisionContext, command: Command) -> Rejected | None:
    """Add the history events of a command to its facts. An ack or release whose events do not fit into one frame is
    refused; all other commands stop in time (`DecisionContext.expect_event`)."""
    writer: _EventWriter | None = None
    for fact in ctx.facts:
        add = _EVENTS.get(type(fact))
        if add is not None and fact.log_id in ctx.state.history_logs:  # type: ignore[attr-defined]
            if writer is None:
                writer = _EventWriter(ctx)
                for created in ctx.facts:
                    if type(created) is f.GroupCreated:
                        writer.group_created(created)
            add(writer, fact)
    if writer is None:
        return None
    size_bytes = sum(len(value) for values in writer.values.values() for value in values)
    is_unbounded = isinstance(command, _UNBOUNDED) or (isinstance(command, Claim) and command.acks)
    if size_bytes > ctx.limits.batch_bytes and is_unbounded:
        largest = ctx.limits.batch_bytes
        message = f"the history would grow by {size_bytes} bytes, and at most {largest} fit: name fewer messages"
        return Rejected(Code.TOO_LARGE, message, {"limit_bytes": largest})
    for log_id, values in writer.values.items():
        keys = writer.keys[log_id]
        for at in range(0, len(values), BATCH_RECORDS):
            part, part_keys = values[at : at + BATCH_RECORDS], keys[at : at + BATCH_RECORDS]
            payload_bytes = sum(map(len, part)) + sum(map(len, part_keys))
            ctx.append(ctx.state.logs[log_id], pack_columns(part, part_keys), len(part), payload_bytes)
    return None
