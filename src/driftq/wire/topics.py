"""Bodies of topics: create, list, describe, change; their partitions' offsets, messages and backlog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct

from driftq.wire.fields import Body, Name, Natural
from driftq.wire.message import RetryPolicy, StoredMessage

if TYPE_CHECKING:
    from driftq.wire.records import Header

TOPIC_ORDERS = (
    "messages",
    "bytes",
    "rate",
    "lag",
    "groups",
    "dead_letters",
    "last_write",
    "created",
)  # beside the name
MOVE_MAX = 100_000  # messages of one call
Fair = Literal["", "tenant"]  # "tenant": the messages of tenants are delivered in turns; "": in offset order
KeepUnread = Literal[
    "", "all", "none"
]  # whose unread messages retention keeps; "": those of groups that commit offsets


class TopicRequest(Body, frozen=True):
    """A topic to create. Limits that are 0 use the server's settings."""

    name: str = ""
    partitions: Annotated[int, Meta(ge=1, le=1_024)] = 1
    retention_ms: Natural = 0
    retention_bytes: Natural = 0
    lease_ms: Natural = 0
    in_flight_max: Natural = 0
    backlog_messages_max: Natural = 0
    backlog_bytes_max: Natural = 0
    retry: RetryPolicy | None = None
    history: bool = False
    fair: Fair = ""
    keep_unread: KeepUnread = ""


class TopicReply(Struct, frozen=True):
    """`status` is "created" or "exists"."""

    status: str
    name: str
    partitions: int


class TopicFigures(Struct, frozen=True):
    """A topic in a list with details. Rates are per second, over the last seconds. `lag` is the sum over its groups,
    `oldest_ms` the age of the oldest message that it holds, `last_write` the time of the last one."""

    name: str
    partitions: int
    messages: int
    payload_bytes: int
    produced_per_s: float
    bytes_per_s: float
    groups: int
    lag: int
    in_flight: int
    dead_letters: int
    oldest_ms: int
    last_write: str | None
    created_at: str


class TopicsReply(Struct, frozen=True, omit_defaults=True):
    """Names of topics. `after` starts the next page; it is missing on the last page. With `details=true` there are
    `figures` for each name, and the `total` number of topics that fit."""

    topics: list[str]
    after: str | None = None
    figures: list[TopicFigures] = []
    total: int = 0


class TopicChange(Body, frozen=True):
    """Settings to change. A missing field stays as it is; 0 (for `retry`: null) returns to the server's setting.
    `fair`: "tenant" delivers the messages of tenants in turns, "" in offset order. `keep_unread`: retention waits for
    groups in use that commit offsets (""), for all groups in use ("all"), or for none ("none")."""

    retention_ms: Natural | None = None
    retention_bytes: Natural | None = None
    lease_ms: Natural | None = None
    in_flight_max: Natural | None = None
    backlog_messages_max: Natural | None = None
    backlog_bytes_max: Natural | None = None
    retry: RetryPolicy | None = None
    history: bool | None = None
    fair: Fair | None = None
    keep_unread: KeepUnread | None = None


class BacklogInfo(Struct, frozen=True, omit_defaults=True):
    """Unsettled messages of a partition for `group`, the slowest active group. At `used` 1.0 produces are refused
    (429). From 0.8 on, `commands` lists CLI commands that help."""

    group: str
    messages: int
    messages_max: int
    payload_bytes: int
    bytes_max: int
    lag: int
    used: float
    commands: list[str] = []


class PartitionInfo(Struct, frozen=True, omit_defaults=True):
    """`backlog` is missing while no group reads the partition."""

    partition: int
    start_offset: int
    end_offset: int
    messages: int
    payload_bytes: int
    backlog: BacklogInfo | None = None


class TopicInfo(Struct, frozen=True):
    """A topic. `dead_letters` counts those that were not redriven."""

    name: str
    partitions: list[PartitionInfo]
    groups: list[str]
    created_at: str
    config: dict[str, Any]
    dead_letters: int


class PartitionOffsets(Struct, frozen=True, omit_defaults=True):
    """`at` is the first offset at or after the time asked for; it is missing if no time was asked for. `last`
    identifies the batch that ends at `end`; it is missing if it was not asked for, and if there is none."""

    partition: int
    start: int
    end: int
    at: int | None = None
    last: str = ""


def batch_identity(header: Header) -> str:
    """Distinguishes a batch from any other that could be at the same offset: where and when it was stored, and its
    checksum."""
    return f"{header.first_offset}:{header.at_ms}:{header.crc:08x}"


class OffsetsReply(Struct, frozen=True, omit_defaults=True):
    """`instance` changes with each start of the broker; it is there if the last batches were asked for."""

    topic: str
    partitions: list[PartitionOffsets]
    instance: str = ""


class OffsetsRequest(Body, frozen=True):
    """Topics to look at in one call. `last` asks for what identifies the last batch of each partition."""

    topics: Annotated[list[str], Meta(min_length=1, max_length=1_000)]
    last: bool = False


class ArchivedRange(Struct, frozen=True):
    """Where records are that are only in the archive: in the object `key`, from `position` on. `runs` has the size and
    the CRC-32C of each of the parts that follow each other there; a reader compares them. `archive` is the address by
    which the broker knows the archive."""

    archive: str
    key: str
    position: int
    runs: list[tuple[int, int]]

    @property
    def size_bytes(self) -> int:
        return sum(size for size, _ in self.runs)


class LogOffsets(Struct, frozen=True, omit_defaults=True):
    """A partition from `start` to `end`, with the bytes of its messages. `last` as in `PartitionOffsets`."""

    partition: int
    start: int
    end: int
    payload_bytes: int
    last: str = ""


class TopicOffsets(Struct, frozen=True):
    """The partitions of one topic."""

    topic: str
    created_at: str
    partitions: list[LogOffsets]


class TopicOffsetsReply(Struct, frozen=True, omit_defaults=True):
    """Topics that do not exist are left out. `answered` is how many of the names the reply covers: it ends after about
    10,000 partitions, and the next call begins with the first name that it does not cover. `instance` as in
    `OffsetsReply`."""

    topics: list[TopicOffsets]
    answered: int
    instance: str = ""


class MessagesReply(Struct, frozen=True):
    """Messages of a partition, and the offsets at which the partition starts and ends."""

    messages: list[StoredMessage]
    start_offset: int
    end_offset: int


# --- purge and move ---


class PurgeRequest(Body, frozen=True, omit_defaults=True):
    """Drop every message of a topic. `dry_run` only counts."""

    dry_run: bool = False


class PurgeReply(Struct, frozen=True):
    """`status` is "purged" or "dry run". `messages` were dropped; `in_flight` and `waiting` count how often one of them
    was under a lease of a group, or waited for a time."""

    status: str
    topic: str
    messages: int
    in_flight: int
    waiting: int


class MoveRequest(Body, frozen=True, omit_defaults=True):
    """Move the messages that are not finished to another topic: those of a partition or task, of a time (RFC 3339), or
    all. A message under a lease stays. `after` continues where an earlier call stopped."""

    to: Name
    partition: Natural | None = None
    task: str = ""
    since: str = ""
    until: str = ""
    dry_run: bool = False
    limit: Annotated[int, Meta(ge=1, le=MOVE_MAX)] = 1_000
    after: str = ""


class MoveFailure(Struct, frozen=True):
    """A message that was not moved, and why."""

    partition: int
    offset: int
    message: str


class MoveReply(Struct, frozen=True, omit_defaults=True):
    """`status` is "moved" or "dry run". `matched` messages fit, and `moved` of them were moved. With `after` there may
    be more; it continues after those that were looked at."""

    status: str
    matched: int
    moved: int
    failed: list[MoveFailure]
    after: str | None = None
