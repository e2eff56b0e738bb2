"""The history of a topic: what happens to its messages, told as records of a companion topic in the same frame.

It is read off the facts of a case before they are applied, so no rule has to think of it: whatever delivers, settles,
fails or gives back leaves its events, one batch for each partition and command. Values are JSON; the key is the group.
A topic without the setting costs a look into a dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import json

from driftq.core.model import facts as f
from driftq.core.model.commands import Ack, AckThrough, Command, CommitOutcome, ReleaseMessages
from driftq.core.model.replies import Rejected
from driftq.wire.errors import Code
from driftq.wire.fields import to_rfc3339
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


class _Teller:
    """Gathers the events of one case, by the log they go to."""

    def __init__(self, ctx: DecisionContext) -> None:
        self._case = ctx
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
            self._tell(fact, "delivered", _Run(first, end, fact.owner, attempt), until)

    def settled(self, fact: f.Settled) -> None:
        for run in self._runs(fact, fact.ranges):
            why = b""
            if fact.how == f.DEAD:
                reason, error = self._case.dead_letters.get((fact.group_id, fact.log_id, run.first), ("rejected", ""))
                why = b',"reason":%b,"error":%b' % (_quoted(reason), _quoted(error))
            self._tell(fact, _HOW[fact.how], run, why)

    def failed(self, fact: f.Failed) -> None:
        why = b',"error":%b,"retry_at":%b' % (_quoted(fact.error), _quoted(to_rfc3339(fact.retry_at_ms)))
        for run in self._runs(fact, ((fact.offset, fact.offset + 1),)):
            self._tell(fact, "expired" if fact.lease_lost else "failed", run, why)

    def explained(self, fact: f.FailureExplained) -> None:
        why = b',"error":%b,"retry_at":%b' % (_quoted(fact.error), _quoted(to_rfc3339(fact.retry_at_ms)))
        for run in self._runs(fact, ((fact.offset, fact.offset + 1),)):
            self._tell(fact, "failed", run, why)

    def released(self, fact: f.Released) -> None:
        why = b',"retry_at":' + _quoted(to_rfc3339(fact.retry_at_ms))
        for run in self._runs(fact, fact.ranges):
            self._tell(fact, "released", run, why)

    def _tell(self, fact: Any, event: str, run: _Run, more: bytes) -> None:
        log: Log = self._case.state.logs[fact.log_id]
        group_id: int = fact.group_id
        known = self._case.state.groups.get(group_id)
        group = known.name if known is not None else self._new_groups[group_id]
        front = b'{"event":"%b","topic":%b,"partition":%d,"offset":' % (
            event.encode(),
            _quoted(log.topic),
            log.partition,
        )
        back = b',"group":%b,"owner":%b,"attempt":%d,"at":%b%b}' % (
            _quoted(group), _quoted(run.owner), run.attempt, self._at, more,
        )  # fmt: skip
        target = self._case.state.history_logs[fact.log_id]
        values = [b"%b%d%b" % (front, offset, back) for offset in range(run.first, run.end)]
        self.values.setdefault(target, []).extend(values)
        self.keys.setdefault(target, []).extend([group.encode()] * len(values))

    def _progress(self, fact: Any) -> Progress | None:
        """None while the group is as new as the fact."""
        state = self._case.state
        return state.progress_of(fact.group_id, fact.log_id) if fact.group_id in state.groups else None

    def _runs(self, fact: Any, ranges: tuple[Range, ...]) -> Iterator[_Run]:
        """Who had the messages of these ranges, and at which attempt. What nobody ever had is named alone, by facts
        about single messages; what was settled before is passed over."""
        progress = self._progress(fact)
        for first, end in ranges:
            found: list[_Run] = []
            if progress is not None:
                for low, high, lease in progress.held.overlapping(first, end):
                    found.append(_Run(low, high, lease.owner, 1))
                for offset in progress.entries_in(first, end):
                    entry = progress.entries[offset]
                    owner = entry.lease.owner if entry.lease is not None else ""
                    found.append(_Run(offset, offset + 1, owner, entry.attempts))
            if not found and end == first + 1:
                found.append(_Run(first, end, "", 0))
            yield from sorted(found)


_TELLS: dict[type[f.Fact], Callable[[_Teller, Any], None]] = {
    f.Leased: _Teller.leased,
    f.Settled: _Teller.settled,
    f.Failed: _Teller.failed,
    f.FailureExplained: _Teller.explained,
    f.Released: _Teller.released,
}


def record(ctx: DecisionContext, command: Command) -> Rejected | None:
    """Add the events of a case to its facts. Acks and releases of more than one frame can tell of are refused; all
    other commands stop in time (`DecisionContext.expect_event`)."""
    teller: _Teller | None = None
    for fact in ctx.facts:
        tell = _TELLS.get(type(fact))
        if tell is not None and fact.log_id in ctx.state.history_logs:  # type: ignore[attr-defined]
            if teller is None:
                teller = _Teller(ctx)
                for each in ctx.facts:
                    if type(each) is f.GroupCreated:
                        teller.group_created(each)
            tell(teller, fact)
    if teller is None:
        return None
    size_bytes = sum(len(value) for values in teller.values.values() for value in values)
    if size_bytes > ctx.limits.batch_bytes and isinstance(command, _UNBOUNDED):
        message = f"{size_bytes} bytes of history are more than fit ({ctx.limits.batch_bytes}): name fewer messages"
        return Rejected(Code.TOO_LARGE, message, {"limit_bytes": ctx.limits.batch_bytes})
    for log_id, values in teller.values.items():
        keys = teller.keys[log_id]
        for at in range(0, len(values), BATCH_RECORDS):
            some, by = values[at : at + BATCH_RECORDS], keys[at : at + BATCH_RECORDS]
            payload_bytes = sum(map(len, some)) + sum(map(len, by))
            ctx.append(ctx.state.logs[log_id], pack_columns(some, by), len(some), payload_bytes)
    return None
