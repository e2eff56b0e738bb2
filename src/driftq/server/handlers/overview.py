"""The overview of the broker, and its time series."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import driftq
from driftq.server.access.identity import require_any_group, require_any_topic, sees_group, sees_topic
from driftq.server.handlers.codec import json_response, number, refused
from driftq.server.http import BadRequest, Request, Response
from driftq.server.observation.attention import archive_info, attention
from driftq.server.observation.sampler import longest_ms
from driftq.server.observation.series import STEP_MS, STEPS_MAX
from driftq.wire.errors import Code
from driftq.wire.fields import to_rfc3339
from driftq.wire.overview import Counts, DiskUse, GroupName, OverviewReply, SeriesNames, SeriesReply, Stalls

if TYPE_CHECKING:
    from driftq.server.handlers.context import Context
    from driftq.server.observation.sampler import BrokerSample

STALLS_S = 300.0
WINDOW_MS = 3_600_000
WINDOW_MS_MAX = STEP_MS * STEPS_MAX
POINTS, POINTS_MAX = 360, 2_880


class OverviewHandlers:
    """Handlers of `/v1/overview` and `/v1/series`."""

    def __init__(self, context: Context) -> None:
        self._engine = context.engine
        self._sampler = context.observers.sampler

    async def overview(self, request: Request) -> Response:
        engine, sampler = self._engine, self._sampler
        sample = await sampler.fresh()
        disk = await self._disk(sample)
        stalls = self._stalls()
        now_ms = engine.now_ms()
        return json_response(
            OverviewReply(
                version=driftq.__version__,
                durability="fsync" if engine.report is not None else "memory",
                now=to_rfc3339(now_ms),
                started_at=to_rfc3339(sampler.started_ms),
                uptime_ms=int(1_000 * (time.monotonic() - sampler.started_s)),
                sampled_at=to_rfc3339(sample.at_ms),
                counts=self._counts(sample),
                rates=sample.rates,
                latency=sample.latency,
                oldest_lag_ms=int(1_000 * max((row.lag_s for row in sample.groups.values()), default=0.0)),
                disk=disk,
                stalls=stalls,
                attention=attention(engine, sampler, sample, disk, stalls, request.identity),
                archive=archive_info(engine.archiver),
            )
        )

    def _counts(self, sample: BrokerSample) -> Counts:
        counts, topics, groups = sample.gauges.counts, sample.gauges.topics, list(sample.groups.values())
        sources = self._sampler.metrics.sources
        return Counts(
            topics=counts.get("driftq_topics", 0),
            groups=counts.get("driftq_groups", 0),
            idle_groups=counts.get("driftq_idle_groups", 0),
            streams=counts.get("driftq_streams", 0),
            messages=sum(row.messages for row in topics),
            payload_bytes=sum(row.payload_bytes for row in topics),
            lag=sum(row.lag for row in groups),
            in_flight=sum(row.in_flight for row in groups),
            waiting=sum(row.waiting for row in groups),
            dead_letters=sum(row.dead_letters for row in topics),
            workers=sources.workers(),
            connections=sources.connections(),
            open_streams=sources.streams(),
        )

    async def _disk(self, sample: BrokerSample) -> DiskUse | None:
        folder, sequencer = self._engine.folder, self._engine.sequencer
        if folder is None:
            return None
        filesystem = await asyncio.get_running_loop().run_in_executor(None, os.statvfs, folder)
        return DiskUse(
            used_bytes=sample.gauges.disk_bytes,
            free_bytes=filesystem.f_bavail * filesystem.f_frsize,
            size_bytes=filesystem.f_blocks * filesystem.f_frsize,
            unsynced_bytes=sequencer.waiting_bytes(),
            journal_room_bytes=self._engine.room_bytes,
        )

    def _stalls(self) -> Stalls:
        by_cause = self._sampler.stalls_since(STALLS_S)
        histograms = self._sampler.metrics.counts.stalls
        return Stalls(
            count=sum(map(sum, by_cause.values())),
            longest_ms=max((longest_ms(histograms[cause], counts) for cause, counts in by_cause.items()), default=0.0),
            causes={cause: sum(counts) for cause, counts in by_cause.items()},
        )

    # --- series ---

    async def series(self, request: Request) -> Response:
        """The totals, or the series of a topic or a group: of the last `window_ms`, in at most `points` values."""
        query = request.query
        topic, group = query.get("topic", ""), query.get("group", "")
        window_ms = number("window_ms", query.get("window_ms", str(WINDOW_MS)))
        points = number("points", query.get("points", str(POINTS)))
        if not 1 <= window_ms <= WINDOW_MS_MAX:
            raise BadRequest(f"window_ms must be 1 to {WINDOW_MS_MAX}")
        if not 1 <= points <= POINTS_MAX:
            raise BadRequest(f"points must be 1 to {POINTS_MAX}")
        if group and not topic:
            raise BadRequest("a group belongs to a topic: name the topic too")
        series = self._sampler.series
        ring = series.totals
        if topic:
            whose = (topic, group) if group else (topic,)
            if group:
                require_any_group(request, topic, group)
            else:
                require_any_topic(request, topic)
            chosen = (series.groups if group else series.topics).get(whose)
            if chosen is None:
                message = f"there is no series of {' / '.join(whose)}: only the most active topics and groups have one"
                return refused(Code.NOT_FOUND, message)
            ring = chosen
        names = query["names"].split(",") if query.get("names") else list(ring.columns)
        unknown = [name for name in names if name not in ring.columns]
        if unknown:
            raise BadRequest(f"there is no series {unknown[0]!r}: use some of {', '.join(ring.columns)}")
        now_ms = self._engine.now_ms()
        window = ring.window(now_ms - window_ms, now_ms, points)
        values: dict[str, list[float | None]] = {}
        for name in names:
            values[name] = ring.values(name, window)
            await asyncio.sleep(0)  # a column is enough for one turn of the loop
        return json_response(SeriesReply(to_rfc3339(window.start_ms), window.step_ms, values, topic, group))

    async def names(self, request: Request) -> Response:
        """Which topics and groups have series."""
        series, identity = self._sampler.series, request.identity
        topics = sorted(topic for (topic,) in series.topics if sees_topic(identity, topic))
        groups = sorted((topic, group) for topic, group in series.groups if sees_group(identity, topic, group))
        return json_response(SeriesNames(topics, [GroupName(*name) for name in groups]))
