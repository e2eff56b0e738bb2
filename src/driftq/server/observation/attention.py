"""What needs attention, in words: reads the last sample and says what an operator should look at.

Every rule is a generator of `Attention`. Nothing is counted or stored here. Sentences name what is wrong and since
when; `link` is the call that shows more, `command` one that may help.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING
from urllib.parse import quote

from driftq.core.state.groups import HISTORY_SUFFIX
from driftq.server.access.identity import sees_group, sees_topic
from driftq.server.metrics.counters import OTHER
from driftq.wire.audit import AUDIT_TOPIC
from driftq.wire.dead_letters import REDRIVE_GROUP
from driftq.wire.namespaces import own_name
from driftq.wire.overview import Attention, Severity
from driftq.wire.server_info import ArchiveInfo, TierInfo

if TYPE_CHECKING:
    from driftq.engine.archiver import Archiver, ArchiveStatus
    from driftq.engine.cold_reads import ColdReads
    from driftq.engine.engine import Engine
    from driftq.server.access.identity import Identity
    from driftq.server.observation.sampler import BrokerSample, Sampler, Trend
    from driftq.server.observation.series import Name
    from driftq.wire.overview import DiskUse, Stalls

ITEMS_MAX = 100
FREE_RATIO, FREE_BYTES = 0.1, 1 << 30  # less free disk than either is a warning
GROWTH_S = 60.0  # how long a lag has to grow before it is reported
GROWTH_MESSAGES = 100
UNCLAIMED_S = 60.0  # how long messages wait with none in flight before that is reported
NEARLY_FULL = 0.8  # of a backlog
ARCHIVE_LATE_MS = 60_000
FSYNC_SLOW_MS = 100.0
STALL_MS = 100.0
_ORDER: dict[Severity, int] = {"critical": 0, "warning": 1, "notice": 2}


def attention(
    engine: Engine,
    sampler: Sampler,
    sample: BrokerSample,
    disk: DiskUse | None,
    stalls: Stalls,
    identity: Identity | None,
) -> list[Attention]:
    """What the caller may see of what needs attention, the worst first."""
    trend = sampler.trend[0] if sampler.trend else None
    archiver = engine.archiver
    rules = chain(
        _disk(engine, disk),
        _archive(archiver.status()) if archiver is not None else (),
        _tiers(tier_info(engine.cold_reads)),
        _clock(engine),
        _latency(sample, stalls),
        _groups(sample, trend),
        _topics(sample, trend),
    )
    shown = [item for item in rules if _is_seen(identity, item)]
    shown.sort(key=lambda item: _ORDER[item.severity])
    return shown[:ITEMS_MAX]


def archive_info(archiver: Archiver | None) -> ArchiveInfo | None:
    """How far the archive is; None without one."""
    if archiver is None:
        return None
    status = archiver.status()
    return ArchiveInfo(
        status.url, status.mode, status.state, status.generation, status.shipped_lsn, status.base_lsn, status.lag_ms,
        status.lag_bytes, status.error,
    )  # fmt: skip


def tier_info(cold_reads: ColdReads | None) -> TierInfo | None:
    """What is only in the archive; None if nothing is."""
    if cold_reads is None or not cold_reads.is_used:
        return None
    row = cold_reads.figures()
    return TierInfo(row.local_bytes, row.archived_bytes, row.cache_hits, row.downloads, row.failures, row.error)


def _is_seen(identity: Identity | None, item: Attention) -> bool:
    if item.group:
        return sees_group(identity, item.topic, item.group)
    return not item.topic or sees_topic(identity, item.topic)


def _disk(engine: Engine, disk: DiskUse | None) -> Iterator[Attention]:
    if disk is None:
        return
    if engine.sequencer.is_full():
        text = "The disk is full: new work is refused, reading and settling continue. Free some space."
        yield Attention("critical", "disk_full", text, "/v1/readyz")
    elif disk.free_bytes < max(FREE_BYTES, FREE_RATIO * disk.size_bytes) and disk.size_bytes:
        share = 100 * disk.free_bytes / disk.size_bytes
        text = f"The disk is nearly full: {_size(disk.free_bytes)} are free ({share:.0f}%)."
        yield Attention("warning", "disk_nearly_full", text, "/v1/series?names=disk_free_bytes")


def _archive(status: ArchiveStatus) -> Iterator[Attention]:
    if status.state in ("failing", "superseded"):
        text = f"The archive is {status.state}: {status.error or 'see the log'}."
        yield Attention("critical", "archive_failing", text, "/v1/readyz")
    elif status.lag_ms > ARCHIVE_LATE_MS:
        text = f"The archive is late by {_time(status.lag_ms / 1_000)} ({_size(status.lag_bytes)})."
        yield Attention("warning", "archive_late", text, "/v1/readyz")


def _tiers(info: TierInfo | None) -> Iterator[Attention]:
    if info is not None and info.error:
        text = f"Old records ({_size(info.archived_bytes)}) are only in the archive and cannot be read: {info.error}."
        yield Attention("critical", "cold_reads_failing", text, "/v1/readyz")


def _clock(engine: Engine) -> Iterator[Attention]:
    reading = engine.read_clock()
    if reading.held:
        yield Attention("critical", "clock_held", reading.advice(), "/v1/clock", command="driftq clock accept")


def _latency(sample: BrokerSample, stalls: Stalls) -> Iterator[Attention]:
    if sample.latency.fsync_p99_ms > FSYNC_SLOW_MS:
        text = f"The disk is slow: one sync in a hundred takes {sample.latency.fsync_p99_ms:.0f} ms or more."
        yield Attention("warning", "disk_slow", text, "/v1/series?names=fsync_p99_ms")
    if stalls.longest_ms > STALL_MS:
        cause = max(stalls.causes, key=lambda name: stalls.causes[name])
        text = f"The event loop was held {stalls.count} times in the last minutes, most often by {cause}."
        yield Attention("warning", "loop_stalls", text, "/v1/series?names=stalls")


def _groups(sample: BrokerSample, trend: Trend | None) -> Iterator[Attention]:
    for name, row in sample.groups.items():
        topic, group = name
        if not row.lag or topic == OTHER or group == REDRIVE_GROUP:
            continue
        link = f"/v1/topics/{quote(topic, safe='')}/groups/{quote(group, safe='')}"
        delivered = sample.group_rates.get(name, (0.0,))[0]
        growth = _growth(trend, name, row.lag)
        if row.is_paused:
            if row.lag_s > UNCLAIMED_S:
                text = (
                    f"Group {group} of topic {topic} is paused: {row.lag:,} messages wait, the oldest for "
                    f"{_time(row.lag_s)}."
                )
                yield Attention("notice", "paused", text, link, topic, group, f"driftq groups resume {topic} {group}")
        elif row.lag_s > UNCLAIMED_S and not row.in_flight and not delivered and row.waiting < row.lag:
            text = (
                f"No worker takes messages of topic {topic} for group {group}: {row.lag:,} wait, "
                f"the oldest for {_time(row.lag_s)}."
            )
            yield Attention("warning", "no_worker", text, link, topic, group, "driftq worker MODULE")
        elif growth is not None:
            text = (
                f"The lag of group {group} in topic {topic} grows: {row.lag:,} messages, {growth[0]:,} more than "
                f"{_time(growth[1])} ago; the oldest is {_time(row.lag_s)} old."
            )
            yield Attention("warning", "lag_grows", text, link, topic, group)


def _growth(trend: Trend | None, name: Name, lag: int) -> tuple[int, float] | None:
    """By how much a lag has grown, and in which time, if that is worth a sentence."""
    if trend is None or name not in trend.lags:
        return None
    took_s, more = time.monotonic() - trend.at_s, lag - trend.lags[name]
    is_large = more >= GROWTH_MESSAGES and more >= lag // 10
    return (more, took_s) if is_large and took_s >= GROWTH_S else None


def _topics(sample: BrokerSample, trend: Trend | None) -> Iterator[Attention]:
    read = {name[0] for name in sample.groups}
    for row in sample.gauges.topics:
        if row.topic == OTHER:
            continue
        path = quote(row.topic, safe="")
        before = trend.dead_letters.get(row.topic, 0) if trend is not None else row.dead_letters
        if row.dead_letters > before:
            text = (
                f"Dead letters of topic {row.topic} rise: {row.dead_letters:,} wait, "
                f"{row.dead_letters - before:,} more than some minutes ago."
            )
            command = f"driftq dlq errors {row.topic}"
            yield Attention("warning", "dead_letters_rise", text, f"/v1/dlq/{path}/errors", row.topic, "", command)
        elif row.dead_letters:
            text = (
                f"Topic {row.topic} has {row.dead_letters:,} dead {'letter' if row.dead_letters == 1 else 'letters'}."
            )
            yield Attention("notice", "dead_letters", text, f"/v1/dlq/{path}/errors", row.topic)
        if row.slowest and row.used >= NEARLY_FULL:
            severity: Severity = "critical" if row.used >= 1 else "warning"
            text = (
                f"Topic {row.topic} is {100 * row.used:.0f}% full: group {row.slowest} is late. At 100% producers "
                "get 429."
            )
            yield Attention(severity, "backlog", text, f"/v1/topics/{path}", row.topic, row.slowest)
        elif row.messages and row.topic not in read and row.oldest_s > UNCLAIMED_S and not _is_record(row.topic):
            text = f"No group reads topic {row.topic}: it holds {row.messages:,} messages."
            yield Attention("notice", "no_group", text, f"/v1/topics/{path}", row.topic)


def _is_record(topic: str) -> bool:
    """Whether it records what happens, for people who look: it needs no group."""
    return topic.endswith(HISTORY_SUFFIX) or own_name(topic) == AUDIT_TOPIC


def _time(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1_024:
            return f"{count:.0f} {unit}"
        count /= 1_024
    return f"{count:.1f} TiB"
