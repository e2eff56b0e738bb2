"""Packed batches that a client encoded: checked on arrival, then stored as they are.

The broker reads the heads, because they may schedule a record; it does not look into keys and values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from msgspec import Meta

from driftq.core.model.replies import Rejected
from driftq.server.http import BadRequest
from driftq.server.produced_message import check_envelope, schedule_of
from driftq.wire.errors import Code
from driftq.wire.fields import ID_LENGTH_MAX, NAME_LENGTH_MAX, Natural, Priority, from_rfc3339
from driftq.wire.message import BAD_HEAD, Envelope, Job, Routing
from driftq.wire.records import BadBatch, Header, check_with_heads, read_header

if TYPE_CHECKING:
    from driftq.core.model.facts import RecordSchedule


class ClientRouting(Routing, frozen=True, forbid_unknown_fields=True):
    """A routing as a client may send it."""


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


def read_packed(batch: bytes, message_bytes_max: int, batch_bytes_max: int) -> PackedBatch | Rejected:
    """Check a batch and read the schedules in the heads of its records."""
    try:
        declared = read_header(batch)
        largest = message_bytes_max if declared.count == 1 else batch_bytes_max
        if declared.raw_bytes > largest:
            message = f"{declared.raw_bytes} bytes are more than fit ({largest})"
            return Rejected(Code.TOO_LARGE, message, {"limit_bytes": largest})
        header, heads = check_with_heads(batch)
        return PackedBatch(header, _schedules(heads))
    except BadBatch as error:
        return Rejected(Code.INVALID_ARGUMENT, f"invalid batch: {error}")


def _schedules(heads: list[bytes]) -> tuple[RecordSchedule, ...]:
    schedules: list[RecordSchedule] = []
    index = 0
    try:
        for index, text in enumerate(heads):
            if text:
                schedule = _schedule_of_head(index, _decode(text))
                if schedule is not None:
                    schedules.append(schedule)
    except (*BAD_HEAD, BadRequest, ValueError) as error:
        raise BadBatch(f"the head of record {index} is not one JSON object of a known form: {error}") from None
    return tuple(schedules)


def _schedule_of_head(index: int, head: ClientHead) -> RecordSchedule | None:
    deadline_ms = 0
    if head.envelope is not None:
        check_envelope(head.envelope)
        if head.envelope.deadline:
            deadline_ms = max(1, from_rfc3339(head.envelope.deadline))
    return schedule_of(index, head.envelope, head.job, head.routing, deadline_ms)
