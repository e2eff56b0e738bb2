"""Facts of topics, records, groups and messages, and the base class of all facts.

A fact is what the journal holds and what `core.state.fold` folds. The facts of one command are one frame, all or
nothing. Logs, groups and streams have dense numbers that are never reused. The other facts are in `stream_facts`
(streams, subscriptions), `effect_facts` (effects, outcomes, stages) and `snapshot_facts`; `frames` lists all of them.

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

STAGING_LOG = 0  # the log nobody reads: batches that wait to be published

ACKED = 0
DEAD = 1
CANCELLED = 2
SKIPPED = 3  # not delivered: it was meant for another group, or its effect is committed


class Fact(Struct, frozen=True, array_like=True, gc=False):
    """Base of all facts."""


# --- topics, logs, records ------------------------------------------------------------------------------------------


class TopicConfig(Struct, frozen=True, array_like=True, gc=False):
    """What a topic may say differently from the server; 0 and None mean "as the server does"."""

    retention_ms: int = 0
    retention_bytes: int = 0
    lease_ms: int = 0
    in_flight_max: int = 0
    backlog_messages_max: int = 0
    backlog_bytes_max: int = 0
    retry: RetryPolicy | None = None
    history: bool = False  # what happens to its messages is told in a companion topic
    fair: str = ""  # FAIR_TENANT: tenants take turns


class TopicCreated(Fact, tag=1, frozen=True):
    """A topic exists with its partitions, and its dead-letter topic with as many. Logs are numbered from
    `first_log_id`: first the partitions, then those of the dead letters."""

    topic: str
    first_log_id: int
    partitions: int
    at_ms: int
    config: TopicConfig


class TopicConfigured(Fact, tag=2, frozen=True):
    """A topic's own settings changed."""

    topic: str
    config: TopicConfig


class TopicDeleted(Fact, tag=3, frozen=True):
    """A topic, its dead letters, their groups and records are gone."""

    topic: str
    log_ids: tuple[int, ...]


class RecordSchedule(Struct, frozen=True, array_like=True, gc=False):
    """A record that is not plain: its lane (priority, task, label, tenant), until when it rests, its deadline."""

    index: int
    priority: int = 0
    task: str = ""
    label: str = ""
    not_before_ms: int = 0
    deadline_ms: int = 0
    tenant: str = ""
    tracked: bool = False  # a job: its attempts are remembered
    group: str = ""  # the only group that gets it; empty: every group
    timeout_ms: int = 0  # how long an attempt may take


class LaneKey(NamedTuple):
    """What puts records of one log side by side: higher priority first; claims may ask for a task or a label. Only
    a fair topic tells tenants apart."""

    priority: int
    task: str
    label: str
    tenant: str = ""


class ProducerSequence(Struct, frozen=True, array_like=True, gc=False):
    """The idempotent producer of an append, remembered in the same frame as its data."""

    producer: str
    epoch: int
    seq: int
    digest: int


class AppendMetadata(Struct, frozen=True, array_like=True, gc=False):
    """What rides along with an append and must not be separable from it."""

    producer: ProducerSequence | None = None
    key: str = ""
    key_digest: int = 0
    key_expires_ms: int = 0
    marks: tuple[RecordSchedule, ...] = ()
    closes: bool = False
    stream_seq: str = ""
    job: str = ""  # a job's id, which is taken until `job_ttl_ms` after the job's end
    job_ttl_ms: int = 0


class Appended(Fact, tag=10, frozen=True):
    """Records are in a log, with dedup state, idempotency key, schedule and closure."""

    log_id: int
    first_offset: int
    count: int
    payload_bytes: int
    at_ms: int
    batch: bytes
    along: AppendMetadata | None = None


class Trimmed(Fact, tag=11, frozen=True):
    """A log begins later now: retention, or a trim on request."""

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
    """The broker's time was `from_ms` and is `at_ms` from here on. They are equal where an idle broker only notes the
    time, so that the next start can tell how long it was down."""

    at_ms: int
    from_ms: int


# --- groups and their messages ----------------------------------------------------------------------------------------


class GroupCreated(Fact, tag=30, frozen=True):
    """A group reads a topic, from these offsets, one for each partition."""

    group_id: int
    topic: str
    group: str
    at_ms: int
    starts: tuple[int, ...]


class GroupSought(Fact, tag=31, frozen=True):
    """A group starts over at an offset of one partition."""

    group_id: int
    log_id: int
    offset: int
    at_ms: int


class GroupPaused(Fact, tag=32, frozen=True):
    """A group gets nothing (or something again)."""

    group_id: int
    paused: bool


class GroupDeleted(Fact, tag=33, frozen=True):
    """A group is forgotten, with its progress."""

    group_id: int
    at_ms: int = 0


class GroupIdled(Fact, tag=18, frozen=True):
    """A group that is behind did nothing for so long that it holds producers up no more. It keeps its progress."""

    group_id: int
    at_ms: int


class GroupCaughtUp(Fact, tag=19, frozen=True):
    """An idle group claims again, and what waits for it is within the limits: it counts for back-pressure again."""

    group_id: int
    at_ms: int


class Leased(Fact, tag=34, frozen=True):
    """An owner holds these offsets until then; each counts one more attempt and a higher lease version."""

    group_id: int
    log_id: int
    ranges: tuple[Range, ...]
    owner: str
    token: str
    at_ms: int
    until_ms: int
    lane: tuple[int, str, str, str] | None = None  # first deliveries of an explicit lane move that lane's cursor
    retry_debt: int = 0  # what retries have taken ahead of their share, after this claim: thousandths of a message


class Extended(Fact, tag=35, frozen=True):
    """The holder of these offsets has longer."""

    group_id: int
    log_id: int
    ranges: tuple[Range, ...]
    until_ms: int


class Failed(Fact, tag=36, frozen=True):
    """An attempt ended badly, by nack or by a lost lease; the message rests until `retry_at_ms`."""

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
    """Held messages go back and their attempt does not count. Unsent ones were never seen by anybody."""

    group_id: int
    log_id: int
    ranges: tuple[Range, ...]
    retry_at_ms: int
    sent: bool


class Settled(Fact, tag=38, frozen=True):
    """Done for this group, for ever: acked, dead-lettered, cancelled or skipped. `error` is the last one of a dead
    letter."""

    group_id: int
    log_id: int
    ranges: tuple[Range, ...]
    how: int
    at_ms: int = 0
    error: str = ""


class Cancelled(Fact, tag=48, frozen=True):
    """No group that starts later gets this message, either."""

    log_id: int
    offset: int
    at_ms: int


class FilterNoted(Fact, tag=49, frozen=True):
    """A group claims with this filter too; None is everything."""

    group_id: int
    at_ms: int
    task: str | None = None
    label: str | None = None
