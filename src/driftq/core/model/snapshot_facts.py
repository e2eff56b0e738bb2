"""Facts of a snapshot: they describe a thing as it is, not how it came to be.

A snapshot is a shorter journal: loading it is folding these facts. They evolve as described in `core.model.facts`.
"""

from __future__ import annotations

from array import array

from msgspec import Struct

from driftq.core.model.effect_facts import PublishedBatch
from driftq.core.model.facts import Fact, ProducerSequence, TopicConfig
from driftq.core.model.ranges import Range
from driftq.core.model.stream_facts import StreamCreated


class NumbersState(Fact, tag=90, frozen=True):
    """The next numbers of logs, groups, fences and schedules. Numbers are never reused."""

    next_log_id: int
    next_group_id: int
    next_fence: int
    at_ms: int
    next_schedule: int = 1


class TopicState(Fact, tag=91, frozen=True):
    """State of a topic."""

    topic: str
    log_ids: tuple[int, ...]
    created_ms: int
    config: TopicConfig
    dead_of: str


class LaneState(Struct, frozen=True, array_like=True, gc=False):
    """State of a lane: its offsets and times as packed 64-bit integers."""

    priority: int
    task: str
    label: str
    tenant: str
    offsets: bytes
    times: bytes


class LogState(Fact, tag=92, frozen=True):
    """State of a log."""

    log_id: int
    start_offset: int
    end_offset: int
    payload_bytes: int
    last_ms: int
    lanes: tuple[LaneState, ...]
    delayed: tuple[Range, ...]
    deadline_offsets: bytes
    deadlines_ms: bytes
    size_offsets: bytes
    size_totals: bytes
    lost: tuple[Range, ...] = ()  # by older versions: folded like `cancelled`
    tracked: tuple[Range, ...] = ()
    cancelled: tuple[Range, ...] = ()
    directed: tuple[tuple[int, str], ...] = ()
    ended_ms: int = 0
    fair_from: int = 0
    timeout_offsets: bytes = b""
    timeouts_ms: bytes = b""
    made_due: tuple[Range, ...] = ()


class ProducerEntryState(Fact, tag=93, frozen=True):
    """State of a producer's state in a log."""

    log_id: int
    producer: str
    epoch: int
    seq: int
    at_ms: int
    first_digest: int
    window: tuple[tuple[int, int, int, int], ...]


class StreamState(Fact, tag=94, frozen=True):
    """State of a stream."""

    created: StreamCreated
    closed: bool
    closed_by: ProducerSequence | None
    stream_seq: str
    touched_ms: int
    soft_deleted: bool


class PlainStreamsState(Fact, tag=104, frozen=True):
    """State of many streams that have nothing but a path, a content type and records, and of their logs. Columns of
    packed 64-bit integers, except for the paths and the numbers of the content types (32 bits)."""

    paths: tuple[str, ...]
    content_types: tuple[str, ...]
    type_numbers: bytes
    log_ids: bytes
    created_ms: bytes
    touched_ms: bytes
    start_offsets: bytes
    end_offsets: bytes
    payload_bytes: bytes
    last_ms: bytes

    def logs(self) -> zip[tuple[int, int, int]]:
        """(log id, start, end) of each."""
        return zip(array("q", self.log_ids), array("q", self.start_offsets), array("q", self.end_offsets), strict=True)


class GroupState(Fact, tag=95, frozen=True):
    """State of a group."""

    group_id: int
    topic: str
    group: str
    created_ms: int
    paused: bool
    turn: int
    filters: tuple[tuple[str | None, str | None], ...] = ()
    active_ms: int = 0  # 0 in old snapshots: then it was active at their time
    idle: bool = False
    commits_offsets: bool = False


class CursorState(Fact, tag=96, frozen=True):
    """State of a group's progress in one log. If very many ranges are settled, they are in `SettledState`."""

    group_id: int
    log_id: int
    floor: int
    cursor: int
    fresh_version: int
    top_version: int
    lane_cursors: tuple[tuple[int, str, str, str, int], ...]
    settled: tuple[Range, ...]
    ready: tuple[Range, ...]
    turns: tuple[tuple[str, int], ...] = ()
    dead: tuple[tuple[int, str, str], ...] = ()  # (offset, owner, token) of the last dead letters
    retry_debt: int = 0


class SettledState(Fact, tag=24, frozen=True):
    """More settled ranges of a group's progress in one log: starts and ends as packed 64-bit integers."""

    group_id: int
    log_id: int
    firsts: bytes
    ends: bytes


class HeldState(Fact, tag=97, frozen=True):
    """State of offsets held on their first attempt."""

    group_id: int
    log_id: int
    ranges: tuple[Range, ...]
    owner: str
    token: str
    at_ms: int
    until_ms: int


class EntryState(Fact, tag=98, frozen=True):
    """State of a message that has a history in a group."""

    group_id: int
    log_id: int
    offset: int
    attempts: int
    version: int
    failures: int
    lease_losses: int
    releases: int
    retry_at_ms: int
    error: str
    held: bool
    owner: str
    token: str
    at_ms: int
    until_ms: int
    unexplained: bool = False  # the last lease was lost, and its holder has not reported why


class KeyState(Fact, tag=99, frozen=True):
    """State of a produced key."""

    key: str
    log_id: int
    offset: int
    count: int
    digest: int
    expires_ms: int
    ttl_ms: int = 0
    is_open: bool = False


class EffectState(Fact, tag=100, frozen=True):
    """State of an effect key."""

    key: str
    status: int
    fence: int
    owner: str
    at_ms: int
    until_ms: int
    group_id: int
    log_id: int
    offset: int
    result: bytes
    error: str
    token: str = ""


class StageState(Fact, tag=101, frozen=True):
    """State of a stage: its batches as (target log, staging offset, count, payload bytes)."""

    handle: str
    writer: str
    expires_ms: int
    batches: tuple[tuple[int, int, int, int], ...]


class HistoryState(Fact, tag=103, frozen=True):
    """State of a job's attempts: (group, number, owner, began, ended, how, error)."""

    log_id: int
    offset: int
    attempts: tuple[tuple[int, int, str, int, int, str, str], ...]


class WriterState(Fact, tag=102, frozen=True):
    """State of a writer of published batches, with its last result."""

    writer: str
    batch_number: int
    at_ms: int
    parts: tuple[PublishedBatch, ...]
    content: str = ""
