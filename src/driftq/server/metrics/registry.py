"""The page that Prometheus scrapes. Only the metrics of `server.metrics.definitions` are exposed.

Counters come from `server.metrics.counters`, gauges from `server.metrics.gauges`, sampled at the scrape. Units are
seconds and bytes. The page is sampled and written in slices, between which the server handles requests.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

import driftq
from driftq.server.metrics.counters import Counters, Histogram
from driftq.server.metrics.definitions import DEFINED
from driftq.server.metrics.gauges import Gauges, GaugeSample, PartitionRow, TopicRow
from driftq.server.metrics.text_format import Family, Sample, lines
from driftq.server.slices import next_slice
from driftq.wire.errors import Code

if TYPE_CHECKING:
    from driftq.engine.engine import Engine
    from driftq.server.logs import AccessLog
    from driftq.server.router.caller import RouterCaller

SAMPLE_WAIT_S = 1.0  # then a scrape shows the last sample


class Sources(NamedTuple):
    """Sources of metrics besides the engine."""

    access_log: AccessLog | None = None
    router: RouterCaller | None = None
    connections: Callable[[], int] = lambda: 0
    streams: Callable[[], int] = lambda: 0
    recovery_s: float = 0.0
    connections_max: int = 0
    workers: Callable[[], int] = lambda: 0
    tls_not_after_s: Callable[[], float] | None = None  # None: without TLS


class TenantRow(NamedTuple):
    """One tenant."""

    tenant: str
    requests: int
    messages: int
    payload_bytes: int
    refused: dict[str, int]  # by quota
    used: dict[str, int]
    quotas: dict[str, int]


class Metrics:
    """The metrics of one server. Counting starts with the constructor."""

    def __init__(self, engine: Engine, sources: Sources | None = None) -> None:
        self.counts = Counters(engine.latest_state)
        self._engine = engine
        self.sources = sources or Sources()
        self._gauges = Gauges(engine)
        self.last_sample = GaugeSample([], [], {}, 0, {})  # the last finished one: all of it is durable
        self.sampled_s = -math.inf  # when that was, by a clock that is never set
        self.sample_cost_s = 0.0  # how long it took
        self._sampling: asyncio.Task[None] | None = None
        self.tenants: Callable[[], list[TenantRow]] = list  # of those with metrics of their own
        self.credentials: Callable[[], dict[str, int]] = dict  # refused ones, by reason
        self._registry = CollectorRegistry()  # of the process
        ProcessCollector(registry=self._registry)
        engine.sequencer.observers.append(self.counts.observe)
        engine.sequencer.reply_observers.append(self.counts.observe_reply)
        engine.commits.on_commit = self.counts.committed
        engine.monitor.on_stall = self.counts.stalled

    async def sample(self, age_s: float = 0.0) -> GaugeSample:
        """The gauges, at most `age_s` old. If the disk is stuck, or a sample takes long, this is the last one."""
        if time.monotonic() - self.sampled_s >= age_s:
            if self._sampling is None:
                self._sampling = asyncio.ensure_future(self._engine.monitor.steps("metrics", self._take_sample()))
            done, _ = await asyncio.wait([self._sampling], timeout=SAMPLE_WAIT_S)
            for task in done:
                task.result()
        return self.last_sample

    async def page(self) -> bytes:
        """All metrics, in the text format."""
        await self.sample()
        parts = [generate_latest(self._registry).decode()]
        rest = lines(self._families())
        while (piece := next_slice(rest)) is not None:
            parts.append("".join(piece))
            await asyncio.sleep(0)
        return "".join(parts).encode()

    async def _take_sample(self) -> None:
        began_s = time.monotonic()
        try:
            self.last_sample = await self._gauges.sample()
            self.sampled_s = time.monotonic()
            self.sample_cost_s = self.sampled_s - began_s
        finally:
            self._sampling = None

    def _families(self) -> Iterator[Family]:
        yield from self._produce()
        yield from self._consume()
        yield from self._commit()
        yield from self._state()
        yield from _lag(self.last_sample.partitions)
        refused: list[Sample] = [((reason,), count) for reason, count in self.credentials().items()]
        yield _samples("driftq_credentials_refused_total", refused)
        yield from _tenants(self.tenants())
        yield from self._http()

    def _produce(self) -> Iterator[Family]:
        counts = self.counts
        live = [(name, counters) for name, counters in counts.topics.items() if not counters.dead_of]
        yield _samples("driftq_messages_produced_total", (((name,), counters.messages) for name, counters in live))
        yield _samples("driftq_produced_bytes_total", (((name,), counters.payload_bytes) for name, counters in live))
        yield _one("driftq_produce_duplicates_total", counts.duplicates)
        rejected: list[Sample] = [((reason,), count) for reason, count in counts.produce_refusals.items()]
        yield _samples("driftq_produce_rejected_total", rejected)
        yield _samples("produce_rejected_total", rejected)
        dead: list[Sample] = [
            ((counters.dead_of, reason), count)
            for counters in counts.topics.values()
            if counters.dead_of
            for reason, count in counters.reasons.items()
        ]
        yield _samples("driftq_dlq_messages_total", dead)
        yield _samples("dlq_messages_total", dead)
        yield _samples(
            "driftq_redriven_total", (((name.removeprefix("dlq."),), n) for name, n in counts.redriven.items())
        )
        yield _samples("driftq_refusals_total", (((code.value,), n) for code, n in counts.refusals.items()))
        yield _one("driftq_stale_lease_rejections_total", counts.refusals.get(Code.NOT_OWNER, 0))
        yield _one("driftq_stream_records_total", counts.streams.messages)
        yield _one("driftq_stream_bytes_total", counts.streams.payload_bytes)
        yield _one("driftq_schedule_firings_total", counts.firings)
        yield _one("driftq_schedule_missed_total", counts.missed_firings)
        yield _samples("driftq_job_batches_ended_total", (((state,), n) for state, n in counts.job_batches.items()))
        yield _samples(
            "driftq_job_batch_members_ended_total", (((state,), n) for state, n in counts.job_batch_members.items())
        )
        yield _samples("driftq_events_total", (((name,), n) for name, n in counts.facts.items()))

    def _consume(self) -> Iterator[Family]:
        groups = list(self.counts.groups.items())
        yield _samples("driftq_deliveries_total", ((names, counters.delivered) for names, counters in groups))
        settled = [((*names, how), n) for names, counters in groups for how, n in counters.settled.items()]
        yield _samples("driftq_settled_total", settled)
        yield _samples("driftq_failures_total", ((names, counters.failures) for names, counters in groups))
        yield _samples("driftq_lease_losses_total", ((names, counters.lease_losses) for names, counters in groups))
        yield _samples("driftq_releases_total", ((names, counters.released) for names, counters in groups))
        yield _samples("driftq_lease_extensions_total", ((names, counters.extended) for names, counters in groups))

    def _commit(self) -> Iterator[Family]:
        sequencer, sample = self._engine.sequencer, self.last_sample
        yield _one("driftq_frames_total", self.counts.frames)
        yield _histogram("driftq_commit_seconds", self.counts.commit_seconds)
        yield _histogram("driftq_fsync_seconds", self.counts.fsync_seconds)
        yield _histogram("driftq_commit_frames", self.counts.commit_frames)
        lsns = [(("decided",), sequencer.decided_lsn), (("durable",), sequencer.durable_lsn)]
        yield _samples("driftq_journal_lsn", lsns)
        yield _one("driftq_unsynced_bytes", sequencer.waiting_bytes())
        yield _one("driftq_journal_room_bytes", self._engine.room_bytes)
        yield _samples("driftq_disk_bytes", (((part,), size) for part, size in sorted(sample.disk_bytes.items())))
        yield _one("driftq_disk_free_bytes", sample.disk_free_bytes)
        yield _one("driftq_recovery_seconds", self.sources.recovery_s)
        yield from self._archive()
        yield from self._tiers()
        stalls = [((cause,), histogram) for cause, histogram in sorted(self.counts.stalls.items())]
        yield _histograms("driftq_loop_stall_seconds", stalls)
        clock = self._engine.read_clock()
        yield _one("driftq_clock_ahead_seconds", clock.ahead_ms / 1_000)
        yield _one("driftq_clock_held", clock.held)

    def _archive(self) -> Iterator[Family]:
        archiver = self._engine.archiver
        status = archiver.status() if archiver is not None else None
        statuses = [status] if status is not None else []
        yield _samples("driftq_archive_lag_seconds", (((), row.lag_ms / 1_000) for row in statuses))
        yield _samples("driftq_archive_lag_bytes", (((), row.lag_bytes) for row in statuses))
        lsns = ((("shipped",), row.shipped_lsn) for row in statuses)
        yield _samples("driftq_archive_lsn", [*lsns, *((("base",), row.base_lsn) for row in statuses)])
        yield _samples("driftq_archive_up", (((row.state,), 1) for row in statuses))

    def _tiers(self) -> Iterator[Family]:
        cold_reads = self._engine.cold_reads
        rows = [cold_reads.figures()] if cold_reads is not None else []
        sizes = [("local", "local_bytes"), ("archive", "archived_bytes")]
        yield _samples("driftq_tier_bytes", (((name,), getattr(row, field)) for row in rows for name, field in sizes))
        counts = [("hit", "cache_hits"), ("download", "downloads"), ("failure", "failures")]
        reads = (((name,), getattr(row, field)) for row in rows for name, field in counts)
        yield _samples("driftq_cold_reads_total", reads)
        yield _samples("driftq_cold_read_bytes_total", (((), row.downloaded_bytes) for row in rows))

    def _state(self) -> Iterator[Family]:
        topics = self.last_sample.topics
        for name, count in self.last_sample.counts.items():
            yield _one(name, count)
        yield from _topics(topics)
        durability = "fsync" if self._engine.report is not None else "memory"
        yield _samples("driftq_build_info", [((driftq.__version__, durability), 1)])

    def _http(self) -> Iterator[Family]:
        access_log, router = self.sources.access_log, self.sources.router
        yield _one("driftq_connections", self.sources.connections())
        yield _one("driftq_connections_max", self.sources.connections_max)
        yield _one("driftq_open_streams", self.sources.streams())
        yield _one("driftq_workers", self.sources.workers())
        expiry = self.sources.tls_not_after_s
        yield _samples("driftq_tls_certificate_expiry_seconds", [((), expiry())] if expiry is not None else [])
        statuses = sorted(access_log.by_status.items()) if access_log is not None else []
        yield _samples("driftq_http_responses_total", (((str(status),), count) for status, count in statuses))
        results = sorted(router.results.items()) if router is not None else []
        yield _samples("driftq_router_decisions_total", (((result,), count) for result, count in results))
        yield _histogram("driftq_router_seconds", router.seconds if router is not None else Histogram())


async def tenant_page(gauges: Gauges, row: TenantRow) -> bytes:
    """The metrics that a tenant sees: its own, and those of its topics."""
    partitions, topics = await gauges.rows()
    return "".join(lines([*_tenants([row]), *_topics(topics), *_lag(partitions)])).encode()


def _topics(rows: list[TopicRow]) -> Iterator[Family]:
    yield _samples("driftq_backlog_messages", (((row.topic,), row.messages) for row in rows))
    yield _samples("driftq_backlog_bytes", (((row.topic,), row.payload_bytes) for row in rows))
    used = (((row.topic, row.slowest), row.used) for row in rows if row.slowest)
    yield _samples("driftq_backlog_used_ratio", used)
    yield _samples("driftq_oldest_message_age_seconds", (((row.topic,), row.oldest_s) for row in rows))
    yield _samples("driftq_dead_letters", (((row.topic,), row.dead_letters) for row in rows))


def _lag(rows: list[PartitionRow]) -> Iterator[Family]:
    names = [(row.topic, row.group, row.partition) for row in rows]
    lag = list(zip(names, (row.lag for row in rows)))
    in_flight = list(zip(names, (row.in_flight for row in rows)))
    yield _samples("driftq_consumer_lag_messages", lag)
    yield _samples("consumer_lag", lag)
    yield _samples("driftq_consumer_lag_seconds", zip(names, (row.lag_s for row in rows)))
    yield _samples("driftq_inflight_messages", in_flight)
    yield _samples("inflight_messages", in_flight)
    yield _samples("driftq_resting_messages", zip(names, (row.waiting for row in rows)))
    yield _samples("driftq_group_gaps", zip(names, (row.gaps for row in rows)))


def _tenants(rows: list[TenantRow]) -> Iterator[Family]:
    yield _samples("driftq_tenant_requests_total", (((row.tenant,), row.requests) for row in rows))
    yield _samples("driftq_tenant_messages_total", (((row.tenant,), row.messages) for row in rows))
    yield _samples("driftq_tenant_bytes_total", (((row.tenant,), row.payload_bytes) for row in rows))
    refused = (((row.tenant, quota), count) for row in rows for quota, count in row.refused.items())
    yield _samples("driftq_tenant_refused_total", refused)
    used = (((row.tenant, quota), count) for row in rows for quota, count in row.used.items())
    yield _samples("driftq_tenant_used", used)
    quotas = (((row.tenant, quota), limit) for row in rows for quota, limit in row.quotas.items())
    yield _samples("driftq_tenant_quota", quotas)


def _samples(name: str, samples: Iterable[Sample]) -> Family:
    return Family(DEFINED[name], list(samples))


def _one(name: str, value: float) -> Family:
    return _samples(name, [((), value)])


def _histograms(name: str, histograms: Iterable[tuple[tuple[str, ...], Histogram]]) -> Family:
    return Family(DEFINED[name], histograms=list(histograms))


def _histogram(name: str, histogram: Histogram) -> Family:
    return _histograms(name, [((), histogram)])
