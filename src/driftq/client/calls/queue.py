"""Calls of the queue as pure functions: arguments in, a `Call` out. Produce, settle, effects, outcomes.

The blocking and the async client both send what is built here. Bodies are the Structs of `driftq.wire`. Topics, groups,
jobs and dead letters are in `calls.admin`, streams in `calls.streams`, claims in `client.claims`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from driftq.client import trace
from driftq.client.calls.filters import time_text
from driftq.client.errors import Refused, refused
from driftq.client.transport.sansio import Call
from driftq.wire.claims import HeldItem, SettleReply, SettleRequest
from driftq.wire.effects import (
    BeginReply,
    BeginRequest,
    CommitRequest,
    FailRequest,
    OutcomeAck,
    OutcomeAppend,
    OutcomeRequest,
)
from driftq.wire.errors import code_of
from driftq.wire.message import Envelope, RetryPolicy
from driftq.wire.produce import (
    PACKED_TYPE,
    BatchReply,
    PackedReply,
    ProduceBatchRequest,
    ProduceItem,
    ProduceReply,
    ProduceRequest,
)

if TYPE_CHECKING:
    from driftq.client.transport.http import HttpReply

T = TypeVar("T")
Value = Any  # bytes and str are sent as they are, anything else as JSON

encode = msgspec.json.Encoder().encode
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


# --- reading ----------------------------------------------------------------------------------------------------------


def decode_body(reply: HttpReply, body_type: Any) -> Any:
    decoder = _decoders.get(body_type)
    if decoder is None:
        decoder = _decoders[body_type] = msgspec.json.Decoder(body_type)
    return decoder.decode(reply.body)


def json_reader(body_type: type[T]) -> Callable[[HttpReply], T]:
    return lambda reply: decode_body(reply, body_type)


def no_body(reply: HttpReply) -> None:
    return None


_read_produced = json_reader(ProduceReply)


def retry_after_ms(reply: HttpReply) -> int | None:
    """`Retry-After`, in seconds or as a date; proxies send both."""
    text = reply.headers.get("retry-after")
    if text is None:
        return None
    if text.strip().isdecimal():
        return int(text) * 1_000
    from email.utils import parsedate_to_datetime  # noqa: PLC0415  # slow to import, and our broker sends seconds

    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0, int((at - datetime.now(UTC)).total_seconds() * 1_000))


def refusal(reply: HttpReply) -> Refused:
    """The broker's errors are JSON. An error of a proxy may be anything."""
    try:
        body = msgspec.json.decode(reply.body, type=dict[str, Any])
    except msgspec.DecodeError:
        body = {}
    message = str(body.pop("message", "") or reply.body[:200].decode("utf-8", "replace").strip() or "no reason given")
    error = str(body.pop("error", ""))
    after_ms = body.get("retry_after_ms", retry_after_ms(reply))
    return refused(code_of(error, reply.status), message, reply.status, body, after_ms)


# --- building ---------------------------------------------------------------------------------------------------------


def get(path: str, body_type: type[T], query: Mapping[str, object] | None = None, wait_ms: int = 0) -> Call[T]:
    parameters = {name: value for name, value in (query or {}).items() if value not in (None, "")}
    full = f"{path}?{urlencode(parameters)}" if parameters else path
    return Call("GET", full, json_reader(body_type), refusal=refusal, idempotent=True, wait_ms=wait_ms)


def post(
    path: str,
    body: object,
    read: Callable[[HttpReply], T],
    *,
    idempotent: bool = False,
    wait_ms: int = 0,
    lane: str = "",
) -> Call[T]:
    return Call(
        "POST", path, read, refusal=refusal, body=encode(body), idempotent=idempotent, wait_ms=wait_ms, lane=lane
    )


def bodyless_call(method: str, path: str) -> Call[None]:
    return Call(method, path, no_body, refusal=refusal, idempotent=True)


def segment(name: str) -> str:
    return quote(name, safe="")


def content(value: Value) -> tuple[str | None, str | None]:
    """`value` and `value_base64` of a message: text if it is text, else base64."""
    if isinstance(value, str):
        return (value, None) if value else (None, "")
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        try:
            return (raw.decode(), None) if raw else (None, "")
        except UnicodeDecodeError:
            return None, base64.b64encode(raw).decode("ascii")
    return encode(value).decode(), None


def raw_bytes(value: Value) -> bytes:
    """A value as it is stored."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    return bytes(value) if isinstance(value, bytearray | memoryview) else encode(value)


def item(
    value: Value,
    *,
    key: str = "",
    envelope: Envelope | None = None,
    idempotency_key: str = "",
    task: str = "",
    id: str = "",
    priority: int = 0,
    delay_ms: int = 0,
    not_before: datetime | str | None = None,
    timeout_ms: int = 0,
    deadline: datetime | str | None = None,
    retry: RetryPolicy | None = None,
    tenant: str = "",
    labels: Mapping[str, str] | None = None,
    run_id: str = "",
    step_id: str = "",
    parent_step_id: str = "",
    id_ttl_ms: int | None = None,
) -> ProduceItem:
    """A message. Fields of the envelope can be passed one by one; they win over those of `envelope`. A message without
    a key and a partition goes to any partition."""
    if idempotency_key or deadline or retry or tenant or labels or run_id or step_id or parent_step_id:
        changes: dict[str, Any] = {
            "idempotency_key": idempotency_key,
            "deadline": time_text(deadline),
            "retry_policy": retry,
            "tenant_id": tenant,
            "labels": dict(labels) if labels else None,
            "run_id": run_id,
            "step_id": step_id,
            "parent_step_id": parent_step_id,
        }
        changes = {name: change for name, change in changes.items() if change}
        envelope = msgspec.structs.replace(envelope or Envelope(), **changes)
    text, base64_text = content(value)
    placed = key or (envelope is not None and envelope.partition_override is not None)
    return ProduceItem(
        text, base64_text, key, envelope, id, task, priority, delay_ms, time_text(not_before), timeout_ms,
        None if placed else "any", id_ttl_ms,
    )  # fmt: skip


def to_topic(topic: str, message: ProduceItem) -> ProduceRequest:
    """The same message, with its topic: the last field."""
    fields: tuple[Any, ...] = (*msgspec.structs.astuple(message), topic)
    return ProduceRequest(*fields)


def is_keyed(message: ProduceItem) -> bool:
    return bool(message.id or (message.envelope is not None and message.envelope.idempotency_key))


# --- producing --------------------------------------------------------------------------------------------------------


def send(
    topic: str,
    value: Value,
    *,
    key: str = "",
    envelope: Envelope | None = None,
    idempotency_key: str = "",
    task: str = "",
    id: str = "",
    priority: int = 0,
    delay_ms: int = 0,
    not_before: datetime | str | None = None,
    timeout_ms: int = 0,
    deadline: datetime | str | None = None,
    retry: RetryPolicy | None = None,
    tenant: str = "",
    labels: Mapping[str, str] | None = None,
    run_id: str = "",
    step_id: str = "",
    parent_step_id: str = "",
) -> Call[ProduceReply]:
    """Produce one message; it is on disk when this returns.

    Parameters:
        topic: Where to store it. It must exist.
        value: Bytes, text, or anything that JSON can represent.
        key: Chooses the partition: messages of one key keep their order. Without one it goes to any partition.
        envelope: A whole `driftq.Envelope`; the parameters below that belong to it win over its fields.
        idempotency_key: The same key again, within ten minutes, stores nothing and returns the first result.
        task: The name of the work, for workers that claim one task.
        id: The id of a job: looked up by `jobs.find`, and taken until the job has ended.
        priority: 0 to 9; higher ones are delivered first.
        delay_ms: Deliver it this much later, at the earliest.
        not_before: Deliver it at this time, at the earliest: a datetime with a zone, or RFC 3339.
        timeout_ms: How long one attempt may take.
        deadline: After this time it becomes a dead letter instead of being delivered.
        retry: A `driftq.RetryPolicy`: how often and how fast it is retried.
        tenant: Who it belongs to; in a topic with `fair="tenant"` tenants take turns.
        labels: Names and texts for routers and readers.
        run_id: The run that it is a step of.
        step_id: Its step.
        parent_step_id: The step that caused it.

    With an `idempotency_key` or an `id` it is safe to repeat, and repeated by itself when a reply is lost. For many
    messages use `producer`.
    """
    message = item(
        value, key=key, envelope=envelope, idempotency_key=idempotency_key, task=task, id=id, priority=priority,
        delay_ms=delay_ms, not_before=not_before, timeout_ms=timeout_ms, deadline=deadline, retry=retry,
        tenant=tenant, labels=labels, run_id=run_id, step_id=step_id, parent_step_id=parent_step_id,
    )  # fmt: skip
    on_end = None
    if trace.active is not None:
        (message,), on_end = trace.active.sent(topic, [message])
    body = to_topic(topic, message)
    call = post("/v1/produce", body, _read_produced, idempotent=is_keyed(message), lane=f"produce {topic}")
    call.on_end = on_end
    return call


def send_many(topic: str, messages: Iterable[ProduceItem | Value]) -> Call[BatchReply]:
    """Produce up to 10,000 messages in one call; each has its own result.

    Parameters:
        topic: Where to store them.
        messages: Values, or messages with a key and more: `driftq.client.calls.queue.item(value, key=…)`.

    Messages without a key share one partition, and those of the next call get another.
    """
    items = [message if isinstance(message, ProduceItem) else item(message) for message in messages]
    on_end = None
    if trace.active is not None:
        items, on_end = trace.active.sent(topic, items)
    body = ProduceBatchRequest(topic, items)
    call = post("/v1/produce/batch", body, json_reader(BatchReply), idempotent=all(map(is_keyed, items)))
    call.on_end = on_end
    return call


def send_packed(topic: str, partition: int, batch: bytes, *, has_producer: bool) -> Call[PackedReply]:
    path = f"/v1/produce/packed?{urlencode({'topic': topic, 'partition': partition})}"
    return Call(
        "POST",
        path,
        json_reader(PackedReply),
        refusal=refusal,
        body=batch,
        content_type=PACKED_TYPE,
        idempotent=has_producer,
    )  # fmt: skip


# --- settling ---------------------------------------------------------------------------------------------------------


def settle(verb: str, topic: str, group: str, owner: str, held: Sequence[HeldItem], **fields: Any) -> Call[SettleReply]:
    """`verb` is ack/batch, nack/batch, release, reject or extend. Tokens make all of them idempotent."""
    body = SettleRequest(topic, group, list(held), owner, **{k: v for k, v in fields.items() if v is not None})
    return post(f"/v1/{verb}", body, json_reader(SettleReply), idempotent=True)


# --- effects and outcomes ---------------------------------------------------------------------------------------------


def begin_effect(
    topic: str,
    group: str,
    key: str,
    owner: str,
    *,
    tenant: str = "",
    lease_ms: int | None = None,
    partition: int | None = None,
    offset: int | None = None,
    token: str = "",
    fence: int | None = None,
) -> Call[BeginReply]:
    """With the token of the message, or the fence of an earlier begin, the call is idempotent."""
    body = BeginRequest(
        topic=topic, group=group, key=key, owner=owner, tenant_id=tenant, lease_ms=lease_ms, partition=partition,
        offset=offset, token=token, fence=fence,
    )  # fmt: skip
    return post("/v1/idempotency/begin", body, json_reader(BeginReply), idempotent=bool(token or fence is not None))


def fail_effect(topic: str, group: str, key: str, fence: int, reason: str, *, tenant: str = "") -> Call[None]:
    body = FailRequest(topic, group, key, tenant, fence=fence, reason=reason)
    return post("/v1/idempotency/fail", body, no_body, idempotent=True)


def find_effect(topic: str, group: str, key: str, *, tenant: str = "") -> Call[dict[str, Any]]:
    """The state of an effect: pending, committed with its result, or failed."""
    query = {"topic": topic, "group": group, "key": key, "tenant_id": tenant}
    return get("/v1/idempotency", dict[str, Any], query)


def outcome(
    *,
    acks: Sequence[OutcomeAck] = (),
    produce: Sequence[tuple[str, ProduceItem]] = (),
    streams: Sequence[OutcomeAppend] = (),
    commits: Sequence[CommitRequest] = (),
    idempotency_key: str = "",
) -> Call[dict[str, Any]]:
    """All of it is stored, or nothing. The broker recognises a repeat by its acks and commits, or by the key."""
    requests = tuple(to_topic(topic, message) for topic, message in produce)
    body = OutcomeRequest(tuple(acks), requests, tuple(streams), tuple(commits), idempotency_key)
    keyed = all(map(is_keyed, requests)) and all(append.producer_id for append in streams)
    idempotent = bool(acks or commits or idempotency_key) or keyed
    return post("/v1/outcome", body, json_reader(dict[str, Any]), idempotent=idempotent)
