"""Idempotent producing: L5 (a producer's batches once, in order, epochs never back), L6 (a repeat gets the first
offset), L7 (the same number with other bytes is refused), Q11 (a key is appended once within its time)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import OutcomeReply, Produced, ProducerView, Rejected, StreamAppended
from driftq.core.model.stream_facts import StreamClosed, StreamCreated, StreamDeleted
from driftq.core.state.producers import SERVER_EPOCH, WINDOW
from driftq.wire.errors import Code
from tests.simulation.checks.violation import Violation, demand
from tests.simulation.operation import Operation


class AcceptedBatch(NamedTuple):
    epoch: int
    seq: int
    digest: int
    first: int
    end: int


class KnownKey(NamedTuple):
    log_id: int
    first: int
    digest: int
    expires_ms: int


class ProducersCheck:
    """What each log accepted from each producer, and what each key stands for."""

    def __init__(self, limits: BrokerLimits) -> None:
        self._limits = limits
        self._seen: dict[tuple[int, str], list[AcceptedBatch]] = {}
        self._keys: dict[tuple[str, str, str], KnownKey] = {}
        self._logs: dict[tuple[str, int], int] = {}  # (topic, partition) -> log
        self._paths: dict[str, int] = {}

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        return {
            f.TopicCreated: self._topic_created,
            f.TopicDeleted: self._topic_deleted,
            StreamCreated: self._stream_created,
            StreamDeleted: self._stream_deleted,
            StreamClosed: self._stream_closed,
            f.Appended: self._appended,
        }

    def _topic_created(self, fact: f.TopicCreated, op: Operation) -> None:
        for partition in range(fact.partitions):
            self._logs[fact.topic, partition] = fact.first_log_id + partition

    def _topic_deleted(self, fact: f.TopicDeleted, op: Operation) -> None:
        gone = set(fact.log_ids)
        self._logs = {key: log_id for key, log_id in self._logs.items() if log_id not in gone}
        self._keys = {scope: key for scope, key in self._keys.items() if key.log_id not in gone}

    def _stream_created(self, fact: StreamCreated, op: Operation) -> None:
        self._paths[fact.path] = fact.log_id

    def _stream_deleted(self, fact: StreamDeleted, op: Operation) -> None:
        if not fact.soft:
            self._paths = {path: log_id for path, log_id in self._paths.items() if log_id != fact.log_id}

    def _stream_closed(self, fact: StreamClosed, op: Operation) -> None:
        if fact.producer is not None:
            end = -1
            self._accept(fact.log_id, fact.producer, end, end, op, gaps=True)

    def _appended(self, fact: f.Appended, op: Operation) -> None:
        along = fact.along
        command = _part(op.command, fact)
        if command is None:
            return
        by = command.producer
        if (by is None) != (along is None or along.producer is None):
            raise Violation("L5", f"{op}: the producer of an append is not stored with it")
        if along is not None and along.producer is not None and by is not None:
            if (by.producer, by.seq, by.digest) != (along.producer.producer, along.producer.seq, along.producer.digest):
                raise Violation("L5", f"{op}: another producer was stored than the one that appended")
            if by.epoch not in (SERVER_EPOCH, along.producer.epoch):
                raise Violation("L5", f"{op}: epoch {by.epoch} was accepted as {along.producer.epoch}")
            gaps = isinstance(command, c.AppendStream) and command.gaps_allowed
            self._accept(fact.log_id, along.producer, fact.first_offset, fact.first_offset + fact.count, op, gaps)
        once = getattr(command, "once", None)
        if once is not None:
            self._remember(once, fact, op)

    def _accept(self, log_id: int, by: f.ProducerSequence, first: int, end: int, op: Operation, gaps: bool) -> None:
        known = self._seen.setdefault((log_id, by.producer), [])
        last = known[-1] if known else None
        if last is not None and by.epoch < last.epoch:
            raise Violation("L5", f"{op}: epoch {by.epoch} was accepted after epoch {last.epoch}")
        expected = last.seq + 1 if last is not None and last.epoch == by.epoch else 0
        if by.seq != expected and not (gaps and by.seq > expected):
            raise Violation("L5", f"{op}: seq {by.seq} of {by.producer} was accepted; {expected} comes next")
        known.append(AcceptedBatch(by.epoch, by.seq, by.digest, first, end))

    def _remember(self, once: c.ProduceKey, fact: f.Appended, op: Operation) -> None:
        scope = (once.tenant, once.topic, once.key)
        known = self._keys.get(scope)
        if known is not None and known.expires_ms > op.at_ms:
            raise Violation("Q11", f"{op}: key {once.key!r} was appended again within its time")
        ttl_ms = once.ttl_ms or self._limits.key_ttl_ms
        self._keys[scope] = KnownKey(fact.log_id, fact.first_offset, once.digest, op.at_ms + ttl_ms)

    # --- replies ---

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {
            Produced: lambda op, reply: self._produced(op, op.command, reply),
            ProducerView: self._viewed,
            StreamAppended: lambda op, reply: self._stream_appended(op, op.command, reply),
            OutcomeReply: self._outcome,
            Rejected: self._rejected,
        }

    def _outcome(self, op: Operation, reply: OutcomeReply) -> None:
        for part, result in zip(op.command.produces, reply.produced, strict=True):  # type: ignore[attr-defined]
            self._produced(op, part, result)
        for part, result in zip(op.command.appends, reply.appended, strict=True):  # type: ignore[attr-defined]
            self._stream_appended(op, part, result)

    def _produced(self, op: Operation, command: Any, reply: Any) -> None:
        if not reply.duplicate or getattr(command, "job", None) is not None:
            return  # job ids: see `checks.jobs`
        if command.once is not None:
            known = self._keys.get((command.once.tenant, command.once.topic, command.once.key))
            if known is not None and known.expires_ms > op.at_ms:
                if reply.first_offset != known.first:
                    raise Violation(
                        "Q11", f"{op}: the reply has offset {reply.first_offset}, the key's message is at {known.first}"
                    )
                return
            if command.producer is None:
                raise Violation("Q11", f"{op}: called a duplicate, but the key has expired or was never used")
        log_id = self._logs.get((reply.topic, reply.partition))
        if log_id is not None:
            self._repeated(op, log_id, command.producer, reply.first_offset)

    def _stream_appended(self, op: Operation, command: Any, reply: Any) -> None:
        log_id = self._paths.get(command.path)
        if reply.duplicate and command.producer is not None and log_id is not None and not reply.closed:
            self._repeated(op, log_id, command.producer, reply.first_offset)

    def _repeated(self, op: Operation, log_id: int, by: f.ProducerSequence, reported: int) -> None:
        known = self._seen.get((log_id, by.producer), [])
        newest = known[-1].epoch if known else -1
        epoch = newest if by.epoch == SERVER_EPOCH else by.epoch
        first = next((seen for seen in reversed(known) if (seen.epoch, seen.seq) == (epoch, by.seq)), None)
        if first is None:
            raise Violation("L6", f"{op}: {by.producer} epoch {by.epoch} seq {by.seq} is no duplicate of anything")
        newer = len(known) - 1 - known.index(first)
        if newer >= WINDOW:
            return  # so old that only its number is kept
        if first.digest != by.digest:
            raise Violation("L7", f"{op}: seq {by.seq} with other bytes was called a duplicate")
        if first.first >= 0 and reported != first.first:
            raise Violation("L6", f"{op}: a duplicate got {reported}; the first went to {first.first}")

    def _viewed(self, op: Operation, reply: ProducerView) -> None:
        known = self._seen.get((self._paths[op.command.path], reply.producer), [])  # type: ignore[attr-defined]
        last = known[-1] if known else None
        right = last is not None and (last.epoch, last.seq) == (reply.epoch, reply.seq)
        demand(right, "L6", f"{op} got {reply}; the last accepted one is {last}")

    def _rejected(self, op: Operation, reply: Rejected) -> None:
        command = op.command
        by = getattr(command, "producer", None)
        if by is None or reply.code not in (Code.STALE_EPOCH, Code.SEQUENCE_GAP, Code.SEQUENCE_MISMATCH):
            return
        log_id = self._target(command)
        if log_id is None:
            return
        known = self._seen.get((log_id, by.producer), [])
        last = known[-1] if known else AcceptedBatch(-1, -1, 0, 0, 0)
        if reply.code is Code.STALE_EPOCH:
            demand(last.epoch > by.epoch, "L5", f"{op}: epoch {by.epoch} was called stale; the newest is {last.epoch}")
        elif reply.code is Code.SEQUENCE_GAP:
            expected = last.seq + 1 if by.epoch in (SERVER_EPOCH, last.epoch) else 0
            demand(by.seq > expected or not known, "L5", f"{op}: seq {by.seq} was called a gap behind {last}")
        else:
            same = [seen for seen in known if (seen.epoch, seen.seq, seen.digest) == (by.epoch, by.seq, by.digest)]
            demand(not same, "L6", f"{op}: an honest repeat was called other bytes")

    def _target(self, command: Any) -> int | None:
        if isinstance(command, c.AppendStream):
            return self._paths.get(command.path)
        if isinstance(command, c.Produce) and command.partition is not None:
            return self._logs.get((command.topic, command.partition))
        return None


def _part(command: Any, fact: f.Appended) -> Any:
    """The part of a command that asked for this append; None for dead letters and created streams."""
    command = getattr(command, "produce", command)
    if isinstance(command, c.Produce | c.AppendStream):
        return command if command.batch[24:] == fact.batch[24:] else None
    if isinstance(command, c.CommitOutcome):
        return next((p for p in (*command.produces, *command.appends) if p.batch[24:] == fact.batch[24:]), None)
    return None
