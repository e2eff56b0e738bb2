"""Bodies of the `/v1` queue API, as both sides see them. Unknown fields are refused; numbers are numbers.

Requests can also come as query parameters: `server.handlers.base` turns those into the same types.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from driftq.wire.message import DeadLetter, Envelope, Job, RetryPolicy, Routing

Name = Annotated[str, Meta(min_length=1, max_length=249)]
Natural = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Prefetch = Annotated[int, Meta(ge=1, le=1_000_000)]
Positive = Annotated[int, Meta(ge=1, le=2**53 - 1)]
Owner = Annotated[str, Meta(min_length=1, max_length=256)]
Priority = Annotated[int, Meta(ge=0, le=9)]


class Body(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of request bodies."""


class ErrorBody(Struct, frozen=True):
    """What every refusal looks like; some add details."""

    error: str
    message: str


# --- topics ---

Fair = Literal["", "tenant"]


class TopicRequest(Body, frozen=True):
    name: str = ""
    partitions: Annotated[int, Meta(ge=0, le=1_024)] = 0
    retention_ms: Natural = 0
    retention_bytes: Natural = 0
    lease_ms: Natural = 0
    in_flight_max: Natural = 0
    backlog_messages_max: Natural = 0
    backlog_bytes_max: Natural = 0
    retry: RetryPolicy | None = None
    history: bool = False
    fair: Fair = ""


class TopicReply(Struct, frozen=True):
    status: str
    name: str
    partitions: int


class TopicsReply(Struct, frozen=True, omit_defaults=True):
    """`after` is where the next page begins; it is missing on the last."""

    topics: list[str]
    after: str | None = None


# --- produce ---


class ProduceItem(Body, frozen=True, omit_defaults=True):
    """A message. Text goes into `value`, bytes into `value_base64`; one of the two is required.

    Without a key it goes to partition 0; with `partition` "any" the broker chooses one, in turn.
    """

    value: str | None = None
    value_base64: str | None = None
    key: str = ""
    envelope: Envelope | None = None
    id: Annotated[str, Meta(max_length=256)] = ""
    task: Annotated[str, Meta(max_length=249)] = ""
    priority: Priority = 0
    delay_ms: Natural = 0
    not_before: str = ""
    timeout_ms: Natural = 0
    partition: Literal["any"] | None = None


class ProduceRequest(ProduceItem, frozen=True, omit_defaults=True):
    topic: str = ""


class ProduceBatchRequest(Body, frozen=True):
    """With `partition` "any" the messages without a key share one partition, and the next batch gets another."""

    topic: str
    messages: list[ProduceItem]
    partition: Literal["any"] | None = None


class ProduceReply(Struct, frozen=True, omit_defaults=True):
    """`topic` stays the requested one; `routed_topic` is where the message went."""

    status: str
    topic: str
    routed_topic: str
    partition: int
    offset: int
    duplicate: bool = False


# --- consume, claim, settle ---


class ConsumeRequest(Body, frozen=True):
    topic: str = ""
    group: str = ""
    owner: str = ""
    lease_ms: Natural | None = None
    start: str = "earliest"
    task: str | None = None
    label: str | None = None
    prefetch: Prefetch | None = None


class ClaimRequest(Body, frozen=True):
    topic: Name
    group: Name
    owner: Owner
    max: Annotated[int, Meta(ge=1, le=10_000)] = 1
    wait_ms: Annotated[int, Meta(ge=0, le=60_000)] = 0
    lease_ms: Natural | None = None
    start: str = "earliest"
    task: str | None = None
    label: str | None = None


class Delivered(Struct, frozen=True):
    """A message as it is handed out. Bytes that are not text are in `value_base64`, and `value` is then empty. `error`
    and `message` stand for envelope, routing and job that cannot be read back."""

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
    error: str = ""
    message: str = ""


class ClaimReply(Struct, frozen=True):
    messages: list[Delivered]
    token: str = ""
    lease_until: str = ""


class AckRequest(Body, frozen=True):
    """One message. Numbers have no defaults: absent is an error, never (0, 0)."""

    topic: str = ""
    group: str = ""
    owner: str = ""
    partition: Natural | UnsetType = UNSET
    offset: Natural | UnsetType = UNSET
    token: str = ""


class NackRequest(AckRequest, frozen=True):
    reason: str = ""
    delay_ms: Natural | None = None


class HeldItem(Body, frozen=True):
    """A message, or with `end` the run [offset, end), as claimed."""

    partition: Natural
    offset: Natural
    end: Natural | None = None
    token: str = ""


class SettleRequest(Body, frozen=True):
    """Many messages of one group in one call; each is judged for itself."""

    topic: Name
    group: Name
    messages: list[HeldItem]
    owner: str = ""
    reason: str = ""
    delay_ms: Natural | None = None
    lease_ms: Natural | None = None


class RefusedItem(Struct, frozen=True):
    partition: int
    offset: int
    error: str
    message: str


class SettleReply(Struct, frozen=True, omit_defaults=True):
    """`refused` names the messages that did not take part; all others did."""

    refused: list[RefusedItem]
    lease_until: str = ""
