"""The Durable Streams protocol: header names, offset tokens, media types, JSON mode; and the bodies of `/v1/streams`.

An offset token is two groups of sixteen digits. The second is the record offset; the first is zero in every token that
we make, so that a token of nines lies after the end of any stream. Clients treat tokens as opaque.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, NoReturn
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from driftq.wire.fields import SAFE_INTEGER_MAX, Body

ROOT = "/v1/stream/"
CONTROL = "__ds"  # the first segment that is reserved for the protocol
TOPICS = "__topics"  # the first segment of partitions of topics, which can be read as streams

TTL = "Stream-TTL"
EXPIRES_AT = "Stream-Expires-At"
CLOSED = "Stream-Closed"
SEQ = "Stream-Seq"
FORKED_FROM = "Stream-Forked-From"
FORK_OFFSET = "Stream-Fork-Offset"
FORK_SUB_OFFSET = "Stream-Fork-Sub-Offset"
NEXT_OFFSET = "Stream-Next-Offset"
UP_TO_DATE = "Stream-Up-To-Date"
CURSOR = "Stream-Cursor"
SSE_ENCODING = "Stream-SSE-Data-Encoding"
PRODUCER_ID = "Producer-Id"
PRODUCER_EPOCH = "Producer-Epoch"
PRODUCER_SEQ = "Producer-Seq"
EXPECTED_SEQ = "Producer-Expected-Seq"
RECEIVED_SEQ = "Producer-Received-Seq"
WEBHOOK_SIGNATURE = "Webhook-Signature"

# An earlier dialect of the protocol, in which the server may assign epochs.
X_PRODUCER_ID = "X-Producer-Id"
X_PRODUCER_EPOCH = "X-Producer-Epoch"
X_PRODUCER_SEQ = "X-Producer-Seq"
X_SESSION = "X-Producer-Session"
X_OFFSET = "X-Stream-Offset"
X_EXPECTED_SEQ = "X-Expected-Seq"
X_RECEIVED_SEQ = "X-Received-Seq"
X_ERROR = "X-Error"
X_CURRENT_EPOCH = "X-Current-Epoch"

# DriftQ's own additions.
PRODUCER_GAPS = "Stream-Producer-Gaps"
RETENTION_SECONDS = "Stream-Retention-Seconds"
RETENTION_BYTES = "Stream-Retention-Bytes"
EARLIEST_OFFSET = "Stream-Earliest-Offset"

DEFAULT_TYPE = "application/octet-stream"
JSON_TYPE = "application/json"
SSE_TYPE = "text/event-stream"

START = "-1"
NOW = "now"

_TOKEN = re.compile(r"([0-9]{16})_([0-9]{16})", re.ASCII)
_DIGITS = re.compile(r"[0-9]{1,16}", re.ASCII)
_PLAIN_NUMBER = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)
_MEDIA_TYPE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*;[\t\x20-\x7e]*)?", re.ASCII)
CONTENT_TYPE_CHARACTERS_MAX = 255


class NotJson(Exception):
    """A body that should be JSON is not; the message is the reason."""


def quoted(segment: str) -> str:
    """A name as one segment of a path."""
    return quote(segment, safe="")


# --- offsets and numbers ----------------------------------------------------------------------------------------------


def token(offset: int) -> str:
    """The token of a record offset. Tokens sort as text in the order of their offsets."""
    return f"0000000000000000_{offset:016d}"


def offset_of(text: str) -> int | None:
    """The record offset of a token, or None for anything else."""
    match = _TOKEN.fullmatch(text)
    return int(match[1]) * 10**16 + int(match[2]) if match is not None else None


def plain_number(text: str) -> int | None:
    """A lifetime or a size: digits without a leading zero."""
    return int(text) if _PLAIN_NUMBER.fullmatch(text) else None


def safe_integer(text: str) -> int | None:
    """An epoch or a sequence number: digits, at most what a double holds exactly."""
    if not _DIGITS.fullmatch(text):
        return None
    value = int(text)
    return value if value <= SAFE_INTEGER_MAX else None


# --- media types ------------------------------------------------------------------------------------------------------


def media_type(content_type: str) -> str:
    """The type without parameters and in lower case, for comparison."""
    return content_type.partition(";")[0].strip().lower()


def is_media_type(content_type: str) -> bool:
    return len(content_type) <= CONTENT_TYPE_CHARACTERS_MAX and _MEDIA_TYPE.fullmatch(content_type) is not None


def is_json(content_type: str) -> bool:
    return media_type(content_type) == JSON_TYPE


def is_text(content_type: str) -> bool:
    """Whether the stream's bytes can be sent in an SSE event unencoded."""
    plain_type = media_type(content_type)
    return plain_type.startswith("text/") or plain_type == JSON_TYPE


# --- JSON mode --------------------------------------------------------------------------------------------------------

_elements = msgspec.json.Decoder(list[msgspec.Raw])
_value = msgspec.json.Decoder(msgspec.Raw)
_WHITESPACE = " \t\n\r"


def json_messages(body: bytes) -> Sequence[bytes]:
    """The messages of a JSON body: the elements of a top-level array, or the one value that it is.

    Each is a slice of the body, not a copy, so numbers of any size, key order and escapes survive. Raises `NotJson`.
    """
    try:
        if not body.isascii():
            body.decode()
        if body[:1] == b"[" or body.lstrip()[:1] == b"[":
            return _elements.decode(body)
        return [_value.decode(body)]
    except UnicodeDecodeError:
        raise NotJson("the body is not UTF-8") from None
    except msgspec.DecodeError as error:
        # JavaScript may escape half a surrogate pair. The strict parser refuses that; the lenient one accepts it.
        return _split_leniently(body, str(error))
    except RecursionError:
        raise NotJson("the body is nested too deeply") from None


def check_messages(messages: Sequence[bytes]) -> None:
    """Check that each of these is one JSON value, as the elements of an array are. Raises `NotJson` for the first that
    is not."""
    joined = join_json(messages)
    try:
        joined.decode()
        if list(map(bytes, _elements.decode(joined))) == messages:
            return
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # the loop below finds the one that is wrong
    for index, message in enumerate(messages):
        try:
            count = len(json_messages(join_json([message])))
        except NotJson as error:
            raise NotJson(f"record {index}: {error}") from None
        if count != 1:
            raise NotJson(f"record {index} holds {count} values; each record is one")


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_lenient = json.JSONDecoder(parse_constant=_refuse_constant)


def _split_leniently(body: bytes, reason: str) -> list[bytes]:
    text = body.decode()
    try:
        if text.lstrip(_WHITESPACE)[:1] != "[":
            _lenient.decode(text)
            return [text.strip(_WHITESPACE).encode()]
        return _elements_of(text)
    except RecursionError:
        raise NotJson("the body is nested too deeply") from None
    except ValueError:
        raise NotJson(reason) from None


def _elements_of(text: str) -> list[bytes]:
    elements: list[bytes] = []
    at = _skip(text, _skip(text, 0) + 1)
    if text[at : at + 1] == "]":
        at += 1
    else:
        while True:
            _, end = _lenient.raw_decode(text, at)
            elements.append(text[at:end].encode())
            at = _skip(text, end)
            mark = text[at : at + 1]
            if mark not in (",", "]"):
                raise ValueError("expected , or ]")
            at = _skip(text, at + 1)
            if mark == "]":
                break
    if _skip(text, at) != len(text):
        raise ValueError("the array is followed by something else")
    return elements


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _WHITESPACE:
        at += 1
    return at


def join_json(messages: Sequence[bytes]) -> bytes:
    """Messages as one JSON array, byte for byte as they were appended."""
    return b"[%b]" % b",".join(messages)


# --- bodies -----------------------------------------------------------------------------------------------------------


class ListedStream(Struct, frozen=True):
    """A stream of the list; `next_offset` is its end."""

    stream: str
    content_type: str
    next_offset: str
    closed: bool
    created_at: str


class StreamFigures(Struct, frozen=True):
    """A stream in a list with details. `size_bytes` is about what it holds itself, without what a fork reads from its
    source; `readers` are the live ones now."""

    stream: str
    start_offset: str
    size_bytes: int
    last_write: str | None
    readers: int
    producers: int
    forks: int
    forked_from: str | None
    expires_at: str | None


class StreamsReply(Struct, frozen=True):
    """`after` starts the next page; it is null on the last page. With `details=true` there are `figures` for each
    stream."""

    streams: list[ListedStream]
    after: str | None = None
    figures: list[StreamFigures] | UnsetType = UNSET


class TrimRequest(Body, frozen=True):
    """Delete everything before an offset of a stream."""

    stream: Annotated[str, Meta(min_length=1)]
    before: str


class TrimReply(Struct, frozen=True):
    """`trimmed` is false if the stream started there before."""

    stream: str
    earliest_offset: str
    trimmed: bool


class ProducerReply(Struct, frozen=True):
    """The last append of an idempotent producer. The offsets are null if it has closed the stream without an append."""

    producer: str
    epoch: int
    seq: int
    offset: str | None
    next_offset: str | None
    at: str
