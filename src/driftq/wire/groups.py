"""Bodies of consumer groups: describe, list, seek, commit, and the state of each message of a range."""

from __future__ import annotations

from msgspec import Struct

from driftq.wire.fields import Body, Natural

GROUP_ORDERS = ("lag", "lag_ms", "in_flight", "waiting", "rate", "failed", "active", "created")  # beside the name


class GroupPartition(Struct, frozen=True, omit_defaults=True):
    """A group's progress in one partition.

    `lag` counts unsettled messages, without the `unclaimed` ones: messages of tasks and labels that no consumer of the
    group has asked for. `lag_ms` is the age of the oldest unsettled message. `resting` counts the waiting messages: in
    backoff, released with a delay, or delayed by their producer. `gaps` counts the settled ranges above the floor; each
    has unsettled messages below it.
    """

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
    """A group. `active_at` is when a consumer last claimed or acked, or when the group was created or moved. An `idle`
    group does not limit producers (see the setting `groups.idle_ms`). A group that `commits_offsets` is the progress of
    a reader that keeps its own offsets, such as a Spark query; nothing can be claimed from it."""

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
    commits_offsets: bool = False


class LaneInfo(Struct, frozen=True):
    """What a group has left to do in one lane: messages of the same priority, task, label and, in a fair topic, tenant.
    `lag` is the sum of `undelivered`, `in_flight` and `waiting`; `lag_ms` the age of the oldest that was never
    delivered. Nothing that is not `claimed` is delivered: no consumer of the group has asked for it."""

    priority: int
    task: str
    label: str
    tenant: str
    lag: int
    undelivered: int
    in_flight: int
    waiting: int
    lag_ms: int
    claimed: bool


class LanesReply(Struct, frozen=True):
    """The lanes of a group with something left to do, the largest first; at most 1,000 of `total`."""

    lanes: list[LaneInfo]
    total: int


class GroupRates(Struct, frozen=True):
    """What happened to the messages of a group per second, over the last seconds."""

    delivered_per_s: float
    settled_per_s: float
    failed_per_s: float


class GroupsReply(Struct, frozen=True, omit_defaults=True):
    """`after` starts the next page; it is missing on the last page. With `details=true` there are `rates` for each
    group, and the `total` number of groups that fit."""

    groups: list[GroupInfo]
    after: str | None = None
    rates: list[GroupRates] = []
    total: int = 0


class SeekRequest(Body, frozen=True, omit_defaults=True):
    """Move to "earliest", "latest", an RFC 3339 time, or with `partition` to an offset."""

    to: str | Natural
    partition: Natural | None = None


class CommitOffsetsRequest(Body, frozen=True):
    """How far a reader that keeps its own offsets has read: for each topic and partition the offset after the last one
    that it is done with. Up to 2,000 partitions, whole or not at all."""

    group: str
    offsets: dict[str, dict[Natural, Natural]]


class PendingColumns(Struct, frozen=True):
    """Messages that were delivered or delayed and are not settled, one list for each column. A leased message has
    an owner and a lease; a waiting one (`retrying`, `delayed`) has the time of its next delivery."""

    offset: list[int]
    state: list[str]
    attempts: list[int]
    owner: list[str | None]
    lease_until: list[str | None]
    retry_at: list[str | None]
    last_error: list[str]


class StatesInfo(Struct, frozen=True):
    """A group in [offset, next_offset) of a partition.

    Everything below `floor` and every range [first, end) of `settled` is settled; `pending` lists what is pending; the
    rest was never delivered. The next page starts at `next_offset`, unless that is `end`.
    """

    topic: str
    group: str
    partition: int
    floor: int
    offset: int
    next_offset: int
    end: int
    settled: list[tuple[int, int]]
    pending: PendingColumns
