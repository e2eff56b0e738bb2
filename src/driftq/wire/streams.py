"""The words of the Durable Streams protocol, shared by server and client: header names, offset tokens, media types,
JSON mode and the grammar of numbers.

A token is two runs of sixteen digits; the second is the record offset, the first is always zero in tokens we mint, so
that every token of sixteen nines lies beyond any end. Nothing here knows a request, a stream or a log.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NoReturn
from urllib.parse import quote

import msgspec

ROOT = "/v1/stream/"
CONTROL = "__ds"  # the first segment that the protocol keeps for itself
TOPICS = "__topics"  # the first segment below which partitions of topics are read

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

# The dialect of the proposal that the protocol grew from: epochs may be left to the server.
X_PRODUCER_ID = "X-Producer-Id"
X_PRODUCER_EPOCH = "X-Producer-Epoch"
X_PRODUCER_SEQ = "X-Producer-Seq"
X_SESSION = "X-Producer-Session"
X_OFFSET = "X-Stream-Offset"
X_EXPECTED_SEQ = "X-Expected-Seq"
X_RECEIVED_SEQ = "X-Received-Seq"
X_ERROR = "X-Error"
X_CURRENT_EPOCH = "X-Current-Epoch"

# Ours: all are additions that other clients never meet.
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
SAFE_INTEGER_MAX = (1 << 53) - 1
CONTENT_TYPE_CHARACTERS_MAX = 255


class NotJson(Exception):
    """A body that should be JSON is not; the message says why."""


def quoted(segment: str) -> str:
    """A name as one segment of a path."""
    return quote(segment, safe="")


# --- offsets and numbers ----------------------------------------------------------------------------------------------


def token(offset: int) -> str:
    """The token of a record offset. Tokens compare as text like their offsets as numbers."""
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
    """Types are compared without parameters and without case."""
    return content_type.partition(";")[0].strip().lower()


def is_media_type(content_type: str) -> bool:
    return len(content_type) <= CONTENT_TYPE_CHARACTERS_MAX and _MEDIA_TYPE.fullmatch(content_type) is not None


def is_json(content_type: str) -> bool:
    return media_type(content_type) == JSON_TYPE


def is_text(content_type: str) -> bool:
    """Whether the stream's bytes can stand in an SSE event as they are."""
    kind = media_type(content_type)
    return kind.startswith("text/") or kind == JSON_TYPE


# --- JSON mode --------------------------------------------------------------------------------------------------------

_elements = msgspec.json.Decoder(list[msgspec.Raw])
_value = msgspec.json.Decoder(msgspec.Raw)
_WHITESPACE = " \t\n\r"


def split_json(body: bytes) -> list[bytes]:
    """The messages of a JSON body: the elements of a top-level array, or the one value that it is.

    Each keeps the very bytes it came with, so numbers of any size, key order and escapes survive. Raises `NotJson`.
    """
    return [bytes(message) for message in json_messages(body)]


def json_messages(body: bytes) -> Sequence[bytes]:
    """The same for whoever only measures and joins them: pieces of the body that were not copied out of it."""
    try:
        if not body.isascii():
            body.decode()
        if body[:1] == b"[" or body.lstrip()[:1] == b"[":
            return _elements.decode(body)
        return [_value.decode(body)]
    except UnicodeDecodeError:
        raise NotJson("the body is not UTF-8") from None
    except msgspec.DecodeError as error:
        # JavaScript writes half a surrogate pair as an escape, which the strict parser refuses: look again.
        return _split_patiently(body, str(error))
    except RecursionError:
        raise NotJson("the body is nested too deeply") from None


def check_messages(messages: Sequence[bytes]) -> None:
    """Whether each of these can stand alone as a message of a JSON stream, as the elements of one array do. Raises
    `NotJson` with the first that cannot."""
    joined = join_json(messages)
    try:
        joined.decode()
        if list(map(bytes, _elements.decode(joined))) == messages:
            return
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # find out which
    for index, message in enumerate(messages):
        try:
            count = len(json_messages(join_json([message])))
        except NotJson as error:
            raise NotJson(f"record {index}: {error}") from None
        if count != 1:
            raise NotJson(f"record {index} holds {count} values; each record is one")


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_patient = json.JSONDecoder(parse_constant=_refuse_constant)


def _split_patiently(body: bytes, complaint: str) -> list[bytes]:
    text = body.decode()
    try:
        if text.lstrip(_WHITESPACE)[:1] != "[":
            _patient.decode(text)
            return [text.strip(_WHITESPACE).encode()]
        return _elements_of(text)
    except RecursionError:
        raise NotJson("the body is nested too deeply") from None
    except ValueError:
        raise NotJson(complaint) from None


def _elements_of(text: str) -> list[bytes]:
    found: list[bytes] = []
    at = _skip(text, _skip(text, 0) + 1)
    if text[at : at + 1] == "]":
        at += 1
    else:
        while True:
            _, end = _patient.raw_decode(text, at)
            found.append(text[at:end].encode())
            at = _skip(text, end)
            mark = text[at : at + 1]
            if mark not in (",", "]"):
                raise ValueError("expected , or ]")
            at = _skip(text, at + 1)
            if mark == "]":
                break
    if _skip(text, at) != len(text):
        raise ValueError("something follows the array")
    return found


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _WHITESPACE:
        at += 1
    return at


def join_json(messages: Sequence[bytes]) -> bytes:
    """Messages as one array, byte for byte as they came."""
    return b"[%b]" % b",".join(messages)
