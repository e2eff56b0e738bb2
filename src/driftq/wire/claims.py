"""Bodies of consuming: claim messages under a lease, and settle them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from driftq.wire.fields import ID_LENGTH_MAX, NAME_LENGTH_MAX, Body, Name, Natural, Owner
from driftq.wire.message import DeadLetter, Envelope, Job, JobBatchPart, Routing

PROGRESS_BYTES_MAX = 4 << 10  # of a message, as JSON
Prefetch = Annotated[int, Meta(ge=1, le=1_000_000)]
Filter = Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]  # the task or the label that a consumer asks for


class ConsumeRequest(Body, frozen=True):
    topic: str = ""
    group: str = ""
    owner: Annotated[str, Meta(max_length=ID_LENGTH_MAX)] = ""
    lease_ms: Natural | None = None
    start: str = "earliest"
    task: Filter | None = None
    label: Filter | None = None
    prefetch: Prefetch | None = None


class HeldItem(Body, frozen=True, omit_defaults=True):
    """A claimed message, or with `end` the messages [offset, end) of one claim. An ack of one message may have its
    `result`, and an extension its `progress`: any JSON, of up to 64 KiB and 4 KiB."""

    partition: Natural
    offset: Natural
    end: Natural | None = None
    token: str = ""
    result: Any = UNSET
    progress: Any = UNSET


class RefusedItem(Struct, frozen=True):
    """A message that was not settled, and why."""

    partition: int
    offset: int
    error: str
    message: str


class ClaimRequest(Body, frozen=True, omit_defaults=True):
    """`acks` are messages of this group that the caller has done. They are settled in the same write. A claim with acks
    does not wait for messages: its reply reports what was acked."""

    topic: Name
    group: Name
    owner: Owner
    max: Annotated[int, Meta(ge=1, le=10_000)] = 1
    wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0
    lease_ms: Natural | None = None
    start: str = "earliest"
    task: Filter | None = None
    label: Filter | None = None
    acks: tuple[HeldItem, ...] = ()


class Delivered(Struct, frozen=True):
    """A message under a lease. `token` is its fence: send it back with ack, nack and the like.

    Bytes that are not text are in `value_base64`; `value` is then empty. If the envelope, routing and job of a record
    cannot be read, `error` and `message` take their place.
    """

    partition: int
    offset: int
    attempts: int = 1
    last_error: str = ""
    lease_version: int = 0
    token: str = ""
    lease_until_ms: int = 0
    timestamp_ms: int = 0
    key: str = ""
    value: str = ""
    value_base64: str | None = None
    envelope: Envelope | None = None
    routing: Routing | None = None
    job: Job | None = None
    dlq: DeadLetter | None = None
    job_batch: JobBatchPart | None = None
    error: str = ""
    message: str = ""


# The broker always sends these fields. They have defaults for readers of shortened messages (`driftq claim --json`).
DELIVERED_ALWAYS = (
    "partition", "offset", "attempts", "last_error", "lease_version", "token", "lease_until_ms", "timestamp_ms", "key",
    "value",
)  # fmt: skip


class ClaimReply(Struct, frozen=True, omit_defaults=True):
    """The claimed messages. `token` and `lease_until` hold for all of them. `refused` lists the acks that were refused;
    all others were done."""

    messages: list[Delivered]
    token: str
    lease_until: str
    refused: list[RefusedItem] = []


class AckRequest(Body, frozen=True):
    """One message. `partition` and `offset` have no defaults: a missing one is an error, never 0."""

    topic: str = ""
    group: str = ""
    owner: str = ""
    partition: Natural | UnsetType = UNSET
    offset: Natural | UnsetType = UNSET
    token: str = ""
    result: Any = UNSET


class NackRequest(AckRequest, frozen=True):
    reason: str = ""
    delay_ms: Natural | None = None
    traceback: str = ""


class SettleRequest(Body, frozen=True, omit_defaults=True):
    """Many messages of one group in one call; each succeeds or fails by itself. The `traceback` of a nack or reject is
    kept as the result of messages that become dead letters."""

    topic: Name
    group: Name
    messages: list[HeldItem]
    owner: str = ""
    reason: str = ""
    delay_ms: Natural | None = None
    lease_ms: Natural | None = None
    traceback: str = ""


class DeadItem(Struct, frozen=True):
    """A message that became a dead letter."""

    partition: int
    offset: int


class SettleReply(Struct, frozen=True, omit_defaults=True):
    """`refused` lists the messages that were not settled; all others were. `dead` lists those of a nack that became
    dead letters, because it was their last attempt."""

    refused: list[RefusedItem]
    lease_until: str = ""
    dead: list[DeadItem] = []
