"""Reads a range of a log as the body of a response: bytes as they were appended, JSON messages as an array, or the
messages of a topic's partition as JSON objects.

Resolves the inherited ranges of a fork, and limits the size of a response. Values are copied as little as possible and
never parsed.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from driftq.server.message_json import content
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


class RecordsUnreadable(Exception):
    """The record at the requested offset cannot be read. Reading can resume at `next_offset`, if it is not None."""

    def __init__(self, message: str, next_offset: int | None) -> None:
        super().__init__(message)
        self.next_offset = next_offset


def read_chunk(engine: Engine, view: StreamView, form: Form, offset: int, end: int, max_bytes: int) -> StreamChunk:
    """The records from `offset` to before `end`: whole batches, up to about `max_bytes`, at least one. Raises
    `RecordsUnreadable`."""
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
                    pieces.append(_values(form, batch, header, position, last))
                    size += len(pieces[-1])
                    position = reached = last
            if position < stop:
                break
    except (CorruptLog, records.BadBatch) as error:
        if reached == offset:
            raise RecordsUnreadable(str(error), _end_of_withdrawn(engine, log_id, error)) from error
    return StreamChunk(offset, reached, _framed(form, pieces))


def ranges_of(view: StreamView, offset: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Where [offset, end) of a stream is kept: (log, first, stop), in order."""
    own_first = 0
    for log_id, first, stop in view.inherited:
        own_first = stop
        if max(first, offset) < min(stop, end):
            yield log_id, max(first, offset), min(stop, end)
    if max(own_first, offset) < end:
        yield view.log_id, max(own_first, offset), end


def _values(form: Form, batch: bytes, header: records.Header, first: int, end: int) -> Part:
    low, high = first - header.first_offset, end - header.first_offset
    if form is Form.PARTITION:
        return _messages(batch, header, low, high)
    ends, values = records.value_column(batch, header)
    if form is Form.BYTES:
        return values[ends[low] : ends[high]]
    if high - low == 1:
        return values[ends[low] : ends[high]]
    data = bytes(values)
    return b",".join([data[ends[index] : ends[index + 1]] for index in range(low, high)])


def _messages(batch: bytes, header: records.Header, low: int, high: int) -> bytes:
    stamp = b',"timestamp_ms":%d' % header.at_ms
    offset = header.first_offset + low
    messages = []
    for record in records.unpack(batch, header, first=low, count=high - low):
        messages.append(b'{"offset":%d%b%b}' % (offset, stamp, content(record)))
        offset += 1
    return b",".join(messages)


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
