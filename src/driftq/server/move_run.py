"""A move: unfinished messages are produced to another topic and settled in their own, many in each frame.

    walk ── places of movable messages ──▶ records ──▶ parts by partition ──▶ one `MoveMessages` ──▶ next slice

Messages that go to the same partition become one batch, in order. The message of a job with an id is a part of its own,
because an append carries one id. A part is refused as a whole; then its messages are sent one by one, so that each gets
its own answer. What was taken by a worker in the meantime is neither moved nor failed: it is found again by a later
move. The end of each log is taken at the start, so that messages which arrive in the meantime do not prolong a move.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from driftq.core.model import commands as c
from driftq.core.model import interventions as v
from driftq.core.model.replies import Produced, RedriveResult, Rejected
from driftq.core.state.idempotency_keys import job_key
from driftq.core.transitions.lookups import is_movable
from driftq.server.produced_message import schedule_of
from driftq.server.slices import slices
from driftq.wire.errors import Code
from driftq.wire.fields import from_rfc3339
from driftq.wire.message import read_head
from driftq.wire.partitions import partition_of
from driftq.wire.records import Record, pack, read_header, unpack
from driftq.wire.topics import MoveFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from driftq.core.model.facts import RecordSchedule
    from driftq.engine.engine import Engine
    from driftq.engine.queries import StateView

FRAME_MESSAGES = 256
FRAME_FACTS = 10_000  # messages times groups: a moved message is settled for every group
READ_BYTES = 1 << 20  # of messages, in one frame
FAILURES_MAX = 1_000  # a move stops after them

Place = tuple[int, int]  # partition and offset


class MoveFilter(NamedTuple):
    """Which messages are moved."""

    partition: int | None = None
    task: str = ""
    since_ms: int | None = None
    until_ms: int | None = None


class WalkedPlace(NamedTuple):
    """A message that was looked at, and whether it can be moved."""

    place: Place
    fits: bool


def walk(view: StateView, topic_name: str, chosen: MoveFilter, after: Place) -> Iterator[WalkedPlace | None]:
    """The messages of a topic after a place, by partition and offset. What every group has finished is passed over."""
    topic = view.state.topics[topic_name]
    ends = [view.reader.end(log_id) for log_id in topic.log_ids]
    for partition, log_id in enumerate(topic.log_ids):
        yield None
        if partition < after[0] or chosen.partition not in (None, partition):
            continue
        log = view.state.logs.get(log_id)
        if log is None:
            return  # deleted in the meantime
        first = max(log.start, min((group.progress[partition].floor for group in topic.groups.values()), default=0))
        if chosen.since_ms is not None:
            first = max(first, view.reader.offset_at(log_id, chosen.since_ms))
        end = ends[partition]
        if chosen.until_ms is not None:
            end = min(end, view.reader.offset_at(log_id, chosen.until_ms))
        for offset in range(max(first, after[1] + 1) if partition == after[0] else first, end):
            if view.state.topics.get(topic_name) is not topic:
                return
            lane = log.lanes.key_of(offset) if chosen.task else None
            is_asked = not chosen.task or (lane is not None and lane.task == chosen.task)
            yield WalkedPlace((partition, offset), is_asked and is_movable(view.state, topic, log, offset))


class MoveTarget(NamedTuple):
    """Where messages come from and go to, and how many groups settle them."""

    log_ids: tuple[int, ...]
    topic: str
    partitions: int
    groups: int


class _MessagesOfPart:
    """Messages that become one batch."""

    def __init__(self, partition: int, target: int) -> None:
        self.partition = partition
        self.target = target
        self.offsets: list[int] = []
        self.records: list[Record] = []
        self.marks: list[RecordSchedule] = []
        self.job: c.ProduceKey | None = None

    def add(self, offset: int, record: Record, schedule: RecordSchedule | None) -> None:
        if schedule is not None:
            self.marks.append(replace(schedule, index=len(self.offsets)))
        self.offsets.append(offset)
        self.records.append(record)

    def part(self, topic: str) -> v.MovePart:
        produce = c.Produce(
            topic=topic,
            batch=pack(self.records, scheduled=bool(self.marks)),
            count=len(self.records),
            payload_bytes=sum(record.size_bytes for record in self.records),
            partition=self.target,
            marks=tuple(self.marks),
            job=self.job,
        )
        return v.MovePart(self.partition, tuple(self.offsets), produce)


class MoveRun:
    """One move between two topics."""

    def __init__(
        self, engine: Engine, topic: str, target: MoveTarget, audited: Callable[[v.MoveMessages], v.MoveMessages]
    ) -> None:
        self._engine = engine
        self._audited = audited  # each frame is a change with a record of its own
        self._topic = topic
        self._target = target
        self._is_full = False  # the target refuses more
        self.matched = self.moved = 0
        self.failed: list[MoveFailure] = []
        self.last: Place | None = None  # that was looked at; None: there is nothing after it

    async def run(self, chosen: MoveFilter, after: Place, limit: int, *, dry_run: bool) -> None:
        frame = max(1, min(FRAME_MESSAGES, FRAME_FACTS // max(1, self._target.groups)))
        places: list[Place] = []
        done = after  # everything up to here was moved, refused, or cannot be moved
        async for walked in slices(self._engine.queries, lambda view: walk(view, self._topic, chosen, after)):
            for item in walked:
                self.last = item.place
                if item.fits:
                    self.matched += 1
                    places.append(item.place)
                if self.matched == limit or len(places) == frame:
                    if not dry_run:
                        await self._move(places)
                    places = []
                if self._is_full:
                    self._stop(done)
                    return
                if not places:
                    done = item.place
                if self.matched == limit or len(self.failed) >= FAILURES_MAX:
                    return
        if places and not dry_run:
            await self._move(places)
        self.last = None
        if self._is_full:
            self._stop(done)

    def _stop(self, done: Place) -> None:
        """The target refuses more: the next call continues with what was refused."""
        self.last = done

    async def _move(self, places: list[Place]) -> None:
        parts: list[_MessagesOfPart] = []
        size_bytes = 0
        for place, record in self._read(places):
            size_bytes += record.size_bytes
            self._add(parts, place, record)
            if size_bytes >= READ_BYTES:
                await self._send(parts)
                parts, size_bytes = [], 0
            if self._is_full:
                return
        if parts:
            await self._send(parts)

    def _read(self, places: list[Place]) -> Iterator[tuple[Place, Record]]:
        """The records of these places, as far as they still exist: runs of neighbours together."""
        at = 0
        while at < len(places):
            partition, first = places[at]
            end = at + 1
            while end < len(places) and places[end] == (partition, first + end - at):
                end += 1
            last = first + end - at
            batches = self._engine.read(self._target.log_ids[partition], first, last, READ_BYTES)
            read = first
            for batch in batches:
                header = read_header(batch)
                low, high = max(first, header.first_offset), min(last, header.end_offset)
                records = unpack(batch, header, first=low - header.first_offset, count=high - low)
                for offset, record in enumerate(records, low):
                    yield (partition, offset), record
                read = high
            at = at + read - first if read > first else end  # a read is bounded: continue after it

    def _add(self, parts: list[_MessagesOfPart], place: Place, record: Record) -> None:
        """Add a message to the last part for its partitions, or to a new one."""
        head = read_head(record.head)
        partitions = self._target.partitions
        target = partition_of(record.key, partitions) if record.key else place[0] % partitions
        envelope, job = head.envelope, head.job
        deadline_ms = from_rfc3339(envelope.deadline) if envelope is not None and envelope.deadline else 0
        schedule = schedule_of(0, envelope, job, head.routing, deadline_ms)
        same = (part for part in reversed(parts) if (part.partition, part.target) == (place[0], target))
        part = next(same, None)
        with_id = job is not None and bool(job.id)
        if part is None or with_id or part.job is not None:
            part = _MessagesOfPart(place[0], target)
            parts.append(part)
        if job is not None and job.id:
            tenant = envelope.tenant_id if envelope is not None else ""
            part.job = c.ProduceKey(tenant, self._target.topic, job_key(job.id))
        part.add(place[1], record, schedule)

    async def _send(self, parts: list[_MessagesOfPart]) -> None:
        command = v.MoveMessages(self._topic, tuple(part.part(self._target.topic) for part in parts))
        reply = await self._engine.submit(self._audited(command))
        if isinstance(reply, Rejected):
            for part in parts:
                self._fail(part, reply)
            return
        assert isinstance(reply, RedriveResult)
        for part, result in zip(parts, reply.parts, strict=True):
            if isinstance(result, Produced):
                self.moved += len(part.offsets)
            elif len(part.offsets) > 1:
                await self._send_alone(part)
            elif isinstance(result, Rejected):
                self._fail(part, result)
        await asyncio.sleep(0)

    async def _send_alone(self, part: _MessagesOfPart) -> None:
        marks = {mark.index: mark for mark in part.marks}
        for index, (offset, record) in enumerate(zip(part.offsets, part.records, strict=True)):
            if self._is_full:
                return
            single = _MessagesOfPart(part.partition, part.target)
            single.add(offset, record, marks.get(index))
            await self._send([single])

    def _fail(self, part: _MessagesOfPart, rejected: Rejected) -> None:
        self.failed += [MoveFailure(part.partition, offset, rejected.message) for offset in part.offsets]
        self._is_full = self._is_full or rejected.code is Code.OVERLOADED
