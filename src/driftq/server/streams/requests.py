"""Requests of the durable-streams API as commands: headers are parsed, bodies are packed into records.

Pure. What a client can get wrong here is a `BadRequest`; what depends on the stream is left to the broker.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import google_crc32c

from driftq.core.model import commands as c
from driftq.core.model.facts import ProducerSequence
from driftq.core.state.producers import SERVER_EPOCH
from driftq.server.http import BadRequest, Request
from driftq.server.http.request import percent_decoded
from driftq.wire import streams as w
from driftq.wire.fields import from_rfc3339
from driftq.wire.records import COUNT_MAX, pack_columns, pack_one

PATH_BYTES_MAX = 1_024
PRODUCER_BYTES_MAX = 256
SEQ_BYTES_MAX = 1_024
RESERVED = (w.CONTROL, w.TOPICS)


_NAMES = (
    "Content-Type", "If-Match", w.CLOSED, w.SEQ, w.TTL, w.EXPIRES_AT, w.FORKED_FROM, w.FORK_OFFSET, w.FORK_SUB_OFFSET,
    w.PRODUCER_GAPS, w.RETENTION_SECONDS, w.RETENTION_BYTES,
)  # fmt: skip
_RAW_NAMES = {name: name.lower().encode() for name in _NAMES}
_DECLARED = frozenset((b"producer-id", b"producer-epoch", b"producer-seq"))
_MANAGED = frozenset((b"x-producer-id", b"x-producer-epoch", b"x-producer-seq"))


class Dialect(Enum):
    """Which family of headers an append uses; its response uses the same."""

    PLAIN = "no producer"
    DECLARED = "Producer-*: the client declares its epoch"
    MANAGED = "X-Producer-*: the server may manage epochs"


class PackedBody(NamedTuple):
    """A body as records."""

    batch: bytes
    count: int  # type: ignore[assignment]  # hides a method of tuple, which is not used


NOTHING = PackedBody(b"", 0)


def field(request: Request, name: str) -> str | None:
    raw = request.head.fields.get(_RAW_NAMES[name])
    return raw.decode("latin-1").strip(" \t") if raw is not None else None


def path_of(raw: bytes) -> str:
    """The name of a stream: the path below the root, without its escapes."""
    path = percent_decoded(raw)
    if not 0 < len(raw) <= 3 * PATH_BYTES_MAX or len(path.encode()) > PATH_BYTES_MAX:
        raise BadRequest(f"a stream's path has 1 to {PATH_BYTES_MAX} bytes")
    if not path.isprintable() and any(character < " " or character == "\x7f" for character in path):
        raise BadRequest("control character in the path")
    return path


def is_true(text: str | None) -> bool:
    """Only `true` counts, in any case; everything else is false."""
    return text is not None and text.lower() == "true"


# --- creating ---------------------------------------------------------------------------------------------------------


def create_command(request: Request, path: str) -> c.CreateStream:
    ttl_s, expires_at_ms, expires_text = _lifetime(request)
    source, fork_offset, fork_sub_offset = _fork(request)
    declared = field(request, "Content-Type") or ""
    content_type = declared if w.is_media_type(declared) else ""
    gaps = (field(request, w.PRODUCER_GAPS) or "").lower()
    if gaps not in ("", "allow", "refuse"):
        raise BadRequest(f"{w.PRODUCER_GAPS} is `allow` or `refuse`")
    body = request.body
    packed = packed_body(content_type, body, empty_allowed=True) if body else NOTHING
    return c.CreateStream(
        path,
        content_type,
        ttl_s,
        expires_at_ms,
        expires_text,
        is_true(field(request, w.CLOSED)),
        source,
        fork_offset,
        fork_sub_offset,
        packed.batch,
        packed.count,
        len(body) if packed.count else 0,
        gaps == "allow",
        1_000 * _size(request, w.RETENTION_SECONDS),
        _size(request, w.RETENTION_BYTES),
    )


def _lifetime(request: Request) -> tuple[int | None, int | None, str]:
    ttl_text, expires_text = field(request, w.TTL), field(request, w.EXPIRES_AT)
    if ttl_text is not None and expires_text is not None:
        raise BadRequest(f"{w.TTL} and {w.EXPIRES_AT} exclude each other")
    if ttl_text is not None:
        ttl_s = w.plain_number(ttl_text)
        if ttl_s is None:
            raise BadRequest(f"{w.TTL} is a number of seconds, digits without a leading zero")
        return ttl_s, None, ""
    if expires_text is None:
        return None, None, ""
    try:
        return None, from_rfc3339(expires_text), expires_text
    except (ValueError, OverflowError):
        raise BadRequest(f"{w.EXPIRES_AT} is an RFC 3339 time with a zone") from None


def _fork(request: Request) -> tuple[str | None, int | None, int | None]:
    source, offset, sub_offset = (field(request, name) for name in (w.FORKED_FROM, w.FORK_OFFSET, w.FORK_SUB_OFFSET))
    if source is None:
        if offset is not None or sub_offset is not None:
            raise BadRequest(f"{w.FORK_OFFSET} and {w.FORK_SUB_OFFSET} need {w.FORKED_FROM}")
        return None, None, None
    if not source.startswith(w.ROOT):
        raise BadRequest(f"{w.FORKED_FROM} is the path of a stream, {w.ROOT}…")
    at = sub = None
    if offset is not None:
        at = 0 if offset == w.START else w.offset_of(offset)
        if at is None:
            raise BadRequest(f"{w.FORK_OFFSET} is not an offset")
    if sub_offset is not None:
        sub = w.plain_number(sub_offset)
        if sub is None:
            raise BadRequest(f"{w.FORK_SUB_OFFSET} is a number, digits without a leading zero")
    return path_of(source[len(w.ROOT) :].encode("latin-1")), at, sub


def _size(request: Request, name: str) -> int:
    text = field(request, name)
    if text is None:
        return 0
    value = w.plain_number(text)
    if not value:
        raise BadRequest(f"{name} is a positive number")
    return value


# --- appending --------------------------------------------------------------------------------------------------------


def packed_body(content_type: str, body: bytes, *, empty_allowed: bool = False) -> PackedBody:
    """A body as the records of one append. JSON is split into its messages, anything else is one record."""
    if not w.is_json(content_type):
        return PackedBody(pack_one(body), 1)
    try:
        messages = w.json_messages(body)
    except w.NotJson as error:
        raise BadRequest(f"not JSON: {error}") from None
    if not messages:
        if empty_allowed:
            return NOTHING
        raise BadRequest("an empty array appends nothing")
    if len(messages) == 1:
        return PackedBody(pack_one(bytes(messages[0])), 1)
    if len(messages) > COUNT_MAX:
        raise BadRequest(f"{len(messages)} messages in one append; at most {COUNT_MAX} are allowed", 413)
    return PackedBody(pack_columns(messages), len(messages))


def packed_for(stream_type: str | None, content_type: str, body: bytes) -> PackedBody:
    """A body as the records of an append to a stream of `stream_type`. A body of another type is refused anyway and
    not parsed."""
    fits = stream_type == content_type or (
        stream_type is not None and w.media_type(stream_type) == w.media_type(content_type)
    )
    return packed_body(content_type, body) if fits else PackedBody(pack_one(body), 1)


class AppendRequest(NamedTuple):
    """An append, and the dialect of its response."""

    command: c.AppendStream
    dialect: Dialect


def append_command(request: Request, path: str, stream_type: str | None) -> AppendRequest:
    """`stream_type` is the content type of the stream; None if there is no such stream: then the broker refuses."""
    close = is_true(field(request, w.CLOSED))
    producer, dialect = _producer(request)
    body = request.body
    content_type = field(request, "Content-Type") or ""
    packed = NOTHING
    if body:
        if not content_type:
            raise BadRequest("an append needs a Content-Type")
        packed = packed_for(stream_type, content_type, body)
    elif not close:
        raise BadRequest("an append needs a body, unless it closes the stream")
    stream_seq = field(request, w.SEQ) or ""
    if len(stream_seq) > SEQ_BYTES_MAX:
        raise BadRequest(f"{w.SEQ} has at most {SEQ_BYTES_MAX} bytes")
    command = c.AppendStream(
        path, content_type, packed.batch, packed.count, len(body), producer, stream_seq, _if_match(request), close
    )
    return AppendRequest(command, dialect)


def _producer(request: Request) -> tuple[ProducerSequence | None, Dialect]:
    fields = request.head.fields
    if _DECLARED.isdisjoint(fields) and _MANAGED.isdisjoint(fields):
        return None, Dialect.PLAIN
    declared = [fields.get(name) for name in (b"producer-id", b"producer-epoch", b"producer-seq")]
    managed = [fields.get(name) for name in (b"x-producer-id", b"x-producer-epoch", b"x-producer-seq")]
    if managed == [None, None, None]:
        if None in declared:
            raise BadRequest(f"{w.PRODUCER_ID}, {w.PRODUCER_EPOCH} and {w.PRODUCER_SEQ} belong together")
        return _by(request, declared), Dialect.DECLARED
    if declared != [None, None, None]:
        raise BadRequest("Producer-* and X-Producer-* exclude each other")
    if managed[0] is None or managed[2] is None:
        raise BadRequest(f"{w.X_PRODUCER_ID} and {w.X_PRODUCER_SEQ} belong together")
    return _by(request, managed), Dialect.MANAGED


def _by(request: Request, values: list[bytes | None]) -> ProducerSequence:
    name, epoch_text, seq_text = ((value or b"").strip(b" \t").decode("utf-8", "replace") for value in values)
    if not name or len(name.encode()) > PRODUCER_BYTES_MAX:
        raise BadRequest(f"a producer's id has 1 to {PRODUCER_BYTES_MAX} bytes")
    seq = w.safe_integer(seq_text)
    epoch = w.safe_integer(epoch_text) if values[1] is not None else SERVER_EPOCH
    if seq is None or epoch is None:
        raise BadRequest("epoch and seq are digits, at most 2^53-1")
    # The name of a session is a part of the checksum: a restart whose first batch is the same is then recognised.
    session = request.head.fields.get(b"x-producer-session", b"") if epoch == SERVER_EPOCH else b""
    digest = google_crc32c.value(session + b"\0" + request.body if session else request.body)
    return ProducerSequence(name, epoch, seq, digest)


def _if_match(request: Request) -> int | None:
    text = field(request, "If-Match")
    if text is None:
        return None
    if len(text) > 1 and text[0] == text[-1] == '"':
        text = text[1:-1]
    offset = w.offset_of(text)
    if offset is None:
        raise BadRequest("If-Match is the offset at which the stream must end")
    return offset


def is_reserved(path: str) -> bool:
    return path.partition("/")[0] in RESERVED
