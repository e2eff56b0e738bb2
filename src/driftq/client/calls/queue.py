"""Calls as pure functions, arguments in, `Call` out: produce, claim, settle, effects, outcomes. Both clients send what
is built here.

Nothing here sends, waits or remembers. What surrounds the queue is in `admincalls`, streams are in `streamcalls`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from driftq.client.errors import InvalidCall, Refused, refused
from driftq.client.transport.sansio import Call
from driftq.wire.claims import ClaimReply, SettleReply
from driftq.wire.effects import BeginReply
from driftq.wire.errors import code_of
from driftq.wire.message import Envelope, RetryPolicy
from driftq.wire.produce import PACKED_TYPE, BatchReply, PackedReply, ProduceItem, ProduceReply

if TYPE_CHECKING:
    from driftq.client.transport.http import HttpReply

T = TypeVar("T")
Value = Any  # bytes and str go as they are; anything else goes as JSON

encode = msgspec.json.Encoder().encode
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


# --- reading ----------------------------------------------------------------------------------------------------------


def decoded(reply: HttpReply, kind: Any) -> Any:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder.decode(reply.body)


def reading(kind: type[T]) -> Callable[[HttpReply], T]:
    return lambda reply: decoded(reply, kind)


def nothing(reply: HttpReply) -> None:
    return None


def retry_after_ms(reply: HttpReply) -> int | None:
    """`Retry-After` in seconds or as a date, as proxies write it."""
    text = reply.headers.get("retry-after")
    if text is None:
        return None
    if text.strip().isdecimal():
        return int(text) * 1_000
    from email.utils import parsedate_to_datetime  # noqa: PLC0415  # heavy, and our own broker never needs it

    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0, int((at - datetime.now(UTC)).total_seconds() * 1_000))


def refusal(reply: HttpReply) -> Refused:
    """The broker's refusals are JSON; whatever stands between may answer with anything."""
    try:
        body = msgspec.json.decode(reply.body, type=dict[str, Any])
    except msgspec.DecodeError:
        body = {}
    message = str(body.pop("message", "") or reply.body[:200].decode("utf-8", "replace").strip() or "no reason given")
    word = str(body.pop("error", ""))
    after_ms = body.get("retry_after_ms", retry_after_ms(reply))
    return refused(code_of(word, reply.status), message, reply.status, body, after_ms)


# --- building ---------------------------------------------------------------------------------------------------------


def get(path: str, kind: type[T], query: Mapping[str, object] | None = None, wait_ms: int = 0) -> Call[T]:
    given = {name: value for name, value in (query or {}).items() if value not in (None, "")}
    full = f"{path}?{urlencode(given)}" if given else path
    return Call("GET", full, reading(kind), refusal=refusal, idempotent=True, wait_ms=wait_ms)


def post(
    path: str, body: object, read: Callable[[HttpReply], T], *, idempotent: bool = False, wait_ms: int = 0
) -> Call[T]:
    return Call("POST", path, read, refusal=refusal, body=encode(body), idempotent=idempotent, wait_ms=wait_ms)


def plain(method: str, path: str) -> Call[None]:
    return Call(method, path, nothing, refusal=refusal, idempotent=True)


def given(**fields: object) -> dict[str, object]:
    """Only what was said: the broker has its own defaults."""
    return {name: value for name, value in fields.items() if value is not None}


def segment(name: str) -> str:
    return quote(name, safe="")


def content(value: Value) -> tuple[str | None, str | None]:
    """(value, value_base64) of a message: text where it is text."""
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


def time_text(at: datetime | str | None) -> str:
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidCall(f"{at} has no time zone; use datetime.now(UTC) or the like")
        return at.isoformat(timespec="milliseconds")
    return at or ""


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
) -> ProduceItem:
    """A message. The words of the envelope can be given one by one, over those of an envelope. Without a key and a
    partition it goes to any partition, as the broker chooses."""
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
    if changes:
        envelope = msgspec.structs.replace(envelope or Envelope(), **changes)
    text, base64_text = content(value)
    placed = key or (envelope is not None and envelope.partition_override is not None)
    return ProduceItem(
        text, base64_text, key, envelope, id, task, priority, delay_ms, time_text(not_before), timeout_ms,
        None if placed else "any",
    )  # fmt: skip


def body_of(message: ProduceItem, **more: object) -> dict[str, object]:
    built: dict[str, object] = msgspec.to_builtins(message)
    if message.value is None:
        built.pop("value", None)
    return built | more


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
    """Produce one message; it is on disk when this returns. Without a key it goes to any partition.

    With an `idempotency_key` (or a job's `id`) it is safe to repeat, and repeated by itself when an answer is lost.
    For many messages use `producer`.
    """
    message = item(
        value, key=key, envelope=envelope, idempotency_key=idempotency_key, task=task, id=id, priority=priority,
        delay_ms=delay_ms, not_before=not_before, timeout_ms=timeout_ms, deadline=deadline, retry=retry,
        tenant=tenant, labels=labels, run_id=run_id, step_id=step_id, parent_step_id=parent_step_id,
    )  # fmt: skip
    return post("/v1/produce", body_of(message, topic=topic), reading(ProduceReply), idempotent=is_keyed(message))


def send_many(topic: str, messages: Iterable[ProduceItem | Value]) -> Call[BatchReply]:
    """Produce up to 10,000 messages in one call; each has its own result. `calls.item` makes one with a key.

    Messages without a key share one partition, and those of the next call get another.
    """
    items = [each if isinstance(each, ProduceItem) else item(each) for each in messages]
    body = {"topic": topic, "messages": [body_of(each) for each in items]}
    idempotent = all(map(is_keyed, items))
    return post("/v1/produce/batch", body, reading(BatchReply), idempotent=idempotent)


def send_packed(topic: str, partition: int, batch: bytes, *, has_producer: bool) -> Call[PackedReply]:
    path = f"/v1/produce/packed?{urlencode({'topic': topic, 'partition': partition})}"
    return Call(
        "POST",
        path,
        reading(PackedReply),
        refusal=refusal,
        body=batch,
        content_type=PACKED_TYPE,
        idempotent=has_producer,
    )  # fmt: skip


# --- claiming and settling --------------------------------------------------------------------------------------------


def claim(
    topic: str,
    group: str,
    owner: str,
    *,
    max: int = 1,
    wait_ms: int = 0,
    lease_ms: int | None = None,
    start: str = "earliest",
    task: str | None = None,
    label: str | None = None,
) -> Call[ClaimReply]:
    """Take up to `max` messages under a lease. A claim whose answer is lost costs a delivery, never a message."""
    body = given(
        topic=topic, group=group, owner=owner, max=max, wait_ms=wait_ms, lease_ms=lease_ms, start=start, task=task,
        label=label,
    )  # fmt: skip
    return post("/v1/claim", body, reading(ClaimReply), idempotent=True, wait_ms=wait_ms)


def settle(
    verb: str, topic: str, group: str, owner: str, held: Sequence[Mapping[str, object]], **more: object
) -> Call[SettleReply]:
    """`verb` is ack/batch, nack/batch, release, reject or extend. Tokens make all of them safe to repeat."""
    body = given(topic=topic, group=group, owner=owner, messages=held, **more)
    return post(f"/v1/{verb}", body, reading(SettleReply), idempotent=True)


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
    """With the token of the message, or the fence of an earlier begin, a repeat is granted again."""
    body = given(
        topic=topic, group=group, key=key, owner=owner, tenant_id=tenant, lease_ms=lease_ms, partition=partition,
        offset=offset, token=token or None, fence=fence,
    )  # fmt: skip
    return post("/v1/idempotency/begin", body, reading(BeginReply), idempotent=bool(token or fence is not None))


def fail_effect(topic: str, group: str, key: str, fence: int, reason: str, *, tenant: str = "") -> Call[None]:
    body = {"topic": topic, "group": group, "key": key, "fence": fence, "reason": reason, "tenant_id": tenant}
    return post("/v1/idempotency/fail", body, nothing, idempotent=True)


def find_effect(topic: str, group: str, key: str, *, tenant: str = "") -> Call[dict[str, Any]]:
    query = {"topic": topic, "group": group, "key": key, "tenant_id": tenant}
    return get("/v1/idempotency", dict[str, Any], query)


def outcome(
    *,
    acks: Sequence[Mapping[str, object]] = (),
    produce: Sequence[tuple[str, ProduceItem]] = (),
    streams: Sequence[Mapping[str, object]] = (),
    commits: Sequence[Mapping[str, object]] = (),
    idempotency_key: str = "",
) -> Call[dict[str, Any]]:
    """All of it, or nothing. The broker recognises a repeat by its acks and commits, or by the key."""
    body = given(
        acks=acks or None,
        produce=[body_of(message, topic=topic) for topic, message in produce] or None,
        streams=streams or None,
        commits=commits or None,
        idempotency_key=idempotency_key or None,
    )
    keyed = all(is_keyed(message) for _, message in produce) and all("producer_id" in each for each in streams)
    idempotent = bool(acks or commits or idempotency_key) or keyed
    return post("/v1/outcome", body, reading(dict[str, Any]), idempotent=idempotent)
