"""Bodies of the overview and of time series: how the broker is now, and how it was."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from driftq.wire.server_info import ArchiveInfo

Severity = Literal["critical", "warning", "notice"]


class Attention(Struct, frozen=True, omit_defaults=True):
    """Something that an operator should look at. `link` is the call that shows more; `topic` and `group` name what it
    is about, `command` what may help."""

    severity: Severity
    kind: str
    text: str
    link: str
    topic: str = ""
    group: str = ""
    command: str = ""


class Counts(Struct, frozen=True):
    """How many there are now. `lag`: messages that groups have not settled, `waiting`: in backoff or delayed."""

    topics: int
    groups: int
    idle_groups: int
    streams: int
    messages: int
    payload_bytes: int
    lag: int
    in_flight: int
    waiting: int
    dead_letters: int
    workers: int
    connections: int
    open_streams: int


class Rates(Struct, frozen=True):
    """Per second, over the last seconds. `failed`: nacks and lost leases; `dead`: messages that became dead letters;
    `refused`: calls, or messages of a call."""

    produced: float
    produced_bytes: float
    delivered: float
    settled: float
    failed: float
    dead: float
    refused: float
    stream_records: float


class Latency(Struct, frozen=True):
    """Milliseconds over the last seconds, as upper bounds of histogram buckets; 0 without a commit in that time.
    A commit is what a reply waits for."""

    commit_p50_ms: float
    commit_p99_ms: float
    fsync_p50_ms: float
    fsync_p99_ms: float


class DiskUse(Struct, frozen=True):
    """Bytes of files by part, free and all bytes of the file system, and what waits for a sync."""

    used_bytes: dict[str, int]
    free_bytes: int
    size_bytes: int
    unsynced_bytes: int
    journal_room_bytes: int


class Stalls(Struct, frozen=True):
    """Turns of the event loop of 20 ms and longer in the last minutes, by cause."""

    count: int
    longest_ms: float
    causes: dict[str, int]


class OverviewReply(Struct, frozen=True, omit_defaults=True):
    """How the broker is now. Totals are over everything; `attention` has only what the caller may see. Figures are of
    `sampled_at`, which is at most some seconds ago."""

    version: str
    durability: str
    now: str
    started_at: str
    uptime_ms: int
    sampled_at: str
    counts: Counts
    rates: Rates
    latency: Latency
    oldest_lag_ms: int
    disk: DiskUse | None
    stalls: Stalls
    attention: list[Attention]
    archive: ArchiveInfo | None = None


class SeriesReply(Struct, frozen=True, omit_defaults=True):
    """Values over time, one list for each name, all of the same length. The first is of `start`, each further one of
    `step_ms` later; null where nothing was measured."""

    start: str
    step_ms: int
    series: dict[str, list[float | None]]
    topic: str = ""
    group: str = ""


class GroupName(Struct, frozen=True):
    topic: str
    group: str


class SeriesNames(Struct, frozen=True, omit_defaults=True):
    """Which topics and groups have series of their own."""

    topics: list[str]
    groups: list[GroupName]
