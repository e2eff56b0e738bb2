"""A message that is being produced: from what the client sent to the command that stores it.

    ProduceItem ──prepare──▶ ProducedMessage ──produce_command──▶ Produce ──▶ engine ──▶ Produced ──produce_reply──▶
    value, key,              record, schedule,                    batch of
    envelope, job            idempotency keys                     one record

Pure: the time is an argument. An invalid field of an item is a `BadRequest` that names it. Batches that a client packed
are in `server.packed_batch`. A section of this module copies the W3C trace context of a request into the message.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from hashlib import blake2b
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import google_crc32c
import msgspec
from msgspec.structs import replace

from driftq.core.model.commands import Produce, ProduceKey
from driftq.core.model.facts import RecordSchedule
from driftq.core.state.idempotency_keys import CRC_END, job_key
from driftq.server.http import BadRequest
from driftq.wire.fields import from_rfc3339, to_rfc3339
from driftq.wire.message import (
    BAGGAGE_BYTES_MAX,
    TRACESTATE_BYTES_MAX,
    Envelope,
    Head,
    Job,
    Routing,
    encode_head,
)
from driftq.wire.produce import ProduceItem, ProduceReply
from driftq.wire.records import Record, pack_one

if TYPE_CHECKING:
    from driftq.core.model.replies import Produced


KEY_BYTES_MAX = 1_024
HEAD_BYTES_MAX = 64 << 10  # envelope, routing and job of a message, as JSON
TEXT_BYTES_MAX = 256  # of each text of an envelope
LABELS_MAX = 64  # of an envelope; entries in the `meta` of a routing
LABEL_BYTES_MAX = 1_024  # of the name of a label, and of its value

_ENVELOPE_TEXTS = (
    "run_id", "step_id", "parent_step_id", "tenant_id", "idempotency_key", "target_topic", "traceparent", "deadline",
)  # fmt: skip
_texts_of = attrgetter(*_ENVELOPE_TEXTS)

_FINGERPRINTS = (1 << 63) - CRC_END
_deterministic = msgspec.msgpack.Encoder(order="deterministic")


class ProducedMessage(NamedTuple):
    """A message that is ready to be produced."""

    record: Record
    schedule: RecordSchedule | None  # None: a plain message
    once: ProduceKey | None  # its idempotency key
    job: ProduceKey | None = None  # the id of its job


def prepare(
    item: ProduceItem, topic: str, now_ms: int, *, strict_keys: bool = False, routing: Routing | None = None
) -> ProducedMessage:
    """Check a message and turn it into a record. `topic` is the requested one, to which the idempotency key belongs."""
    value = value_of(item)
    key = item.key.encode()
    if len(key) > KEY_BYTES_MAX:
        raise BadRequest(f"key has {len(key)} bytes; at most {KEY_BYTES_MAX} are allowed")
    envelope = _checked(item.envelope) if item.envelope is not None else None
    job = _job(item, now_ms)
    if envelope is None and job is None and routing is None:
        return ProducedMessage(Record(value, key), None, None)
    head = encode_head(Head(envelope=envelope, routing=routing, job=job))
    if len(head) > HEAD_BYTES_MAX:
        raise BadRequest(too_large_head(len(head)))
    schedule = _schedule(envelope, job, routing)
    once, job_id = _keys(item, envelope, job, topic, value, strict_keys)
    return ProducedMessage(Record(value, key, head), schedule, once, job_id)


def value_of(item: ProduceItem) -> bytes:
    if item.value_base64 is not None:
        if item.value is not None:
            raise BadRequest("value and value_base64 exclude each other")
        try:
            return base64.b64decode(item.value_base64, validate=True)
        except (binascii.Error, ValueError):
            raise BadRequest("invalid value_base64") from None
    if not item.value:
        raise BadRequest("topic and value are required")
    try:
        return item.value.encode()
    except UnicodeEncodeError:
        raise BadRequest("value is not valid UTF-8 text; send bytes as value_base64") from None


def _job(item: ProduceItem, now_ms: int) -> Job | None:
    not_before_ms = 0
    if item.id_ttl_ms is not None and not item.id:
        raise BadRequest("id_ttl_ms belongs to a job with an id")
    if item.not_before:
        if item.delay_ms:
            raise BadRequest("delay_ms and not_before exclude each other")
        not_before_ms = _time("not_before", item.not_before)
    elif item.delay_ms:
        not_before_ms = now_ms + item.delay_ms
    if not (item.id or item.task or item.priority or not_before_ms or item.timeout_ms):
        return None
    return Job(item.id, item.task, item.priority, not_before_ms, item.timeout_ms)


def _time(name: str, text: str) -> int:
    try:
        return from_rfc3339(text)
    except ValueError as error:
        raise BadRequest(f"invalid {name}: {error}") from None


def _checked(envelope: Envelope) -> Envelope:
    """The envelope, checked, with its deadline in the form that every parser accepts."""
    check_envelope(envelope)
    if not envelope.deadline:
        return envelope
    return msgspec.structs.replace(envelope, deadline=to_rfc3339(_time("deadline", envelope.deadline)))


def check_envelope(envelope: Envelope) -> None:
    """Check what the types of an envelope do not express."""
    problem = envelope.retry_policy.problem() if envelope.retry_policy is not None else ""
    if problem:
        raise BadRequest(f"invalid retry_policy.{problem}")
    if envelope.partition_override is not None and envelope.partition_override < 0:
        raise BadRequest("invalid partition_override")
    texts = _texts_of(envelope)
    if 4 * max(map(len, texts)) > TEXT_BYTES_MAX:  # a character has up to four bytes
        for name, text in zip(_ENVELOPE_TEXTS, texts, strict=True):
            _check_text(f"envelope.{name}", text, TEXT_BYTES_MAX)
    if envelope.labels:
        check_labels("envelope.labels", envelope.labels)
    if envelope.tracestate:
        _check_trace_text("tracestate", envelope.tracestate, TRACESTATE_BYTES_MAX)
    if envelope.baggage:
        _check_trace_text("baggage", envelope.baggage, BAGGAGE_BYTES_MAX)


def check_labels(field: str, labels: dict[str, str]) -> None:
    if len(labels) > LABELS_MAX:
        raise BadRequest(
            f"{field} has {len(labels)} entries; at most {LABELS_MAX} are allowed: put data into the value"
        )
    for name, text in labels.items():
        _check_text(f"a name in {field}", name, LABEL_BYTES_MAX)
        _check_text(field, text, LABEL_BYTES_MAX)


def _check_text(field: str, text: str, bytes_max: int) -> None:
    if 4 * len(text) > bytes_max and (size := len(text.encode("utf-8", "surrogatepass"))) > bytes_max:
        raise BadRequest(f"{field} has {size} bytes; at most {bytes_max} are allowed: put data into the value")


def _check_trace_text(name: str, text: str, bytes_max: int) -> None:
    if len(text) > bytes_max:
        raise BadRequest(f"envelope.{name} has {len(text)} bytes; at most {bytes_max} are allowed")
    if not (text.isascii() and text.isprintable()):
        raise BadRequest(f"envelope.{name} is a header of W3C Trace Context: printable ASCII, other bytes as %XX")


def too_large_head(size: int) -> str:
    return f"envelope, routing and job have {size} bytes as JSON; at most {HEAD_BYTES_MAX} are allowed"


def _schedule(envelope: Envelope | None, job: Job | None, routing: Routing | None) -> RecordSchedule | None:
    deadline_ms = 0
    if envelope is not None and envelope.deadline:
        deadline_ms = max(1, from_rfc3339(envelope.deadline))
    return schedule_of(0, envelope, job, routing, deadline_ms)


def schedule_of(
    index: int, envelope: Envelope | None, job: Job | None, routing: Routing | None, deadline_ms: int
) -> RecordSchedule | None:
    """The schedule of the record at `index` of its batch; None if the message is plain."""
    tenant = envelope.tenant_id if envelope is not None else ""
    label = routing.label if routing is not None else ""
    if job is None:
        if not (deadline_ms or label or tenant):
            return None
        return RecordSchedule(index, label=label, deadline_ms=deadline_ms, tenant=tenant)
    tracked = bool(job.id or job.task)
    if not (tracked or job.priority or job.not_before_ms or label or deadline_ms or tenant or job.timeout_ms):
        return None
    return RecordSchedule(
        index, job.priority, job.task, label, job.not_before_ms, deadline_ms, tenant, tracked,
        timeout_ms=job.timeout_ms,
    )  # fmt: skip


def _keys(
    item: ProduceItem, envelope: Envelope | None, job: Job | None, topic: str, value: bytes, strict: bool
) -> tuple[ProduceKey | None, ProduceKey | None]:
    """The idempotency key of a message and the id of its job, if it has them."""
    names = (envelope.idempotency_key if envelope is not None else "", job_key(job.id) if job and job.id else "")
    if not any(names):
        return None, None
    tenant = envelope.tenant_id if envelope is not None else ""
    digest, crc = _fingerprint(item, envelope, value), google_crc32c.value(value)
    once, job_id = (
        ProduceKey(tenant, topic, name, digest, strict=strict, value_crc=crc) if name else None for name in names
    )
    if job_id is not None and item.id_ttl_ms is not None:
        job_id = replace(job_id, ttl_ms=max(1, item.id_ttl_ms))  # 0 stands for the server's setting
    return once, job_id


def _fingerprint(item: ProduceItem, envelope: Envelope | None, value: bytes) -> int:
    """A digest of key, value, envelope and schedule as they were requested. The trace is left out: a repeat has
    another."""
    if envelope is not None:
        envelope = msgspec.structs.replace(envelope, traceparent="", tracestate="", baggage="")
    requested = (item.task, item.priority, item.delay_ms, item.not_before, item.timeout_ms)
    digest = blake2b(_deterministic.encode((item.key, envelope, requested)), digest_size=8)
    digest.update(value)
    return CRC_END + int.from_bytes(digest.digest()) % _FINGERPRINTS


def produce_command(
    topic: str, envelope: Envelope | None, message: ProducedMessage, any_partition: int | None = None
) -> Produce:
    """The command that stores a message. The envelope's target and partition win over the requested topic, the hash of
    the key and `any_partition`."""
    record = message.record
    override = envelope.partition_override if envelope is not None else None
    target = envelope.target_topic or topic if envelope is not None else topic
    return Produce(
        topic=target,
        batch=pack_one(record.value, record.key, record.head, scheduled=message.schedule is not None),
        count=1,
        payload_bytes=record.size_bytes,
        key=record.key,
        partition=override if override is not None else any_partition,
        once=message.once,
        marks=(message.schedule,) if message.schedule is not None else (),
        job=message.job,
    )


def produce_reply(requested: str, reply: Produced) -> ProduceReply:
    """The body of the reply. `requested` is the topic that the client named."""
    return ProduceReply("produced", requested, reply.topic, reply.partition, reply.first_offset, reply.duplicate)


# --- W3C trace context ------------------------------------------------------------------------------------------------

TRACE_HEADER = b"traceparent"
_TRACEPARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]{1,200})?"
)

Item = TypeVar("Item", bound=ProduceItem)


def traced(item: Item, headers: Mapping[bytes, bytes]) -> Item:
    """The message with the request's trace in its envelope, unless it has a trace of its own. What is no valid trace is
    left out: a header never fails a message."""
    traceparent = headers[TRACE_HEADER].strip(b" \t")
    envelope = item.envelope
    if (envelope is not None and envelope.traceparent) or not is_traceparent(traceparent):
        return item
    trace = {
        "traceparent": traceparent.decode("ascii"),
        "tracestate": _header_text(headers, b"tracestate", TRACESTATE_BYTES_MAX),
        "baggage": _header_text(headers, b"baggage", BAGGAGE_BYTES_MAX),
    }
    return replace(item, envelope=replace(envelope or Envelope(), **trace))


def _header_text(headers: Mapping[bytes, bytes], name: bytes, bytes_max: int) -> str:
    text = headers.get(name, b"").strip(b" \t").decode("latin-1")
    return text if len(text) <= bytes_max and text.isascii() and text.isprintable() else ""


def is_traceparent(text: bytes) -> bool:
    match = _TRACEPARENT.fullmatch(text)
    # Version 00 has exactly four fields; later versions may have more.
    return match is not None and (match[1] is None or text[:2] != b"00")
