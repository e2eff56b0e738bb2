"""The message: its envelope, routing, job and origin, and the *head* that stores them.

The head of a record is the JSON text beside its key and value. Producers write `envelope` and `job`; the broker writes
`routing` (the router's decision) and, on a dead letter, `dlq` (its origin). A plain message has no head.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, MsgspecError, Raw, Struct, UnsetType, json

PRIORITY_MAX = 9
ATTEMPTS_MAX = 1_000
BACKOFF_MS_MAX = (1 << 53) - 1  # the largest number that every JSON parser keeps
TRACESTATE_BYTES_MAX = 512
BAGGAGE_BYTES_MAX = 8_192

Jitter = Literal["none", "full", "equal", "decorrelated"]


class RetryPolicy(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How often and how fast a failed message is delivered again. `max_attempts` counts deliveries; 0 is unlimited."""

    max_attempts: int = 0
    backoff_ms: int = 0
    max_backoff_ms: int = 0
    jitter: Jitter = "none"

    def problem(self) -> str:
        """What its types do not express: the first field that cannot be so, with the reason; empty if all is well."""
        for name in ("max_attempts", "backoff_ms", "max_backoff_ms"):
            number = getattr(self, name)
            if number < 0:
                return f"{name}: it cannot be negative"
            if number > BACKOFF_MS_MAX:
                return f"{name}: at most {BACKOFF_MS_MAX}"
        if self.max_attempts > ATTEMPTS_MAX:
            return f"max_attempts: at most {ATTEMPTS_MAX}"
        return ""


class Envelope(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a producer states about its message. The envelope never changes the payload.

    Each text has at most 256 bytes. There are at most 64 labels, with names and values of at most 1,024 bytes. The JSON
    of envelope, routing and job has at most 64 KiB. All of it counts towards the size of the message.

    `traceparent`, `tracestate` (up to 512 bytes) and `baggage` (up to 8,192 bytes) are the W3C headers of these names:
    the trace that the message belongs to.
    """

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
    tracestate: str = ""
    baggage: str = ""


class Routing(Struct, frozen=True, omit_defaults=True):
    """The router's decision, stored with the message."""

    label: str = ""
    meta: dict[str, str] | None = None


class Job(Struct, frozen=True, omit_defaults=True):
    """A message that is work: its handler, its priority, the earliest time to run it, and how long it may take."""

    id: str = ""
    task: str = ""
    priority: int = 0
    not_before_ms: int = 0
    timeout_ms: int = 0


class DeadLetter(Struct, frozen=True, omit_defaults=False):
    """Where a dead letter came from, and why it died."""

    topic: str
    partition: int
    offset: int
    group: str
    attempts: int
    lease_losses: int
    last_error: str
    reason: str
    dead_at: str


class JobBatchPart(Struct, frozen=True, omit_defaults=True):
    """The part that a job has in a job batch. A step of a chain has the result of the step before it in `previous`, or
    in `previous_batch` the id of the batch whose results those are. What is produced at the end of a batch has the
    batch's last `state`."""

    id: str
    role: Literal["member", "on_complete", "on_success", "on_failure"] = "member"
    state: str = ""
    previous: Raw | UnsetType = UNSET
    previous_batch: str = ""


class Head(Struct, frozen=True, omit_defaults=True):
    """The fields of a record's head."""

    envelope: Envelope | None = None
    routing: Routing | None = None
    job: Job | None = None
    dlq: DeadLetter | None = None
    job_batch: JobBatchPart | None = None


class StoredMessage(Struct, frozen=True, omit_defaults=True):
    """A message as it is stored, without a lease.

    Bytes that are not text are in `value_base64`; `value` is then empty. If the envelope, routing and job of a record
    cannot be read, `error` and `message` take their place.
    """

    partition: int
    offset: int
    timestamp_ms: int
    key: str
    value: str
    value_base64: str | None = None
    envelope: Envelope | None = None
    routing: Routing | None = None
    job: Job | None = None
    dlq: DeadLetter | None = None
    job_batch: JobBatchPart | None = None
    error: str = ""
    message: str = ""


# --- the head's codec -------------------------------------------------------------------------------------------------

_encoder = json.Encoder()
_decoder = json.Decoder(Head)

# What decoding may raise for bytes that are no head: msgspec reports text that is not UTF-8 as a UnicodeDecodeError.
BAD_HEAD = (MsgspecError, UnicodeDecodeError, RecursionError)


def encode_head(head: Head) -> bytes:
    """Empty bytes for an empty head, so that plain messages have none."""
    text = _encoder.encode(head)
    return b"" if text == b"{}" else text


def decode_head(text: bytes) -> Head:
    return _decoder.decode(text) if text else Head()


def read_head(text: bytes) -> Head:
    """The head of a record that was stored unchecked. Bytes that are not a head count as an empty one."""
    try:
        return decode_head(text)
    except BAD_HEAD:
        return Head()
