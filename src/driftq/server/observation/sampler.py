"""Samples the counters and gauges at intervals: rates, series, and what the overview shows.

    every STEP_MS ──▶ Metrics.sample (in slices) ──┬──▶ BrokerSample: totals and rates now, for the overview
                      Counters (plain numbers)     ├──▶ SeriesTable: the totals, and in longer steps topics and groups
                                                   └──▶ trend: lags and dead letters some minutes ago, for attention
    every SAVE_S and at a clean stop ──▶ series.bin in the data folder, written on a thread

Nothing is done per message: the counters are those of the metrics. With very many topics a sample takes longer; then
the interval grows, so that sampling never takes more than a fiftieth of the loop's time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from driftq.server.metrics.counters import OTHER, Histogram
from driftq.server.observation.series import NAME_STEP_MS, STEP_MS, SeriesTable, seal
from driftq.wire.overview import Latency, Rates

if TYPE_CHECKING:
    from driftq.engine.engine import Engine
    from driftq.server.metrics.gauges import GaugeSample
    from driftq.server.metrics.registry import Metrics
    from driftq.server.observation.series import Name

logger = logging.getLogger("driftq.series")

SAVE_S = 300.0
FRESH_S = 2.0  # an overview shows a sample that is at most so old
COST_RATIO = 50  # a sample that took a second is not repeated for so many
RATES_S = 15.0  # about the time over which rates are taken
TREND_S = 300.0
MARKS_MAX = 32
FILE = "series.bin"


class Mark(NamedTuple):
    """Counters at one time."""

    at_s: float
    totals: dict[str, float]
    topics: dict[Name, tuple[float, float]]  # messages, bytes
    groups: dict[Name, tuple[float, float, float]]  # delivered, settled, failed
    commit: tuple[int, ...]  # buckets of histograms
    fsync: tuple[int, ...]
    stalls: dict[str, tuple[int, ...]]  # buckets by cause


class GroupFigures(NamedTuple):
    """A group over all its partitions."""

    lag: int
    lag_s: float
    in_flight: int
    waiting: int
    is_paused: bool = False


class BrokerSample(NamedTuple):
    """What was sampled last."""

    at_ms: int
    gauges: GaugeSample
    groups: dict[Name, GroupFigures]
    rates: Rates
    latency: Latency
    topic_rates: dict[Name, tuple[float, float]]
    group_rates: dict[Name, tuple[float, float, float]]


class Trend(NamedTuple):
    """Some figures at one time, to see what grows."""

    at_s: float
    lags: dict[Name, int]
    dead_letters: dict[str, int]


class Sampler:
    """The samples of one broker."""

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self.metrics = metrics
        self.series = SeriesTable()
        self.started_ms = engine.now_ms()
        self.started_s = time.monotonic()
        self.trend: deque[Trend] = deque(maxlen=MARKS_MAX)  # the oldest is at least TREND_S old, once there is one
        self._engine = engine
        self._marks: deque[Mark] = deque([self._mark()], maxlen=MARKS_MAX)
        self._sample: BrokerSample | None = None
        self._task: asyncio.Task[None] | None = None
        self._saved_s = self.started_s

    # --- run ---

    async def start(self) -> None:
        """Restore the series of the last run, and sample until `stop`."""
        path = self._path()
        if path is not None:
            data = await asyncio.get_running_loop().run_in_executor(None, _read, path)
            if data and not self.series.restore(data):
                logger.warning("%s is damaged or of another version: the series start again", path)
        self._task = asyncio.ensure_future(self._engine.monitor.steps("series", self._run()))

    async def stop(self) -> None:
        """Called at a clean stop."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        await self._save()

    async def _run(self) -> None:
        while True:
            sample = await self.take()
            self._put(sample)
            if time.monotonic() - self._saved_s >= SAVE_S:
                await self._save()
            pause_s = max(STEP_MS / 1_000 - (time.time() % (STEP_MS / 1_000)), COST_RATIO * self.metrics.sample_cost_s)
            await asyncio.sleep(pause_s)

    async def take(self, age_s: float = 0.0) -> BrokerSample:
        """A sample that is at most `age_s` old."""
        age_s = min(STEP_MS / 1_000, max(age_s, COST_RATIO * self.metrics.sample_cost_s)) if age_s else 0.0
        known = self._sample
        if known is not None and age_s and time.monotonic() - self.metrics.sampled_s < age_s:
            return known
        gauges = await self.metrics.sample(age_s)
        mark = self._mark()
        earlier = self._earlier(mark)
        sample = self._sample = self._made(gauges, earlier, mark)
        if mark.at_s - self._marks[-1].at_s >= 1.0:
            self._marks.append(mark)
            self._note_trend(mark.at_s, sample)
        return sample

    async def fresh(self) -> BrokerSample:
        """What an overview shows."""
        return await self.take(FRESH_S)

    # --- counters ---

    def _mark(self) -> Mark:
        counts = self.metrics.counts
        live = {(name,): (row.messages, row.payload_bytes) for name, row in counts.topics.items() if not row.dead_of}
        groups = {
            name: (row.delivered, sum(row.settled.values()), row.failures + row.lease_losses)
            for name, row in counts.groups.items()
        }
        totals = {
            "produced": sum(messages for messages, _ in live.values()),
            "produced_bytes": sum(size for _, size in live.values()),
            "delivered": sum(row[0] for row in groups.values()),
            "settled": sum(row[1] for row in groups.values()),
            "failed": sum(row[2] for row in groups.values()),
            "dead": sum(row.messages for row in counts.topics.values() if row.dead_of),
            "refused": sum(counts.refusals.values()),
            "stream_records": counts.streams.messages,
        }
        stalls = {cause: tuple(histogram.counts) for cause, histogram in counts.stalls.items()}
        return Mark(
            time.monotonic(), totals, live, groups,  # type: ignore[arg-type]
            tuple(counts.commit_seconds.counts), tuple(counts.fsync_seconds.counts), stalls,
        )  # fmt: skip

    def _earlier(self, mark: Mark) -> Mark:
        """The mark that rates are taken from: the youngest that is about RATES_S old, else the oldest."""
        earlier = self._marks[0]
        for known in self._marks:
            if mark.at_s - known.at_s < RATES_S and known is not self._marks[0]:
                break
            earlier = known
        return earlier

    def stalls_since(self, seconds: float) -> dict[str, tuple[int, ...]]:
        """Stalls by cause in the last time: how many fell into each bucket."""
        now = self._mark()
        begin = next((mark for mark in self._marks if now.at_s - mark.at_s <= seconds), self._marks[-1])
        stalls = {cause: _minus(counts, begin.stalls.get(cause, ())) for cause, counts in now.stalls.items()}
        return {cause: counts for cause, counts in stalls.items() if any(counts)}

    def _made(self, gauges: GaugeSample, earlier: Mark, mark: Mark) -> BrokerSample:
        took_s = max(0.001, mark.at_s - earlier.at_s)
        rates = {name: _rate(value, earlier.totals[name], took_s) for name, value in mark.totals.items()}
        commit, fsync = _minus(mark.commit, earlier.commit), _minus(mark.fsync, earlier.fsync)
        bounds = self.metrics.counts.commit_seconds.bounds
        latency = Latency(
            _quantile_ms(bounds, commit, 0.5), _quantile_ms(bounds, commit, 0.99),
            _quantile_ms(bounds, fsync, 0.5), _quantile_ms(bounds, fsync, 0.99),
        )  # fmt: skip
        nothing = (0.0, 0.0, 0.0)
        topics = {
            name: (_rate(now[0], then[0], took_s), _rate(now[1], then[1], took_s))
            for name, now in mark.topics.items()
            for then in (earlier.topics.get(name, nothing),)
        }
        groups = {
            name: (_rate(now[0], then[0], took_s), _rate(now[1], then[1], took_s), _rate(now[2], then[2], took_s))
            for name, now in mark.groups.items()
            for then in (earlier.groups.get(name, nothing),)
        }
        return BrokerSample(
            self._engine.now_ms(), gauges, _groups_of(gauges), Rates(**rates), latency, topics, groups
        )  # fmt: skip

    # --- series ---

    def _put(self, sample: BrokerSample) -> None:
        gauges, sources = sample.gauges, self.metrics.sources
        rates = {name: getattr(sample.rates, name) for name in Rates.__struct_fields__}
        groups = list(sample.groups.values())
        stalls = self.stalls_since(STEP_MS / 1_000)
        values = {
            **rates,
            "lag": sum(row.lag for row in groups),
            "lag_seconds": max((row.lag_s for row in groups), default=0.0),
            "in_flight": sum(row.in_flight for row in groups),
            "waiting": sum(row.waiting for row in groups),
            "dead_letters": sum(row.dead_letters for row in gauges.topics),
            "messages": sum(row.messages for row in gauges.topics),
            "payload_bytes": sum(row.payload_bytes for row in gauges.topics),
            "commit_p99_ms": sample.latency.commit_p99_ms,
            "fsync_p99_ms": sample.latency.fsync_p99_ms,
            "stalls": sum(map(sum, stalls.values())),
            "disk_free_bytes": gauges.disk_free_bytes,
            "connections": sources.connections(),
            "workers": sources.workers(),
        }
        series, at_ms = self.series, sample.at_ms
        last_step = series.totals.last_step
        series.totals.put(at_ms, values)
        if at_ms // NAME_STEP_MS == last_step * STEP_MS // NAME_STEP_MS:
            return
        series.put_topics(
            at_ms,
            {
                (row.topic,): {
                    "produced": rate[0], "produced_bytes": rate[1], "messages": row.messages,
                    "payload_bytes": row.payload_bytes, "dead_letters": row.dead_letters,
                }
                for row in gauges.topics
                if row.topic != OTHER
                for rate in (sample.topic_rates.get((row.topic,), (0.0, 0.0)),)
            },
        )  # fmt: skip
        series.put_groups(
            at_ms,
            {
                name: {
                    "delivered": rate[0], "settled": rate[1], "failed": rate[2], "lag": row.lag,
                    "lag_seconds": row.lag_s, "in_flight": row.in_flight, "waiting": row.waiting,
                }
                for name, row in sample.groups.items()
                if name[0] != OTHER
                for rate in (sample.group_rates.get(name, (0.0, 0.0, 0.0)),)
            },
        )  # fmt: skip

    def _note_trend(self, at_s: float, sample: BrokerSample) -> None:
        if self.trend and at_s - self.trend[-1].at_s < TREND_S / (MARKS_MAX - 2):
            return
        lags = {name: row.lag for name, row in sample.groups.items()}
        letters = {row.topic: row.dead_letters for row in sample.gauges.topics if row.dead_letters}
        self.trend.append(Trend(at_s, lags, letters))

    # --- the file ---

    def _path(self) -> Path | None:
        return Path(self._engine.folder, FILE) if self._engine.folder is not None else None

    async def _save(self) -> None:
        self._saved_s = time.monotonic()
        path = self._path()
        if path is not None:
            packed = self.series.pack()
            await asyncio.get_running_loop().run_in_executor(None, partial(_write, path, packed))


def _groups_of(gauges: GaugeSample) -> dict[Name, GroupFigures]:
    groups: dict[Name, GroupFigures] = {}
    for row in gauges.partitions:
        known = groups.get((row.topic, row.group))
        if known is None:
            groups[row.topic, row.group] = GroupFigures(
                row.lag, row.lag_s, row.in_flight, row.waiting, row.is_paused
            )  # fmt: skip
        else:
            groups[row.topic, row.group] = GroupFigures(
                known.lag + row.lag, max(known.lag_s, row.lag_s), known.in_flight + row.in_flight,
                known.waiting + row.waiting, row.is_paused,
            )  # fmt: skip
    return groups


def _rate(now: float, then: float, seconds: float) -> float:
    return round(max(0.0, now - then) / seconds, 2)


def _minus(now: Sequence[int], then: Sequence[int]) -> tuple[int, ...]:
    return tuple(a - b for a, b in zip(now, then, strict=True)) if then else tuple(now)


def _quantile_ms(bounds: Sequence[float], counts: Sequence[int], share: float) -> float:
    """The upper bound of the bucket in which a quantile lies; the last bound for what is above all of them."""
    wanted, seen = share * sum(counts), 0
    for bound, count in zip(bounds, counts):
        seen += count
        if count and seen >= wanted:
            return bound * 1_000
    return bounds[-1] * 1_000 if any(counts) else 0.0


def longest_ms(histogram: Histogram, counts: Sequence[int]) -> float:
    """The upper bound of the highest bucket that is not empty."""
    bounds = (*histogram.bounds, math.inf)
    highest = max((bound for bound, count in zip(bounds, counts) if count), default=0.0)
    return min(highest, 60.0) * 1_000


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _write(path: Path, packed: bytes) -> None:
    """Replace the file. It is not synced, and a failure is not an error: series can be lost."""
    try:
        new = path.with_name(f"{path.name}.new")
        new.write_bytes(seal(packed))
        new.replace(path)
    except OSError as error:
        logger.warning("the series could not be saved: %s", error)
