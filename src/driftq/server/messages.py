"""A produced message on its way to a packed record: text or bytes, envelope, job, schedule, idempotency.

Pure: the time is an argument. Everything a client can get wrong here is a `BadRequest` that names the field.
"""

from __future__ import annotations

import base64
import binascii
from hashlib import blake2b
from typing import NamedTuple

import google_crc32c
import msgspec

from driftq.core.commands import ProduceKey
from driftq.core.facts import Mark
from driftq.core.produced_keys import CRC_END, job_key
from driftq.server.http import BadRequest
from driftq.wire.message import Envelope, Head, Job, Routing, encode_head
from driftq.wire.queue import ProduceItem
from driftq.wire.records import Record
from driftq.wire.times import from_rfc3339, to_rfc3339

KEY_BYTES_MAX = 1_024
IDEMPOTENCY_KEY_BYTES_MAX = 256

_FINGERPRINTS = (1 << 63) - CRC_END
_deterministic = msgspec.msgpack.Encoder(order="deterministic")


class Outgoing(NamedTuple):
    """A message that is ready to be produced."""

    record: Record
    mark: Mark | None
    once: ProduceKey | None
    job: ProduceKey | None = None


def outgoing(
    item: ProduceItem, topic: str, now_ms: int, *, strict_keys: bool = False, routing: Routing | None = None
) -> Outgoing:
    """Turn an item into a record. `topic` is the requested one: it scopes the idempotency key."""
    value = value_of(item)
    key = item.key.encode()
    if len(key) > KEY_BYTES_MAX:
        raise BadRequest(f"key has {len(key)} bytes; at most {KEY_BYTES_MAX} are allowed")
    envelope = _normal(item.envelope) if item.envelope is not None else None
    job = _job(item, now_ms)
    if envelope is None and job is None and routing is None:
        return Outgoing(Record(value, key), None, None)
    head = encode_head(Head(envelope=envelope, routing=routing, job=job))
    mark = _mark(envelope, job, routing)
    once, job_id = _keys(item, envelope, job, topic, value, strict_keys)
    return Outgoing(Record(value, key, head), mark, once, job_id)


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


def _normal(envelope: Envelope) -> Envelope:
    """Checked, and with its deadline in the form that every client's parser knows."""
    check_envelope(envelope)
    if not envelope.deadline:
        return envelope
    return msgspec.structs.replace(envelope, deadline=to_rfc3339(_time("deadline", envelope.deadline)))


def check_envelope(envelope: Envelope) -> None:
    """What types cannot say about an envelope."""
    policy = envelope.retry_policy
    if policy is not None:
        for name in ("max_attempts", "backoff_ms", "max_backoff_ms"):
            if getattr(policy, name) < 0:
                raise BadRequest(f"invalid retry_policy.{name}: it cannot be negative")
        if policy.max_attempts > 1_000:
            raise BadRequest("invalid retry_policy.max_attempts: at most 1000")
    if envelope.partition_override is not None and envelope.partition_override < 0:
        raise BadRequest("invalid partition_override")
    if len(envelope.idempotency_key.encode()) > IDEMPOTENCY_KEY_BYTES_MAX:
        raise BadRequest(f"idempotency_key has at most {IDEMPOTENCY_KEY_BYTES_MAX} bytes")


def _mark(envelope: Envelope | None, job: Job | None, routing: Routing | None) -> Mark | None:
    deadline_ms = 0
    if envelope is not None and envelope.deadline:
        deadline_ms = max(1, from_rfc3339(envelope.deadline))
    return mark_of(0, envelope, job, routing, deadline_ms)


def mark_of(
    index: int, envelope: Envelope | None, job: Job | None, routing: Routing | None, deadline_ms: int
) -> Mark | None:
    """The schedule of a record, if it is not plain."""
    tenant = envelope.tenant_id if envelope is not None else ""
    label = routing.label if routing is not None else ""
    if job is None:
        if not (deadline_ms or label or tenant):
            return None
        return Mark(index, label=label, deadline_ms=deadline_ms, tenant=tenant)
    tracked = bool(job.id or job.task)
    if not (tracked or job.priority or job.not_before_ms or label or deadline_ms or tenant or job.timeout_ms):
        return None
    return Mark(
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
    return once, job_id


def _fingerprint(item: ProduceItem, envelope: Envelope | None, value: bytes) -> int:
    """Of key, value, envelope and schedule as they were asked for. The trace of a request is not a part of its message:
    a repeat has another."""
    if envelope is not None:
        envelope = msgspec.structs.replace(envelope, traceparent="")
    schedule = (item.task, item.priority, item.delay_ms, item.not_before, item.timeout_ms)
    digest = blake2b(_deterministic.encode((item.key, envelope, schedule)), digest_size=8)
    digest.update(value)
    return CRC_END + int.from_bytes(digest.digest()) % _FINGERPRINTS


def merged(mark: Mark, index: int) -> Mark:
    """The same schedule for a record at another place of its batch."""
    return msgspec.structs.replace(mark, index=index)
