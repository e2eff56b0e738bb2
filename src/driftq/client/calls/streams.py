"""Calls of durable streams as pure functions, and their replies. Errors of streams are texts; headers have details."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from driftq.client.calls.filters import time_text
from driftq.client.calls.queue import Value, encode, get, json_reader, post, raw_bytes, retry_after_ms
from driftq.client.endpoint import Page, Pages
from driftq.client.errors import Refused, refused
from driftq.client.transport.sansio import Call
from driftq.wire import streams as w
from driftq.wire.errors import Code, stream_code_of

if TYPE_CHECKING:
    from driftq.client.transport.http import HttpReply


class StreamInfo(NamedTuple):
    """`next_offset` is where the stream ends. `created`: it was not there before."""

    path: str
    content_type: str
    next_offset: str
    closed: bool = False
    created: bool = False
    ttl_s: int | None = None
    expires_at: str = ""


class ReadChunk(NamedTuple):
    """A piece of a stream. `next_offset` is where to read on; `up_to_date`: this was the end just now."""

    data: bytes
    content_type: str
    next_offset: str
    up_to_date: bool
    closed: bool
    cursor: str = ""

    def json(self, kind: Any = Any) -> list[Any]:
        """The messages of a JSON stream, each checked against a type if one is given."""
        return msgspec.json.decode(self.data or b"[]", type=list[kind])

    @property
    def text(self) -> str:
        return self.data.decode()

    @property
    def empty(self) -> bool:
        return not self.data or (w.is_json(self.content_type) and self.data.strip() == b"[]")


class AppendReply(NamedTuple):
    next_offset: str
    closed: bool = False
    duplicate: bool = False


def stream_path(path: str) -> str:
    return w.ROOT + quote(path.strip("/"), safe="/")


# --- reading ----------------------------------------------------------------------------------------------------------


def refusal(reply: HttpReply) -> Refused:
    headers = reply.headers
    details: dict[str, Any] = {}
    code = stream_code_of(reply.status)
    if reply.status == 403 and w.PRODUCER_EPOCH.lower() not in headers:
        code = Code.INVALID_ARGUMENT
    if w.EXPECTED_SEQ.lower() in headers:
        code = Code.SEQUENCE_GAP
        details["expected_seq"] = int(headers[w.EXPECTED_SEQ.lower()])
    if w.PRODUCER_EPOCH.lower() in headers:
        details["epoch"] = int(headers[w.PRODUCER_EPOCH.lower()])
    if w.NEXT_OFFSET.lower() in headers:
        details["next_offset"] = headers[w.NEXT_OFFSET.lower()]
    if w.EARLIEST_OFFSET.lower() in headers:
        details["earliest_offset"] = headers[w.EARLIEST_OFFSET.lower()]
    if _is_true(headers.get(w.CLOSED.lower())) and reply.status == 409:
        code = Code.CLOSED
    message = reply.body.decode("utf-8", "replace").strip() or "no reason given"
    return refused(code, message, reply.status, details, retry_after_ms(reply))


def _is_true(text: str | None) -> bool:
    return (text or "").lower() == "true"


def _info(path: str, reply: HttpReply) -> StreamInfo:
    headers = reply.headers
    ttl = headers.get(w.TTL.lower())
    return StreamInfo(
        path,
        headers.get("content-type", w.DEFAULT_TYPE),
        headers[w.NEXT_OFFSET.lower()],
        _is_true(headers.get(w.CLOSED.lower())),
        reply.status == 201,
        int(ttl) if ttl is not None else None,
        headers.get(w.EXPIRES_AT.lower(), ""),
    )


def _chunk(reply: HttpReply) -> ReadChunk:
    headers = reply.headers
    return ReadChunk(
        bytes(reply.body),
        headers.get("content-type", w.DEFAULT_TYPE),
        headers[w.NEXT_OFFSET.lower()],
        _is_true(headers.get(w.UP_TO_DATE.lower())),
        _is_true(headers.get(w.CLOSED.lower())),
        headers.get(w.CURSOR.lower(), ""),
    )


def _appended(reply: HttpReply) -> AppendReply:
    headers = reply.headers
    has_producer = w.PRODUCER_SEQ.lower() in headers
    return AppendReply(
        headers.get(w.NEXT_OFFSET.lower(), ""),
        _is_true(headers.get(w.CLOSED.lower())),
        has_producer and reply.status == 204,
    )


# --- building ---------------------------------------------------------------------------------------------------------


def body_of(content_type: str, values: Iterable[Value]) -> bytes:
    """Values as one append. In a JSON stream each is one message, and bytes are JSON already."""
    if w.is_json(content_type):
        return w.join_json([value if isinstance(value, bytes) else encode(value) for value in values])
    return b"".join(raw_bytes(value) for value in values)


def create(
    path: str,
    *,
    content_type: str = w.DEFAULT_TYPE,
    ttl_s: int | None = None,
    expires_at: datetime | str | None = None,
    data: Iterable[Value] = (),
    closed: bool = False,
    retention_s: int = 0,
    retention_bytes: int = 0,
    forked_from: str = "",
    fork_offset: str = "",
) -> Call[StreamInfo]:
    headers = [
        (w.TTL, str(ttl_s) if ttl_s is not None else ""),
        (w.EXPIRES_AT, time_text(expires_at)),
        (w.CLOSED, "true" if closed else ""),
        (w.RETENTION_SECONDS, str(retention_s) if retention_s else ""),
        (w.RETENTION_BYTES, str(retention_bytes) if retention_bytes else ""),
        (w.FORKED_FROM, stream_path(forked_from) if forked_from else ""),
        (w.FORK_OFFSET, fork_offset),
    ]
    values = list(data)
    return Call(
        "PUT",
        stream_path(path),
        lambda reply: _info(path, reply),
        refusal=refusal,
        body=body_of(content_type, values) if values else b"",
        content_type=content_type,
        headers=tuple(pair for pair in headers if pair[1]),
        idempotent=True,
    )


def describe(path: str) -> Call[StreamInfo]:
    return Call("HEAD", stream_path(path), lambda reply: _info(path, reply), refusal=_missing(path), idempotent=True)


def _missing(path: str) -> Callable[[HttpReply], Refused]:
    """The refusal of a HEAD: its answer has no body, so the reason is written here."""
    reasons = {404: f"there is no stream {path}", 410: f"stream {path} was there and is gone"}

    def read(reply: HttpReply) -> Refused:
        return refusal(reply._replace(body=reply.body or reasons.get(reply.status, "").encode()))

    return read


def delete(path: str) -> Call[None]:
    return Call("DELETE", stream_path(path), lambda _: None, refusal=refusal, idempotent=True)


def read(
    path: str, offset: str = w.START, *, live: bool = False, cursor: str = "", wait_ms: int = 0
) -> Call[ReadChunk]:
    query = {"cursor": cursor, "live": "long-poll" if live else "", "offset": offset}
    text = urlencode({name: value for name, value in query.items() if value})
    return Call("GET", f"{stream_path(path)}?{text}", _chunk, refusal=refusal, idempotent=True, wait_ms=wait_ms)


def events(path: str, offset: str, cursor: str = "") -> Call[None]:
    """A live read as server-sent events, to be opened."""
    query = {"cursor": cursor, "live": "sse", "offset": offset}
    text = urlencode({name: value for name, value in query.items() if value})
    return Call("GET", f"{stream_path(path)}?{text}", lambda _: None, refusal=refusal, idempotent=True)


def append(
    path: str,
    body: bytes,
    content_type: str,
    *,
    if_match: str = "",
    seq: str = "",
    close: bool = False,
    producer: tuple[str, int, int] | None = None,
) -> Call[AppendReply]:
    """Only an append with a producer, or one that closes and no more, can be repeated without harm."""
    headers = [("If-Match", f'"{if_match}"' if if_match else ""), (w.SEQ, seq), (w.CLOSED, "true" if close else "")]
    if producer is not None:
        name, epoch, number = producer
        headers += [(w.PRODUCER_ID, name), (w.PRODUCER_EPOCH, str(epoch)), (w.PRODUCER_SEQ, str(number))]
    return Call(
        "POST",
        stream_path(path),
        _appended,
        refusal=refusal,
        body=body,
        content_type=content_type if body else "",
        headers=tuple(pair for pair in headers if pair[1]),
        idempotent=producer is not None or (close and not body and not if_match),
    )


def list_streams(prefix: str = "", *, after: str = "", limit: int = 100) -> Call[w.StreamsReply]:
    """Streams by path, a page at a time: hand `after` of the last page back."""
    return get("/v1/streams", w.StreamsReply, {"prefix": prefix, "after": after, "limit": limit})


def each_stream(prefix: str = "", *, limit: int | None = None) -> Pages[w.ListedStream]:
    """Every stream whose path begins with a prefix, in order."""

    def call(after: str, size: int) -> Call[Page[w.ListedStream]]:
        asked = list_streams(prefix, after=after, limit=size)
        return Call("GET", asked.path, lambda reply: _page(asked.read(reply)), refusal=refusal, idempotent=True)

    return Pages(call, limit)


def _page(page: w.StreamsReply) -> Page[w.ListedStream]:
    return Page(page.streams, page.after)


def trim(path: str, before: str) -> Call[dict[str, Any]]:
    """Delete everything before an offset."""
    return post(
        "/v1/streams/trim", w.TrimRequest(path.strip("/"), before), json_reader(dict[str, Any]), idempotent=True
    )
