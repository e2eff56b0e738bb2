"""The message and its envelope as both sides see them.

A record's *head* is the JSON text that rides beside its key and value: the agent envelope, the router's decision, the
job's schedule and, on a dead letter, where it came from. Producers write the envelope and the job; the broker writes
the rest.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Literal

from msgspec import MsgspecError, Struct, json

PRIORITY_MAX = 9

Jitter = Literal["none", "full", "equal", "decorrelated"]


class RetryPolicy(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How often and how fast to try again. `max_attempts` counts deliveries; 0 means without limit."""

    max_attempts: int = 0
    backoff_ms: int = 0
    max_backoff_ms: int = 0
    jitter: Jitter = "none"


class Envelope(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What an agent says about its message; never changes the payload."""

    run_id: str = ""
    step_id: str = ""
    parent_step_id: str = ""
    tenant_id: str = ""
    idempotency_key: str = ""
    target_topic: str = ""
    partition_override: int | None = None
    deadline: str = ""
    retry_policy: RetryPolicy | None = None
    labels: dict[str, str] | None = None
    traceparent: str = ""


class Routing(Struct, frozen=True, omit_defaults=True):
    """The router's decision, stored with the message."""

    label: str = ""
    meta: dict[str, str] | None = None


class Job(Struct, frozen=True, omit_defaults=True):
    """A message that is work: which handler, how urgent, not before when, how long it may run."""

    id: str = ""
    task: str = ""
    priority: int = 0
    not_before_ms: int = 0
    timeout_ms: int = 0


class DeadLetter(Struct, frozen=True, omit_defaults=False):
    """Where a dead letter came from and why it is dead."""

    topic: str
    partition: int
    offset: int
    group: str
    attempts: int
    lease_losses: int
    last_error: str
    reason: str
    dead_at: str


class Head(Struct, frozen=True, omit_defaults=True):
    """Everything that rides beside key and value."""

    envelope: Envelope | None = None
    routing: Routing | None = None
    job: Job | None = None
    dlq: DeadLetter | None = None


_encoder = json.Encoder()
_decoder = json.Decoder(Head)


# What decoding may raise for bytes that are no head: msgspec reports text that is not UTF-8 as a UnicodeDecodeError.
BAD_HEAD = (MsgspecError, UnicodeDecodeError, RecursionError)


def encode_head(head: Head) -> bytes:
    """Empty bytes for an empty head, so that plain messages carry nothing."""
    text = _encoder.encode(head)
    return b"" if text == b"{}" else text


def decode_head(text: bytes) -> Head:
    return _decoder.decode(text) if text else Head()


def read_head(text: bytes) -> Head:
    """The head of a record that nobody looked into before: what is not a head counts as none."""
    try:
        return decode_head(text)
    except BAD_HEAD:
        return Head()


# --- Times as people and protocols write them (RFC 3339) and as we count them (milliseconds since 1970, UTC) ---


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_LAST_MS = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
_PATTERN = re.compile(r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)


def to_rfc3339(at_ms: int) -> str:
    """Always with `+00:00`: some clients' parsers do not know `Z`. What has no date becomes the nearest that has."""
    at_ms = min(max(at_ms, _FIRST_MS), _LAST_MS)
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds")


def from_rfc3339(text: str) -> int:
    """Milliseconds; raises ValueError for anything that is not a full RFC 3339 time with a zone."""
    if not _PATTERN.fullmatch(text):
        raise ValueError(f"not an RFC 3339 time with a zone: {text!r}")
    return (datetime.fromisoformat(text.upper()) - _EPOCH) // timedelta(milliseconds=1)
