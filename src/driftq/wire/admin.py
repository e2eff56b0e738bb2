"""Bodies of the `/v1` API beyond the specification: groups, records, effects, outcomes, dead letters, jobs."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from driftq.wire.message import RetryPolicy
from driftq.wire.queue import Body, Fair, HeldItem, Name, Natural, ProduceItem

# --- the clock ---


class ClockInfo(Struct, frozen=True):
    """The broker's time and the machine's. `held`: they are too far apart, and an operator has to decide."""

    broker_at: str
    machine_at: str
    ahead_ms: int
    held: bool
    advice: str = ""


# --- topics and groups ---


class TopicChange(Body, frozen=True):
    """What is given changes; what is absent stays; 0 (for `retry`: null) goes back to the server's setting.
    `fair`: "tenant" hands out messages of tenants in turns, "" in offset order."""

    retention_ms: Natural | None = None
    retention_bytes: Natural | None = None
    lease_ms: Natural | None = None
    in_flight_max: Natural | None = None
    backlog_messages_max: Natural | None = None
    backlog_bytes_max: Natural | None = None
    retry: RetryPolicy | None = None
    history: bool | None = None
    fair: Fair | None = None


class BacklogInfo(Struct, frozen=True, omit_defaults=True):
    """What waits in a partition for `group`, the slowest that counts. At `used` 1.0 produces are refused (429);
    `commands` help, and are there from 0.8 on."""

    group: str
    messages: int
    messages_max: int
    payload_bytes: int
    bytes_max: int
    lag: int
    used: float
    commands: list[str] = []


class PartitionInfo(Struct, frozen=True, omit_defaults=True):
    """`backlog` is missing while no group reads."""

    partition: int
    start_offset: int
    end_offset: int
    messages: int
    payload_bytes: int
    backlog: BacklogInfo | None = None


class TopicInfo(Struct, frozen=True):
    name: str
    partitions: list[PartitionInfo]
    groups: list[str]
    created_at: str
    config: dict[str, Any]
    dead_letters: int


class GroupPartition(Struct, frozen=True, omit_defaults=True):
    """`lag` counts what is not settled, without the `unclaimed` messages of tasks and labels that the group never asked
    for; `lag_ms` is the age of the oldest of it. `gaps` counts the settled ranges above
    the floor: each has open messages below it."""

    partition: int
    floor: int
    cursor: int
    end_offset: int
    lag: int
    lag_ms: int
    in_flight: int
    resting: int
    settled_above_floor: int
    unclaimed: int = 0
    gaps: int = 0


class GroupInfo(Struct, frozen=True, omit_defaults=True):
    """`active_at`: when a consumer last claimed or acked, or when the group was made or moved. An `idle` group holds no
    producer up (see the setting `groups.idle_ms`)."""

    topic: str
    group: str
    created_at: str
    paused: bool
    lag: int
    lag_ms: int
    in_flight: int
    resting: int
    partitions: list[GroupPartition]
    unclaimed: int = 0
    active_at: str = ""
    idle: bool = False


class SeekRequest(Body, frozen=True):
    """To "earliest", "latest", an RFC 3339 time, or with `partition` to an offset."""

    to: str | Natural
    partition: Natural | None = None


class PendingColumns(Struct, frozen=True):
    """Messages that are neither fresh nor settled, one list for each column. A leased one has an owner and a lease, one
    that waits (`retrying`, `delayed`) has a time at which it comes back."""

    offset: list[int]
    state: list[str]
    attempts: list[int]
    owner: list[str | None]
    lease_until: list[str | None]
    retry_at: list[str | None]
    last_error: list[str]


class StatesInfo(Struct, frozen=True):
    """A group in [offset, next_offset) of a partition. Everything below `floor` is settled, and every [first, end) of
    `settled`; `pending` is as listed; the rest was never delivered. The next page begins at `next_offset` unless that
    is `end`."""

    topic: str
    group: str
    partition: int
    floor: int
    offset: int
    next_offset: int
    end: int
    settled: list[tuple[int, int]]
    pending: PendingColumns


# --- effects and outcomes ---


class EffectRequest(Body, frozen=True):
    topic: Name
    group: Name
    key: Annotated[str, Meta(min_length=1, max_length=256)]
    tenant_id: str = ""


class BeginRequest(EffectRequest, frozen=True, kw_only=True):
    owner: Annotated[str, Meta(min_length=1, max_length=256)]
    lease_ms: Natural | None = None
    partition: Natural | None = None
    offset: Natural | None = None
    token: Annotated[str, Meta(max_length=256)] = ""
    fence: Natural | None = None


class CommitRequest(EffectRequest, frozen=True, kw_only=True):
    fence: Natural
    result: str = ""
    ttl_ms: Natural = 0


class FailRequest(EffectRequest, frozen=True, kw_only=True):
    fence: Natural
    reason: str = ""


class OutcomeAck(Body, frozen=True):
    topic: Name
    group: Name
    messages: list[HeldItem]
    owner: str = ""


class OutcomeMessage(ProduceItem, frozen=True, omit_defaults=True):
    topic: str = ""


class OutcomeAppend(Body, frozen=True):
    path: str
    value: str = ""
    value_base64: str | None = None
    content_type: str = "application/octet-stream"
    close: bool = False
    producer_id: str = ""
    producer_epoch: Natural = 0
    producer_seq: Natural = 0


class OutcomeRequest(Body, frozen=True):
    """What one piece of work did. An outcome is recognised by the tokens of its acks, the fences of its commits and the
    producers of its appends; one that has none of these may have an `idempotency_key`."""

    acks: tuple[OutcomeAck, ...] = ()
    produce: tuple[OutcomeMessage, ...] = ()
    streams: tuple[OutcomeAppend, ...] = ()
    commits: tuple[CommitRequest, ...] = ()
    idempotency_key: Annotated[str, Meta(max_length=256)] = ""


# --- dead letters and jobs ---


class LetterFilter(Body, frozen=True):
    """Which dead letters; everything given must hold."""

    group: str = ""
    error: str = ""
    reason: str = ""
    since: str = ""
    until: str = ""
    offsets: list[tuple[Natural, Natural]] | None = None


class RedriveRequest(LetterFilter, frozen=True):
    """Send dead letters back, each to the group in which it died, or with `all_groups` to every group of its topic. A
    deadline that has passed is dropped unless `keep_deadline` says otherwise; `value` and `key` replace those of each
    message."""

    dry_run: bool = False
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    rate_per_s: Natural = 0
    value: str | None = None
    key: str | None = None
    all_groups: bool = False
    keep_deadline: bool = False


class JobRequest(ProduceItem, frozen=True, omit_defaults=True):
    topic: str = ""


# --- staged appends ---


class PublishRequest(Body, frozen=True):
    """`batch` numbers the publications of a writer: each number once, never backwards."""

    writer: Annotated[str, Meta(min_length=1, max_length=256)]
    batch: Natural
    handles: tuple[str, ...] = ()


class ForgetRequest(Body, frozen=True):
    writer: Annotated[str, Meta(min_length=1, max_length=256)]
    handles: list[str]


class StagedInfo(Struct, frozen=True):
    handle: str
    count: int
    expires_at: str
    duplicate: bool


class PublishedPartInfo(Struct, frozen=True, omit_defaults=True):
    """Where a staged batch went; a part of a stream has no topic and partition."""

    offset: int
    count: int
    topic: str = ""
    partition: int | None = None


class PublishedInfo(Struct, frozen=True):
    batch: int
    duplicate: bool
    parts: list[PublishedPartInfo]


class ForgottenInfo(Struct, frozen=True):
    forgotten: bool
