"""Calls that only look, as pure functions: why a message waits, where one would go, what a partition holds.

Reading a partition is not claiming: nobody's group moves, and the reader keeps its own offset.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, NamedTuple

from driftq.client.calls import Value, body_of, get, item, post, reading, refusal, segment
from driftq.client.flows import Call
from driftq.client.http import Reply
from driftq.wire.message import Envelope, read_head
from driftq.wire.queue import Delivered

if TYPE_CHECKING:
    from driftq.wire.records import Record

READ_BYTES = 1 << 20


class Fetched(NamedTuple):
    """Messages of a partition from an offset on, and where to read on."""

    messages: list[Delivered]
    next_offset: int
    start_offset: int
    end_offset: int


def explain(
    topic: str, partition: int, offset: int, *, group: str = "", task: str = "", label: str = ""
) -> Call[dict[str, Any]]:
    """Every gate that keeps a message from being delivered now, and when each opens; for one group or for all."""
    query = {"topic": topic, "partition": partition, "offset": offset, "group": group, "task": task, "label": label}
    return get("/v1/explain", dict[str, Any], query)


def route(
    topic: str, value: Value, *, key: str = "", envelope: Envelope | None = None, task: str = "", **words: Any
) -> Call[dict[str, Any]]:
    """Where a message would go, and why, without producing it. Takes the words of `send`."""
    message = item(value, key=key, envelope=envelope, task=task, **words)
    return post("/v1/route", body_of(message, topic=topic), reading(dict[str, Any]), repeatable=True)


def fetch(topic: str, partition: int, offset: int, *, wait_ms: int = 0, max_bytes: int = READ_BYTES) -> Call[Fetched]:
    """Read a partition without a group. Waits up to `wait_ms` for something at `offset`."""
    path = f"/v1/topics/{segment(topic)}/partitions/{partition}/records"
    path += f"?offset={offset}&wait_ms={wait_ms}&max_bytes={max_bytes}"

    def read(reply: Reply) -> Fetched:
        places = [int(reply.headers[f"driftq-{name}-offset"]) for name in ("next", "start", "end")]
        return Fetched(_messages(bytes(reply.body), partition, offset), *places)

    return Call("GET", path, read, refusal=refusal, repeatable=True, wait_ms=wait_ms)


def _messages(data: bytes, partition: int, offset: int) -> list[Delivered]:
    """The first batch may begin before what was asked for."""
    from driftq.wire import records  # noqa: PLC0415  # checksums and compression, for those who read packed records

    found: list[Delivered] = []
    for batch in records.split(data):
        header = records.read_header(batch)
        skipped = max(0, offset - header.first_offset)
        for index, record in enumerate(records.unpack(batch, header, first=skipped), header.first_offset + skipped):
            found.append(_delivered(record, partition, index, header.at_ms))
    return found


def _delivered(record: Record, partition: int, offset: int, at_ms: int) -> Delivered:
    head = read_head(record.head)
    try:
        value, packed = record.value.decode(), None
    except UnicodeDecodeError:
        value, packed = "", base64.b64encode(record.value).decode("ascii")
    return Delivered(
        partition,
        offset,
        attempts=0,
        timestamp_ms=at_ms,
        key=record.key.decode("utf-8", "replace"),
        value=value,
        value_base64=packed,
        envelope=head.envelope,
        routing=head.routing,
        job=head.job,
        dlq=head.dlq,
    )
