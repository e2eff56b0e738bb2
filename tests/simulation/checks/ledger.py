"""The expected content of every log: L1 (no acknowledged write is lost), L2 (nothing that was not sent), L3
(dense, never other bytes), L4 (real-time order), L9 (a tail never moves back), L10 (nothing is shown that a crash takes
back).

Built from durable frames alone; readers and restarts are compared with it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model import interventions as v
from driftq.core.model.effect_facts import Staged, StagesForgotten
from driftq.core.model.replies import OutcomeReply, Produced, RedriveResult, StreamAppended, StreamReady, StreamView
from driftq.core.model.schedules import FireSchedules, RunSchedule
from driftq.core.model.stream_facts import StreamCreated, StreamDeleted, StreamTouched
from driftq.core.state.groups import DEAD_PREFIX, HISTORY_SUFFIX
from driftq.wire.audit import AUDIT_TOPIC
from driftq.wire.records import STAMP, Record, unpack
from tests.simulation.checks.violation import Violation, demand
from tests.simulation.operation import JOB_OF_A_BATCH, PLAIN, Operation

WAKES = "wakes"  # the stream that the broker itself writes to


class LogHistory:
    """All batches of one log, including those that retention dropped."""

    __slots__ = ("batches", "dead_of", "end", "firsts", "log_id", "lsns", "partition", "start", "topic")

    def __init__(self, log_id: int, start: int = 0, topic: str = "", partition: int = 0, dead_of: str = "") -> None:
        self.log_id = log_id
        self.topic = topic
        self.partition = partition
        self.dead_of = dead_of
        self.start = start
        self.end = start
        self.firsts: list[int] = []
        self.batches: list[bytes] = []
        self.lsns: list[int] = []  # the frame of each batch

    def add(self, first: int, count: int, batch: bytes, lsn: int) -> None:
        self.lsns.append(lsn)
        self.firsts.append(first)
        self.batches.append(batch)
        self.end = first + count

    def covering(self, offset: int, end: int) -> list[bytes]:
        """The batches that hold [offset, end)."""
        low = max(0, bisect_right(self.firsts, offset) - 1)
        high = bisect_right(self.firsts, end - 1)
        return self.batches[low:high] if offset < end else []

    def lsn_of(self, offset: int) -> int:
        return self.lsns[bisect_right(self.firsts, offset) - 1]

    def time_of(self, offset: int) -> int:
        """When the broker stored the record."""
        stored: int = STAMP.unpack_from(self.batches[bisect_right(self.firsts, offset) - 1], 8)[1]
        return stored

    def record(self, offset: int) -> Record:
        index = bisect_right(self.firsts, offset) - 1
        return unpack(self.batches[index], first=offset - self.firsts[index], count=1)[0]


class Ledger:
    """All logs."""

    def __init__(self) -> None:
        self.logs: dict[int, LogHistory] = {f.STAGING_LOG: LogHistory(f.STAGING_LOG)}
        self.topics: dict[str, range] = {}  # name -> its logs
        self.seen_ends: dict[int, int] = {}
        self.acked: dict[tuple[int, int], bytes] = {}  # (log, first offset) -> the batch that holds what was acked
        self._sent: list[bytes] = []
        self._bodies: set[tuple[int, bytes]] = set()  # every payload is sent once, so a second one is a duplicate
        self._acked_ends: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self.paths: dict[str, int] = {}

    # --- frames ---

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        return {
            f.TopicCreated: self._topic_created,
            f.TopicConfigured: _nothing,
            f.TopicDeleted: self._topic_deleted,
            StreamCreated: self._stream_created,
            StreamDeleted: self._stream_deleted,
            StreamTouched: _nothing,
            f.Appended: self._append,
            Staged: self._staged,
            f.Trimmed: self._trimmed,
            StagesForgotten: self._stages_forgotten,
        }

    def begin(self, op: Operation) -> None:
        self._sent = list(batches_of(op.command))

    def _topic_created(self, fact: f.TopicCreated, op: Operation) -> None:
        count = fact.partitions
        for name, dead_of, first in (
            (fact.topic, "", fact.first_log_id),
            (DEAD_PREFIX + fact.topic, fact.topic, fact.first_log_id + count),
        ):
            self.topics[name] = range(first, first + count)
            for partition, log_id in enumerate(self.topics[name]):
                demand(log_id not in self.logs, "L3", f"log number {log_id} was given out twice")
                self.logs[log_id] = LogHistory(log_id, 0, name, partition, dead_of)

    def _topic_deleted(self, fact: f.TopicDeleted, op: Operation) -> None:
        for name in (fact.topic, DEAD_PREFIX + fact.topic):
            for log_id in self.topics.pop(name):
                self._drop(log_id)
                self._acked_ends.pop((name, self.partition_of(log_id)), None)
        self._acked_ends = {key: ends for key, ends in self._acked_ends.items() if key[0] != fact.topic}

    def partition_of(self, log_id: int) -> int:
        log = self.logs.get(log_id)
        return log.partition if log is not None else 0

    def _drop(self, log_id: int) -> None:
        del self.logs[log_id]
        self.seen_ends.pop(log_id, None)

    def _stream_created(self, fact: StreamCreated, op: Operation) -> None:
        demand(fact.log_id not in self.logs, "L3", f"log number {fact.log_id} was given out twice")
        self.logs[fact.log_id] = LogHistory(fact.log_id, fact.start_offset)
        self.paths[fact.path] = fact.log_id

    def _stream_deleted(self, fact: StreamDeleted, op: Operation) -> None:
        if not fact.soft:
            self._drop(fact.log_id)
            self.paths = {path: log_id for path, log_id in self.paths.items() if log_id != fact.log_id}

    def _append(self, fact: f.Appended, op: Operation) -> None:
        log = self.logs[fact.log_id]
        if fact.first_offset != log.end:
            raise Violation("L3", f"log {fact.log_id} ends at {log.end}; {op} appended at {fact.first_offset}")
        batch = fact.batch
        if STAMP.unpack_from(batch, 8) != (fact.first_offset, fact.at_ms):
            raise Violation("L3", f"a batch in log {fact.log_id} is stamped for another place")
        if fact.log_id == self.paths.get(WAKES) and batch not in self._sent:
            demand(unpack(batch)[0].value.startswith(b'{"type":"wake"'), "L2", f"{op} wrote to the stream of wakes")
        elif isinstance(op.command, FireSchedules | RunSchedule) and log.topic != AUDIT_TOPIC:
            pass  # made by the broker: `SchedulesCheck` looks at it
        elif not log.dead_of and not log.topic.endswith(HISTORY_SUFFIX) and log.topic != AUDIT_TOPIC:
            if JOB_OF_A_BATCH in batch and not isinstance(op.command, v.Redrive):
                log.add(fact.first_offset, fact.count, batch, op.lsn)
                return  # judged by the check of job batches
            self._was_sent(batch, op)
            if getattr(op.command, "once", None) is None:
                self._is_new(log.log_id, batch, op)
        log.add(fact.first_offset, fact.count, batch, op.lsn)

    def _was_sent(self, batch: bytes, op: Operation) -> None:
        for index, sent in enumerate(self._sent):
            if batch[24:] == sent[24:] and batch[:8] == sent[:8]:
                del self._sent[index]
                return
        if not (isinstance(op.command, c.CreateStream) and op.command.fork_sub_offset):
            raise Violation("L2", f"{op} appended data that it did not contain, or appended it twice")

    def _is_new(self, log_id: int, batch: bytes, op: Operation) -> None:
        body = (log_id, batch[24:])
        if body in self._bodies:
            raise Violation("L2", f"{op} appended to log {log_id} data that is there already")
        self._bodies.add(body)

    def show(self, log_id: int, first: int, count: int, batch: bytes, lsn: int) -> None:
        """A staged batch became visible."""
        log = self.logs[log_id]
        demand(first == log.end, "L3", f"log {log_id} ends at {log.end}; a batch was published at {first}")
        log.add(first, count, batch, lsn)

    def _staged(self, fact: Staged, op: Operation) -> None:
        log = self.logs[f.STAGING_LOG]
        demand(fact.first_offset == log.end, "L3", "the staging log has a gap")
        self._was_sent(fact.batch, op)
        log.add(fact.first_offset, fact.count, fact.batch, op.lsn)

    def trim(self, log_id: int, start: int) -> None:
        log = self.logs[log_id]
        demand(start <= log.end, "L3", f"log {log_id} was trimmed to {start}, behind its end {log.end}")
        log.start = max(log.start, start)

    def _trimmed(self, fact: f.Trimmed, op: Operation) -> None:
        self.trim(fact.log_id, fact.start_offset)

    def _stages_forgotten(self, fact: StagesForgotten, op: Operation) -> None:
        self.trim(f.STAGING_LOG, fact.staging_start)

    # --- replies ---

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {
            Produced: lambda op, reply: self._produced(op, op.command, reply),
            RedriveResult: self._redriven,
            StreamAppended: lambda op, reply: self._stream_appended(op, op.command, reply),
            OutcomeReply: self._outcome,
            StreamView: self._viewed,
            StreamReady: self._stream_ready,
        }

    def _redriven(self, op: Operation, reply: RedriveResult) -> None:
        for part, result in zip(op.command.parts, reply.parts, strict=True):  # type: ignore[attr-defined]
            if isinstance(result, Produced):
                self._produced(op, part.produce, result)

    def _outcome(self, op: Operation, reply: OutcomeReply) -> None:
        for part, result in zip(op.command.produces, reply.produced, strict=True):  # type: ignore[attr-defined]
            self._produced(op, part, result)
        for part, result in zip(op.command.appends, reply.appended, strict=True):  # type: ignore[attr-defined]
            self._stream_appended(op, part, result)

    def _produced(self, op: Operation, command: Any, reply: Any) -> None:
        if reply.duplicate or reply.topic not in self.topics:
            return
        log = self.logs[self.topics[reply.topic][reply.partition]]
        self._is_there(op, log, reply.first_offset, command)
        end = reply.first_offset + reply.count
        known = self._acked_ends.setdefault((reply.topic, reply.partition), [])
        index = bisect_right(known, (op.seen_lsn, 1 << 60)) - 1
        if index >= 0 and reply.first_offset < known[index][1]:
            raise Violation("L4", f"{op} got offset {reply.first_offset}; {known[index][1]} was acknowledged before")
        if not known or end > known[-1][1]:
            known.append((op.lsn, end))

    def _stream_appended(self, op: Operation, command: Any, reply: StreamAppended) -> None:
        if reply.duplicate or not command.count:
            return
        log = self.logs[self.paths[command.path]]
        self._is_there(op, log, reply.first_offset, command)

    def _viewed(self, op: Operation, reply: StreamView) -> None:
        """L8 and L9: exactly the durable end."""
        log = self.logs[reply.log_id]
        if reply.end_offset != log.end:
            raise Violation(
                "L8", f"{op} got the reply that log {reply.log_id} ends at {reply.end_offset}, not {log.end}"
            )

    def _stream_ready(self, op: Operation, reply: StreamReady) -> None:
        log = self.logs.get(reply.log_id)
        if log is not None and reply.created:
            demand(log.end == reply.end_offset, "L1", f"{op}: created up to {reply.end_offset}, ends at {log.end}")

    def _is_there(self, op: Operation, log: LogHistory, first: int, command: Any) -> None:
        index = bisect_right(log.firsts, first) - 1
        if index >= 0 and op.note is PLAIN and first < log.end:
            is_same = log.record(first) == unpack(command.batch)[0]  # it may be coalesced with others
        else:
            is_same = index >= 0 and log.firsts[index] == first and log.batches[index][24:] == command.batch[24:]
        if not is_same:
            raise Violation("L1", f"{op} was acknowledged at {first} of log {log.log_id} and is not there")
        self.acked[log.log_id, log.firsts[index]] = log.batches[index]

    # --- readers ---

    def read(self, log_id: int, offset: int, end: int, batches: list[bytes], store_end: int) -> None:
        """A client read [offset, end) of a log whose end it knows."""
        log = self.logs[log_id]
        if store_end > log.end:
            raise Violation("L10", f"log {log_id} shows {store_end}; only {log.end} is durable")
        if store_end < self.seen_ends.get(log_id, 0):
            raise Violation("L9", f"log {log_id} ended at {self.seen_ends[log_id]} and ends at {store_end} now")
        if store_end < log.end:
            raise Violation("L8", f"log {log_id} ends at {log.end}; a reader got {store_end}")
        self.seen_ends[log_id] = store_end
        offset = max(offset, log.start)
        if batches != log.covering(offset, min(end, log.end)):
            raise Violation("L3", f"log {log_id} does not read as written, in [{offset}, {end})")


def batches_of(command: Any) -> Iterator[bytes]:
    """The batches a command carries, in order."""
    if isinstance(command, c.CommitOutcome):
        for part in (*command.produces, *command.appends):
            if part.count:
                yield part.batch
    elif isinstance(command, v.Redrive | v.MoveMessages):
        for part in command.parts:
            yield part.produce.batch
    elif isinstance(command, c.Produce | c.AppendStream | c.CreateStream | c.Stage) and command.count:
        yield command.batch


def _nothing(fact: object, op: Operation) -> None:
    pass
