"""Reads a range of a log as the body of a response: bytes as they were appended, JSON messages as an array, or the
messages of a topic's partition as JSON objects.

Resolves the inherited ranges of a fork, and limits the size of a response. Values are copied as little as possible and
never parsed.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from driftq.server.deliveries import content
from driftq.storage.cold_segments import ColdRange
from driftq.storage.corruption import CorruptLog
from driftq.wire import records, streams

if TYPE_CHECKING:
    from driftq.core.model.replies import StreamView
    from driftq.engine.engine import Engine

Part = bytes | memoryview


class Form(Enum):
    """How the records of a log become a body."""

    BYTES = "one append is one record; a body is their concatenation"
    JSON = "one message is one record; a body is an array of them"
    PARTITION = "records of a topic; a body is an array of message objects"


def form_of(content_type: str) -> Form:
    return Form.JSON if streams.is_json(content_type) else Form.BYTES


class StreamChunk(NamedTuple):
    """Records [first, end) as a body in parts."""

    first: int
    end: int
    parts: list[Part]

    def body(self) -> bytes:
        return b"".join(self.parts)

    def view(self) -> Part:
        """The body, without a copy if it has one part."""
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)


class RecordsUnreadable(Exception):
    """The record at the requested offset cannot be read. Reading can resume at `next_offset`, if it is not None."""

    def __init__(self, message: str, next_offset: int | None) -> None:
        super().__init__(message)
        self.next_offset = next_offset


def read_chunk(engine: Engine, view: StreamView, form: Form, offset: int, end: int, max_bytes: int) -> StreamChunk:
    """The records from `offset` to before `end`, up to about `max_bytes`, at least one. Raises `RecordsUnreadable`,
    or `ColdRange` if the first of them is only in the archive."""
    reached = offset
    size = 0
    pieces: list[Part] = []
    try:
        for log_id, first, stop in ranges_of(view, offset, end):
            position = first
            while position < stop and (size < max_bytes or reached == offset):
                batches = engine.read(log_id, position, stop, max(1, max_bytes - size))
                if not batches:
                    return StreamChunk(offset, reached, _framed(form, pieces))  # it was deleted in the meantime
                for batch in batches:
                    header = records.read_header(batch)
                    last = min(stop, header.end_offset)
                    piece, count = _values(form, batch, header, position, last, max_bytes - size)
                    pieces.append(piece)
                    size += len(piece)
                    position = reached = position + count
                    if size >= max_bytes or position < last:
                        return StreamChunk(offset, reached, _framed(form, pieces))
            if position < stop:
                break
    except ColdRange:
        if reached == offset:
            raise
    except (CorruptLog, records.BadBatch) as error:
        if reached == offset:
            raise RecordsUnreadable(str(error), _end_of_withdrawn(engine, log_id, error)) from error
    return StreamChunk(offset, reached, _framed(form, pieces))


def look_ahead(engine: Engine, view: StreamView, offset: int, max_bytes: int) -> None:
    """Raises `ColdRange` if the records from `offset` on are only in the archive."""
    cold_reads = engine.cold_reads
    if cold_reads is not None and cold_reads.is_used and view.start_offset <= offset < view.end_offset:
        with contextlib.suppress(CorruptLog):
            for log_id, first, stop in ranges_of(view, offset, view.end_offset):
                engine.read(log_id, first, stop, max_bytes)
                return


def ranges_of(view: StreamView, offset: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Where [offset, end) of a stream is kept: (log, first, stop), in order."""
    own_first = 0
    for log_id, first, stop in view.inherited:
        own_first = stop
        if max(first, offset) < min(stop, end):
            yield log_id, max(first, offset), min(stop, end)
    if max(own_first, offset) < end:
        yield view.log_id, max(own_first, offset), end


def _values(form: Form, batch: bytes, header: records.Header, first: int, end: int, bytes_max: int) -> tuple[Part, int]:
    """The records from `first` to `end` that fit, at least one; and how many they are."""
    low, high = first - header.first_offset, end - header.first_offset
    if form is Form.PARTITION:
        return _messages(batch, header, low, high, bytes_max)
    ends, values = records.value_column(batch, header)
    high = min(high, max(low + 1, bisect_right(ends, ends[low] + max(0, bytes_max)) - 1))
    if form is Form.BYTES or high - low == 1:
        return values[ends[low] : ends[high]], high - low
    data = bytes(values[: ends[high]])
    return b",".join([data[ends[index] : ends[index + 1]] for index in range(low, high)]), high - low


def _messages(batch: bytes, header: records.Header, low: int, high: int, bytes_max: int) -> tuple[bytes, int]:
    stamp = b',"timestamp_ms":%d' % header.at_ms
    offset = header.first_offset + low
    messages: list[bytes] = []
    for record in records.unpack(batch, header, first=low, count=high - low):
        message = b'{"offset":%d%b%b}' % (offset + len(messages), stamp, content(record))
        bytes_max -= len(message)
        if bytes_max < 0 and messages:
            break
        messages.append(message)
    return b",".join(messages), len(messages)


def _framed(form: Form, pieces: list[Part]) -> list[Part]:
    if form is Form.BYTES:
        return pieces
    framed: list[Part] = [b"["]
    for index, piece in enumerate(pieces):
        if index:
            framed.append(b",")
        framed.append(piece)
    framed.append(b"]")
    return framed


def _end_of_withdrawn(engine: Engine, log_id: int, error: Exception) -> int | None:
    """Where reading can resume, if a repair by an older version withdrew the records at this offset."""
    log = engine.latest_state.logs.get(log_id)
    if log is not None and isinstance(error, CorruptLog) and error.offset in log.cancelled:
        return error.end_offset
    return None
