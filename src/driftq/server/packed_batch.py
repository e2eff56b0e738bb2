"""Batches that a client packed: they are checked on arrival, then stored as they are.

    packed batch ──begin_reading──▶ Reading ──▶ PackedBatch ──▶ Produce or Stage, with the bytes as they came
    encoded by the client           its heads   header, schedules

The broker reads the heads, because they may schedule a record; it does not look into keys and values. A batch that
cannot be stored is `Rejected`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from msgspec import Meta

from driftq.core.model.replies import Rejected
from driftq.server.handlers.codec import refusal
from driftq.server.http import Answer, BadRequest, Reply, reply_of
from driftq.server.produced_message import (
    HEAD_BYTES_MAX,
    KEY_BYTES_MAX,
    check_envelope,
    check_labels,
    schedule_of,
    too_large_head,
)
from driftq.server.slices import finished
from driftq.wire.errors import Code
from driftq.wire.fields import ID_LENGTH_MAX, NAME_LENGTH_MAX, Natural, Priority, from_rfc3339
from driftq.wire.message import BAD_HEAD, Envelope, Job, Routing
from driftq.wire.records import BadBatch, CheckedBatch, Header, check_with_heads, read_header

if TYPE_CHECKING:
    from driftq.core.model.facts import RecordSchedule

SCHEDULES_MAX = 10_000  # records of a batch that are not plain: they are added one by one, in one command
HEADS_AT_ONCE = 5_000  # more are read in slices
HEADS_PER_STEP = 200


class ClientRouting(Routing, frozen=True, forbid_unknown_fields=True):
    """A routing as a client may send it."""

    label: Annotated[str, Meta(max_length=NAME_LENGTH_MAX)] = ""


class ClientJob(Job, frozen=True, forbid_unknown_fields=True):
    """A job as a client may send it, with the bounds of `wire.produce.ProduceItem`."""

    id: Annotated[str, Meta(max_length=ID_LENGTH_MAX)] = ""
    task: Annotated[str, Meta(max_length=NAME_LENGTH_MAX)] = ""
    priority: Priority = 0
    not_before_ms: Natural = 0
    timeout_ms: Natural = 0


class ClientHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A head as a client may send it. Only the broker writes `dlq`."""

    envelope: Envelope | None = None
    routing: ClientRouting | None = None
    job: ClientJob | None = None


_decode = msgspec.json.Decoder(ClientHead).decode


class PackedBatch(NamedTuple):
    """A checked batch, which can be stored as it is."""

    header: Header
    schedules: tuple[RecordSchedule, ...]  # of the records that are not plain


class PackedReader:
    """Reads batches. One with many heads takes several turns of the loop; batches for the same place that arrive in the
    meantime wait for it, because a producer numbers its batches."""

    def __init__(self, message_bytes_max: int, batch_bytes_max: int) -> None:
        self._message_bytes_max = message_bytes_max
        self._batch_bytes_max = batch_bytes_max
        self._last: dict[Hashable, asyncio.Future[None]] = {}  # of the batches that are being read, by place

    def read(self, batch: bytes, place: Hashable, store: Callable[[PackedBatch], Answer]) -> Answer:
        """The answer of `store`, or the refusal of a batch that cannot be stored."""
        reading = begin_reading(batch, self._message_bytes_max, self._batch_bytes_max)
        if isinstance(reading, Rejected):
            return refusal(reading)
        if len(reading.heads) <= HEADS_AT_ONCE and place not in self._last:
            return _answer(reading.finish(), store)
        turn = asyncio.get_running_loop().create_future()
        before, self._last[place] = self._last.get(place), turn
        return self._read_in_turn(reading, place, before, turn, store)

    async def _read_in_turn(
        self,
        reading: Reading,
        place: Hashable,
        before: asyncio.Future[None] | None,
        turn: asyncio.Future[None],
        store: Callable[[PackedBatch], Answer],
    ) -> Reply:
        try:
            await finished(reading.steps)
            if before is not None:
                await before
            answer = _answer(reading.finish(), store)
        finally:
            turn.set_result(None)
            if self._last.get(place) is turn:
                del self._last[place]
        return await reply_of(answer)


class Reading:
    """A batch whose columns are checked, and whose heads are being read."""

    def __init__(self, checked: CheckedBatch) -> None:
        self.heads = checked.heads
        self.steps = self._steps()
        self._header = checked.header
        self._schedules: list[RecordSchedule] = []
        self._refused: Rejected | None = None

    def finish(self) -> PackedBatch | Rejected:
        """The result, after the steps that are left."""
        for _ in self.steps:
            pass
        return self._refused or PackedBatch(self._header, tuple(self._schedules))

    def _steps(self) -> Iterator[None]:
        schedules = self._schedules
        index = 0
        try:
            for index, text in enumerate(self.heads):
                if index % HEADS_PER_STEP == HEADS_PER_STEP - 1:
                    yield None
                if text and (schedule := _schedule_of_head(index, _decode(text))) is not None:
                    schedules.append(schedule)
                    if len(schedules) > SCHEDULES_MAX:
                        message = f"too many records with a task, priority, time, label or tenant; send {SCHEDULES_MAX}"
                        details = {"limit_records": SCHEDULES_MAX}
                        self._refused = Rejected(Code.TOO_LARGE, f"{message} at a time", details)
                        return
        except (*BAD_HEAD, BadRequest, ValueError) as error:
            reason = f"the head of record {index} is not one JSON object of a known form: {error}"
            self._refused = Rejected(Code.INVALID_ARGUMENT, f"invalid batch: {reason}")


def begin_reading(batch: bytes, message_bytes_max: int, batch_bytes_max: int) -> Reading | Rejected:
    """Check a batch, without what its heads say."""
    try:
        declared = read_header(batch)
        largest = message_bytes_max if declared.count == 1 else batch_bytes_max
        if declared.raw_bytes > largest:
            message = f"the batch has {declared.raw_bytes} bytes, and at most {largest} fit"
            return Rejected(Code.TOO_LARGE, message, {"limit_bytes": largest})
        checked = check_with_heads(batch)
        if checked.longest_key_bytes > KEY_BYTES_MAX:
            raise BadBatch(f"a key has {checked.longest_key_bytes} bytes; at most {KEY_BYTES_MAX} are allowed")
        longest_head_bytes = max(map(len, checked.heads), default=0)
        if longest_head_bytes > HEAD_BYTES_MAX:
            raise BadBatch(too_large_head(longest_head_bytes))
    except BadBatch as error:
        return Rejected(Code.INVALID_ARGUMENT, f"invalid batch: {error}")
    return Reading(checked)


def read_packed(batch: bytes, message_bytes_max: int, batch_bytes_max: int) -> PackedBatch | Rejected:
    """Check a batch and read the schedules in the heads of its records, at once."""
    reading = begin_reading(batch, message_bytes_max, batch_bytes_max)
    return reading if isinstance(reading, Rejected) else reading.finish()


def _answer(batch: PackedBatch | Rejected, store: Callable[[PackedBatch], Answer]) -> Answer:
    return refusal(batch) if isinstance(batch, Rejected) else store(batch)


def _schedule_of_head(index: int, head: ClientHead) -> RecordSchedule | None:
    deadline_ms = 0
    if head.envelope is not None:
        check_envelope(head.envelope)
        if head.envelope.deadline:
            deadline_ms = max(1, from_rfc3339(head.envelope.deadline))
    if head.routing is not None:
        check_labels("routing.meta", head.routing.meta or {})
    return schedule_of(index, head.envelope, head.job, head.routing, deadline_ms)
