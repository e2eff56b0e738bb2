"""The one table of error codes: the status of each in every protocol, and what the caller should do about it.

    code              queue API                    streams   subscriptions   remedy
    OVERLOADED        429 RESOURCE_EXHAUSTED       429       429             retry later
    STALE_EPOCH       409 STALE_EPOCH              403       409             start a new epoch
    …                 (see CODES)

The broker refuses with a `Code`. The queue API answers with a status and a JSON body (`ErrorBody`), streams answer with
a status, a short text and headers, subscriptions with a status and a JSON object. The client reads the code back with
`code_of` and `stream_code_of`. The end of this module groups error texts of the same kind (`fingerprint`).
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, NamedTuple

from msgspec import Struct


class Remedy(StrEnum):
    """What the caller should do about a refusal."""

    FIX_THE_CALL = "fix the call"
    RETRY_LATER = "retry later"
    CLAIM_AGAIN = "claim again"
    NEW_EPOCH = "start a new epoch"
    READ_AGAIN = "read the tail and decide again"
    GIVE_UP = "give up"


class Code(StrEnum):
    """Why the broker refused. Each code has a row in `CODES`."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    CONFLICT = "CONFLICT"
    CLOSED = "CLOSED"
    GONE = "GONE"
    NOT_OWNER = "NOT_OWNER"
    NOT_DELIVERED = "NOT_DELIVERED"
    STALE_EPOCH = "STALE_EPOCH"
    SEQUENCE_GAP = "SEQUENCE_GAP"
    SEQUENCE_MISMATCH = "SEQUENCE_MISMATCH"
    SEQUENCE_REGRESSION = "SEQUENCE_REGRESSION"
    CONTENT_MISMATCH = "CONTENT_MISMATCH"
    TAIL_MOVED = "TAIL_MOVED"
    KEY_CONFLICT = "KEY_CONFLICT"
    BUSY = "BUSY"
    OVERLOADED = "OVERLOADED"
    DISK_FULL = "DISK_FULL"
    TOO_LARGE = "TOO_LARGE"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    UNAVAILABLE = "UNAVAILABLE"
    DATA_CORRUPT = "DATA_CORRUPT"

    @property
    def remedy(self) -> Remedy:
        return CODES[self].remedy


class ErrorCode(NamedTuple):
    """How one code looks in each protocol."""

    status: int  # of the queue API
    error: str  # the word of the queue API; two of them keep the names that clients of DriftQ v1 know
    stream_status: int
    subscription_status: int
    remedy: Remedy
    meaning: str

    @property
    def retryable(self) -> bool:
        return self.remedy is Remedy.RETRY_LATER


_FIX, _LATER, _UP = Remedy.FIX_THE_CALL, Remedy.RETRY_LATER, Remedy.GIVE_UP

# fmt: off
CODES: dict[Code, ErrorCode] = {
    Code.INVALID_ARGUMENT: ErrorCode(
        400, "INVALID_ARGUMENT", 400, 400, _FIX, "The request cannot be parsed, or asks for something impossible."),
    Code.NOT_DELIVERED: ErrorCode(
        400, "INVALID_ARGUMENT", 409, 409, _FIX, "The message was not delivered to this group yet."),
    Code.DEADLINE_EXCEEDED: ErrorCode(
        400, "DEADLINE_EXCEEDED", 409, 409, _UP, "The message's deadline has passed."),
    Code.UNAUTHENTICATED: ErrorCode(
        401, "UNAUTHENTICATED", 401, 401, _FIX, "A credential is required, or this one is not valid (any more)."),
    Code.PERMISSION_DENIED: ErrorCode(
        403, "PERMISSION_DENIED", 403, 403, _FIX, "The credential has no grant for this."),
    Code.NOT_FOUND: ErrorCode(
        404, "NOT_FOUND", 404, 404, _FIX, "There is no such topic, group, job, stream or path."),
    Code.ALREADY_EXISTS: ErrorCode(
        409, "ALREADY_EXISTS", 409, 409, _FIX, "It exists with other properties."),
    Code.CONFLICT: ErrorCode(
        409, "CONFLICT", 409, 409, _FIX, "It exists with other properties, or another call changed it."),
    Code.KEY_CONFLICT: ErrorCode(
        409, "KEY_CONFLICT", 409, 409, _FIX, "The idempotency key was used with another body."),
    Code.BUSY: ErrorCode(
        409, "BUSY", 409, 409, _LATER, "Another worker is working on it."),
    Code.CLOSED: ErrorCode(
        409, "CLOSED", 409, 409, _UP, "The stream is closed."),
    Code.NOT_OWNER: ErrorCode(
        409, "FAILED_PRECONDITION", 409, 409, Remedy.CLAIM_AGAIN, "The lease has ended, or another consumer has it."),
    Code.STALE_EPOCH: ErrorCode(
        409, "STALE_EPOCH", 403, 409, Remedy.NEW_EPOCH, "A newer instance of the producer writes, with `epoch`."),
    Code.SEQUENCE_GAP: ErrorCode(
        409, "SEQUENCE_GAP", 409, 409, _LATER, "A batch before this one is missing; `expected_seq` is its number."),
    Code.SEQUENCE_MISMATCH: ErrorCode(
        409, "SEQUENCE_MISMATCH", 422, 409, _FIX, "The sequence number was used with other bytes."),
    Code.SEQUENCE_REGRESSION: ErrorCode(
        409, "SEQUENCE_REGRESSION", 409, 409, _FIX, "`Stream-Seq` is not above the last one."),
    Code.CONTENT_MISMATCH: ErrorCode(
        409, "CONTENT_MISMATCH", 409, 409, _FIX, "The batch number was published with other content."),
    Code.GONE: ErrorCode(
        410, "GONE", 410, 409, _UP, "It was deleted, or is below `earliest_offset`, where the log starts."),
    Code.TAIL_MOVED: ErrorCode(
        412, "TAIL_MOVED", 412, 409, Remedy.READ_AGAIN, "The stream has grown since the offset of `If-Match`."),
    Code.TOO_LARGE: ErrorCode(
        413, "TOO_LARGE", 413, 413, _FIX, "It is above a size limit. Retrying does not help."),
    Code.OVERLOADED: ErrorCode(
        429, "RESOURCE_EXHAUSTED", 429, 429, _LATER,
        "A limit is reached; see `Retry-After` (seconds), `retry_after_ms` and `reason`."),
    Code.DATA_CORRUPT: ErrorCode(
        500, "DATA_CORRUPT", 500, 500, _UP, "Stored bytes are damaged; the message names the place and a command."),
    Code.UNAVAILABLE: ErrorCode(
        503, "UNAVAILABLE", 503, 503, _LATER, "The server is starting or stopping."),
    Code.DISK_FULL: ErrorCode(
        507, "DISK_FULL", 507, 507, _LATER, "The disk is full. Nothing was changed; reading and settling still work."),
}
# fmt: on

# Statuses of the HTTP layer, which answers before a request reaches the broker, and the word of each.
HTTP_ERRORS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    408: "REQUEST_TIMEOUT",
    413: "TOO_LARGE",
    414: "TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    417: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    431: "TOO_LARGE",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    505: "INVALID_ARGUMENT",
}


# --- bodies -----------------------------------------------------------------------------------------------------------


class ErrorBody(Struct, frozen=True):
    """Every error: a code for programs, a sentence for people, and details that depend on the code."""

    error: str
    message: str


class OverloadBody(Struct, frozen=True):
    """An error that is worth a retry, after `retry_after_ms`. The Retry-After header has the same in seconds."""

    error: str
    message: str
    reason: str = ""
    retry_after_ms: int = 0


def error_fields(error: str, message: str, details: dict[str, Any] | None = None) -> dict[str, Any]:
    """The fields of an `ErrorBody` with its details, which are open: each code has its own."""
    return {"error": error, "message": message, **(details or {})}


def retry_after_s(retry_after_ms: int) -> int:
    """The value of a Retry-After header: whole seconds, at least one."""
    return max(1, -(-retry_after_ms // 1_000))


# --- reading codes back -----------------------------------------------------------------------------------------------

_BY_ERROR = {spec.error: code for code, spec in CODES.items() if spec.error not in Code.__members__}

# The best guess for a status without a known word: the answer may come from a proxy.
_BY_STATUS = {
    404: Code.NOT_FOUND,
    409: Code.CONFLICT,
    410: Code.GONE,
    412: Code.TAIL_MOVED,
    413: Code.TOO_LARGE,
    414: Code.TOO_LARGE,
    429: Code.OVERLOADED,
    431: Code.TOO_LARGE,
    503: Code.UNAVAILABLE,
    507: Code.DISK_FULL,
}
_BY_STREAM_STATUS = {
    CODES[code].stream_status: code for code in (Code.INVALID_ARGUMENT, Code.STALE_EPOCH, Code.SEQUENCE_MISMATCH)
}


def code_of(error: str, status: int) -> Code:
    """The code of an answer of the queue API, by its `error` or else by its status."""
    if error in Code.__members__:
        return Code[error]
    if error in _BY_ERROR:
        return _BY_ERROR[error]
    return _BY_STATUS.get(status, Code.DATA_CORRUPT if status >= 500 else Code.INVALID_ARGUMENT)


def stream_code_of(status: int) -> Code:
    """The code of an answer of the streams API, by its status alone; headers may narrow it down."""
    return _BY_STREAM_STATUS.get(status) or code_of("", status)


def table() -> list[tuple[str, str, str, str, str]]:
    """The rows of the table in the reference: status, code, status of streams, what to do, when."""
    rows = [
        (str(spec.status), f"`{spec.error}`", str(spec.stream_status), spec.remedy.value, spec.meaning)
        for spec in CODES.values()
    ]
    return sorted(rows, key=lambda row: row[0])


# --- errors of one kind -----------------------------------------------------------------------------------------------
#
# Two error texts are of one kind if they differ only in numbers, ids and quoted parts. Python and Java read this
# pattern alike: the broker groups dead letters with it, and so do Spark pipelines.

_WORD = "[0-9A-Za-z_]"
VARIABLE = rf"""'[^']*'|"[^"]*"|0x[0-9a-fA-F]+|(?<!{_WORD})[0-9a-fA-F]{{8,}}(?:-[0-9a-fA-F]{{4,}})*(?!{_WORD})|[0-9]+"""
MARK = "…"
TRACEBACK = "Traceback (most recent call last)"
SPACE = " \t\r\n"
LENGTH_MAX = 200

_variable = re.compile(VARIABLE)


def fingerprint(error: str) -> str:
    """The kind of an error: its first line with the variable parts replaced by `MARK`. The last line of a traceback has
    the exception."""
    line = error.rstrip(SPACE).rpartition("\n")[2] if error.startswith(TRACEBACK) else error.partition("\n")[0]
    return _variable.sub(MARK, line)[:LENGTH_MAX]
