"""Facts of topics, records, groups and messages, and the base class of all facts.

A fact is what the journal holds and what `core.state.fold` folds. The facts of one command are one frame, all or
nothing. Logs, groups and streams have dense numbers that are never reused. The other facts are in `stream_facts`
(streams, subscriptions), `effect_facts` (effects, outcomes, stages), `job_facts` (results, progress) and
`snapshot_facts`; `frames` lists all of them.

How facts evolve:

1. A tag is never reused or renumbered.
2. New fields go last and have defaults.
3. An unknown tag means that a newer version wrote the folder: the server refuses to start.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from driftq.core.model.ranges import Range
from driftq.wire.message import RetryPolicy

FORMAT = 1
FAIR_TENANT = "tenant"
KEEP_ALL = "all"
KEEP_NONE = "none"

STAGING_LOG = 0  # holds batches that wait to be published; no client reads it

ACKED = 0
DEAD = 1
CANCELLED = 2
SKIPPED = 3  # not delivered: it was meant for another group, or its effect is committed


class Fact(Struct, frozen=True, array_like=True, gc=False):
    """Base of all facts."""


# --- topics, logs, records ------------------------------------------------------------------------------------------


class TopicConfig(Struct, frozen=True, array_like=True, gc=False):
    """The settings of a topic. 0 and None mean the default of the server."""

    retention_ms: int = 0
    retention_bytes: int = 0
    lease_ms: int = 0
    in_flight_max: int = 0
    backlog_messages_max: int = 0
    backlog_bytes_max: int = 0
    retry: RetryPolicy | None = None
    history: bool = False  # what happens to its messages is recorded in `<topic>.history`
    fair: str = ""  # FAIR_TENANT: tenants take turns within a priority
    keep_unread: str = ""  # retention waits for groups that commit offsets; KEEP_ALL: for all; KEEP_NONE: for none


class TopicCreated(Fact, tag=1, frozen=True):
    """A topic was created, and its dead-letter topic with as many partitions. Logs are numbered from `first_log_id`:
    first the partitions, then those of the dead letters."""

    topic: str
    first_log_id: int
    partitions: int
    at_ms: int
    config: TopicConfig


class TopicConfigured(Fact, tag=2, frozen=True):
    """The settings of a topic changed."""

    topic: str
    config: TopicConfig


class TopicDeleted(Fact, tag=3, frozen=True):
    """A topic was deleted with its dead letters, their groups and their records."""

    topic: str
    log_ids: tuple[int, ...]


class RecordSchedule(Struct, frozen=True, array_like=True, gc=False):
    """What sets a record apart from a plain one: its lane (priority, task, label, tenant), delay, deadline and so
    on."""

    index: int
    priority: int = 0
    task: str = ""
    label: str = ""
    not_before_ms: int = 0
    deadline_ms: int = 0
    tenant: str = ""
    tracked: bool = False  # a job: its attempts are recorded
    group: str = ""  # the only group that gets it; "": every group
    timeout_ms: int = 0  # how long an attempt may take


class LaneKey(NamedTuple):
    """What the records of a lane have in common. Higher priority is delivered first; claims may ask for a task or a
    label. Only a fair topic has lanes for tenants."""

    priority: int
    task: str
    label: str
    tenant: str = ""


class ProducerSequence(Struct, frozen=True, array_like=True, gc=False):
    """The idempotent producer of an append, recorded in the same frame as its data."""

    producer: str
    epoch: int
    seq: int
    digest: int


class AppendMetadata(Struct, frozen=True, array_like=True, gc=False):
    """What is recorded together with an append, so that no crash can separate them."""

    producer: ProducerSequence | None = None
    key: str = ""
    key_digest: int = 0
    key_expires_ms: int = 0
    marks: tuple[RecordSchedule, ...] = ()
    closes: bool = False
    stream_seq: str = ""
    job: str = ""  # a job's id, which is in use until `job_ttl_ms` after the job ends
    job_ttl_ms: int = 0


class Appended(Fact, tag=10, frozen=True):
    """Records were appended to a log, with dedup state, idempotency key, schedule and closure."""

    log_id: int
    first_offset: int
    count: int
    payload_bytes: int
    at_ms: int
    batch: bytes
    along: AppendMetadata | None = None


class Trimmed(Fact, tag=11, frozen=True):
    """A log was trimmed at its start, by retention or on request."""

    log_id: int
    start_offset: int
    at_ms: int = 0


class HoleMade(Fact, tag=12, frozen=True):
    """Written by older versions: frames first..last were lost to damage, and an operator accepted the loss."""

    first_lsn: int
    last_lsn: int


class RecordsLost(Fact, tag=13, frozen=True):
    """Written by older versions: records [first, end) of a log were lost to damage, and an operator accepted the loss.
    No group gets them. The log ends at `end_offset` at least."""

    log_id: int
    first_offset: int
    end_offset: int


class ClockSet(Fact, tag=14, frozen=True):
    """The broker's clock was set from `from_ms` to `at_ms`. They are equal when an idle broker only records the time,
    so that the next start knows how long it was down."""

    at_ms: int
    from_ms: int


# --- groups and their messages ----------------------------------------------------------------------------------------


class GroupCreated(Fact, tag=30, frozen=True):
    """A group was created, to read a topic from these offsets, one per partition."""

    group_id: int
    topic: str
    group: str
    at_ms: int
    starts: tuple[int, ...]
    commits_offsets: bool = False  # its reader keeps its own offsets and commits them: nothing is claimed from it


class GroupSought(Fact, tag=31, frozen=True):
    """A group was moved to an offset of one partition."""

    group_id: int
    log_id: int
    offset: int
    at_ms: int


class GroupPaused(Fact, tag=32, frozen=True):
    """A group was paused or resumed."""

    group_id: int
    paused: bool


class GroupDeleted(Fact, tag=33, frozen=True):
    """A group was deleted with its progress."""

    group_id: int
    at_ms: int = 0


class GroupIdled(Fact, tag=18, frozen=True):
    """A group that is behind was unused for so long that it no longer counts for back-pressure. It keeps its
    progress."""

    group_id: int
    at_ms: int


class GroupCaughtUp(Fact, tag=19, frozen=True):
    """An idle group claims again and its backlog is within the limits: it counts for back-pressure again."""

    group_id: int
    at_ms: int


class Leased(Fact, tag=34, frozen=True):
    """An owner holds these offsets until a time. Each counts one more attempt and gets a higher lease version."""

    group_id: int
    log_id: int
    ranges: tuple[Range, ...]
    owner: str
    token: str
    at_ms: int
    until_ms: int
    lane: tuple[int, str, str, str] | None = None  # the explicit lane whose cursor first deliveries move
    retry_debt: int = 0  # what retries took ahead of their share, after this claim, in thousandths of a message


class Extended(Fact, tag=35, frozen=True):
    """The leases of these offsets were extended."""

    group_id: int
    log_id: int
    ranges: tuple[Range, ...]
    until_ms: int


class Failed(Fact, tag=36, frozen=True):
    """An attempt failed, by a nack or a lost lease. The message waits until `retry_at_ms`."""

    group_id: int
    log_id: int
    offset: int
    at_ms: int
    retry_at_ms: int
    error: str
    lease_lost: bool


class FailureExplained(Fact, tag=45, frozen=True):
    """The worker that lost its lease reported why, before the next delivery: the reason replaces `ack_timeout`."""

    group_id: int
    log_id: int
    offset: int
    at_ms: int
    retry_at_ms: int
    error: str


class Released(Fact, tag=37, frozen=True):
    """Held messages were given back; the attempt does not count. Unsent ones were never seen by a client."""

    group_id: int
    log_id: int
    ranges: tuple[Range, ...]
    retry_at_ms: int
    sent: bool


class Settled(Fact, tag=38, frozen=True):
    """Messages are done for this group, permanently: acked, dead-lettered, cancelled or skipped. `error` is the last
    error of a dead letter."""

    group_id: int
    log_id: int
    ranges: tuple[Range, ...]
    how: int
    at_ms: int = 0
    error: str = ""


class Cancelled(Fact, tag=48, frozen=True):
    """A message was cancelled: groups that start later do not get it either."""

    log_id: int
    offset: int
    at_ms: int


class FilterNoted(Fact, tag=49, frozen=True):
    """A group claims with a filter it has not used before. None means any."""

    group_id: int
    at_ms: int
    task: str | None = None
    label: str | None = None
