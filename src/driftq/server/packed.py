"""Packed batches that a client encoded: checked on the way in. Values and keys are stored as they come.

Heads are decoded one by one, each as exactly one JSON object with an envelope, a routing or a job: what is stored can
be shown later. A batch without heads costs nothing here. What a batch declares to unpack to is compared with the limits
before anything is unpacked.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from driftq.core.facts import Mark
from driftq.core.replies import Rejected
from driftq.server.http import BadRequest
from driftq.server.messages import check_envelope, mark_of
from driftq.wire.errors import Code
from driftq.wire.message import BAD_HEAD, Envelope, Job, Routing
from driftq.wire.queue import Natural, Priority
from driftq.wire.records import BadBatch, Header, check_with_heads, read_header
from driftq.wire.times import from_rfc3339


class ClientRouting(Routing, frozen=True, forbid_unknown_fields=True):
    """A routing as a client may write it."""


class ClientJob(Job, frozen=True, forbid_unknown_fields=True):
    """A job as a client may write it, with the bounds of `wire.queue.ProduceItem`."""

    id: Annotated[str, Meta(max_length=256)] = ""
    task: Annotated[str, Meta(max_length=249)] = ""
    priority: Priority = 0
    not_before_ms: Natural = 0
    timeout_ms: Natural = 0


class ClientHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A head as a client may write it. Dead letters are the broker's to write."""

    envelope: Envelope | None = None
    routing: ClientRouting | None = None
    job: ClientJob | None = None


_decode = msgspec.json.Decoder(ClientHead).decode


class PackedBatch(NamedTuple):
    """A batch that may be stored as it is."""

    header: Header
    marks: tuple[Mark, ...]


def read_packed(batch: bytes, message_bytes_max: int, batch_bytes_max: int) -> PackedBatch | Rejected:
    """Check a batch and read the schedule of its records."""
    try:
        declared = read_header(batch)
        largest = message_bytes_max if declared.count == 1 else batch_bytes_max
        if declared.raw_bytes > largest:
            message = f"{declared.raw_bytes} bytes are more than fit ({largest})"
            return Rejected(Code.TOO_LARGE, message, {"limit_bytes": largest})
        header, heads = check_with_heads(batch)
        return PackedBatch(header, _marks(heads))
    except BadBatch as error:
        return Rejected(Code.INVALID_ARGUMENT, f"invalid batch: {error}")


def _marks(heads: list[bytes]) -> tuple[Mark, ...]:
    marks: list[Mark] = []
    index = 0
    try:
        for index, text in enumerate(heads):
            if text:
                mark = _mark(index, _decode(text))
                if mark is not None:
                    marks.append(mark)
    except (*BAD_HEAD, BadRequest, ValueError) as error:
        raise BadBatch(f"the head of record {index} is not one JSON object of a known form: {error}") from None
    return tuple(marks)


def _mark(index: int, head: ClientHead) -> Mark | None:
    deadline_ms = 0
    if head.envelope is not None:
        check_envelope(head.envelope)
        if head.envelope.deadline:
            deadline_ms = max(1, from_rfc3339(head.envelope.deadline))
    return mark_of(index, head.envelope, head.job, head.routing, deadline_ms)
