"""Bodies of producing: one message, a batch of messages, a packed batch."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from driftq.wire.fields import ID_LENGTH_MAX, NAME_LENGTH_MAX, Body, Natural, Priority
from driftq.wire.message import Envelope

ANY: Literal["any"] = "any"  # `partition` of a message without a key: the broker chooses, in turn
PACKED_TYPE = "application/x-driftq-batch"  # the media type of one packed batch (see `wire.records`)
PACKED_RANGE_TYPE = "application/x-driftq-batches"  # the media type of several, one after the other


class ProduceItem(Body, frozen=True, omit_defaults=True):
    """A message to produce. Text goes into `value`, bytes into `value_base64`; one of the two is required.

    A message without a key goes to partition 0, or with `partition` "any" to the next partition in turn.

    The `id` of a job is taken until the job has ended, and then for `id_ttl_ms`; without it, for the setting
    `idempotency.ttl_ms`.
    """

    value: str | None = None
    value_base64: str | None = None
    key: str = ""
    envelope: Envelope | None = None
    id: Annotated[str, Meta(max_length=ID_LENGTH_MAX)] = ""
    task: Annotated[str, Meta(max_length=NAME_LENGTH_MAX)] = ""
    priority: Priority = 0
    delay_ms: Natural = 0
    not_before: str = ""
    timeout_ms: Natural = 0
    partition: Literal["any"] | None = None
    id_ttl_ms: Natural | None = None


class ProduceRequest(ProduceItem, frozen=True, omit_defaults=True):
    """A message and its topic."""

    topic: str = ""


class ProduceReply(Struct, frozen=True, omit_defaults=True):
    """Where the message is stored. `topic` is the requested topic; `routed_topic` is the one it went to."""

    status: str
    topic: str
    routed_topic: str
    partition: int
    offset: int
    duplicate: bool = False


class ProduceBatchRequest(Body, frozen=True, omit_defaults=True):
    """Messages of one topic. With `partition` "any" those without a key share one partition; the next batch gets
    another."""

    topic: str
    messages: list[ProduceItem]
    partition: Literal["any"] | None = None


class BatchResult(Struct, frozen=True, omit_defaults=True):
    """The result of one message of a batch: stored (`status` 200), or refused (`error` and `message`)."""

    status: int
    topic: str = ""
    routed_topic: str = ""
    partition: int = -1
    offset: int = -1
    duplicate: bool = False
    error: str = ""
    message: str = ""
    retry_after_ms: int | None = None


class BatchReply(Struct, frozen=True):
    """One result for each message, in the order of the request."""

    produced: int
    failed: int
    results: list[BatchResult]


class PackedReply(Struct, frozen=True):
    """Where a packed batch is stored: `count` records from `offset` on."""

    status: str
    topic: str
    partition: int
    offset: int
    count: int
    duplicate: bool
