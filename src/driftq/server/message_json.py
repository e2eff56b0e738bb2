"""Messages as JSON: a `wire.claims.Delivered` or the content of a `wire.message.StoredMessage`, written by hand.

A claim may return thousands of messages, so the text of each is joined from bytes instead of encoding a Struct; a unit
test compares the two. The fields of a record's head are decoded and encoded again, never copied, because a client wrote
them. A head that cannot be read is replaced by an error, so that the other messages of a reply stay readable.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import json

from driftq.wire import records
from driftq.wire.errors import Code
from driftq.wire.message import BAD_HEAD, decode_head, encode_head

if TYPE_CHECKING:
    from driftq.core.model.replies import Delivery
    from driftq.engine.engine import Engine

_encode = json.Encoder().encode
READ_BYTES = 4 << 20


def lines(engine: Engine, delivery: Delivery, token: str, until_ms: int) -> Iterator[bytes]:
    """The messages of a delivery, each as a JSON object without a line end."""
    error = _encode(delivery.error)
    front = b'{"partition":%d,"offset":' % delivery.partition
    until_ms = delivery.until_ms or until_ms
    tail = b',"lease_version":%d,"token":%b,"lease_until_ms":%d' % (delivery.version, _encode(token), until_ms)
    middle = b',"attempts":%d,"last_error":%b' % (delivery.attempts, error)
    offset = delivery.first
    while offset < delivery.end:
        batches = engine.read(delivery.log_id, offset, delivery.end, READ_BYTES)
        for batch in batches:
            header = records.read_header(batch)
            first = max(offset, header.first_offset)
            count = min(delivery.end, header.end_offset) - first
            stamp = b',"timestamp_ms":%d' % header.at_ms
            for record in records.unpack(batch, header, first=first - header.first_offset, count=count):
                yield b"".join((front, b"%d" % first, middle, tail, stamp, content(record), b"}"))
                first += 1
            offset = first


def content(record: records.Record) -> bytes:
    """`,"key":…,"value":…` and the fields of the head. Bytes that are not text are sent as base64."""
    head = _head(record.head) if record.head else b""
    return b"".join((b',"key":', _text(record.key), _value(record.value), head))


def _head(text: bytes) -> bytes:
    try:
        fields = encode_head(decode_head(text))
    except BAD_HEAD as error:
        message = f"the head of this record (envelope, routing, job) cannot be read: {error}"
        return b',"error":"%b","message":%b' % (Code.DATA_CORRUPT.encode(), _encode(message))
    return b"," + fields[1:-1] if fields else b""


def _value(value: bytes) -> bytes:
    try:
        return b',"value":' + _encode(value.decode())
    except UnicodeDecodeError:
        return b',"value":"","value_base64":"%b"' % base64.b64encode(value)


def _text(raw: bytes) -> bytes:
    return _encode(raw.decode("utf-8", "replace")) if raw else b'""'
