"""Every metric by name, and the page that Prometheus scrapes.

`METRICS` is the list: only its metrics are exposed, and `docs/reference/metrics.md` is generated from it.
Counters come from `server.metrics.counters`, gauges from `server.metrics.gauges`, sampled at the scrape. Units are
seconds and bytes. The page is sampled and written in slices, between which the server handles requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

import driftq
from driftq.server.metrics.counters import Counters, Histogram
from driftq.server.metrics.gauges import Gauges, GaugeSample
from driftq.server.metrics.text_format import Family, MetricDefinition, Sample, lines
from driftq.server.slices import next_slice
from driftq.wire.errors import Code

if TYPE_CHECKING:
    from driftq.engine.engine import Engine
    from driftq.server.logs import AccessLog
    from driftq.server.router.caller import RouterCaller

SAMPLE_WAIT_S = 1.0  # then a scrape shows the last sample


_GROUP = ("topic", "group")
_PARTITION = ("topic", "group", "partition")

METRICS: tuple[MetricDefinition, ...] = (
    MetricDefinition("driftq_messages_produced_total", "counter", ("topic",), "Messages stored in a topic."),
    MetricDefinition(
        "driftq_produced_bytes_total", "counter", ("topic",), "Bytes of keys, values and envelopes stored in a topic."
    ),
    MetricDefinition(
        "driftq_produce_duplicates_total",
        "counter",
        (),
        "Produces answered with the result of an earlier one (duplicates).",
    ),
    MetricDefinition("driftq_produce_rejected_total", "counter", ("reason",), "Produces that were refused."),
    MetricDefinition("driftq_deliveries_total", "counter", _GROUP, "Deliveries of messages, repeated ones included."),
    MetricDefinition(
        "driftq_settled_total",
        "counter",
        ("topic", "group", "how"),
        "Messages settled: acked, dead, cancelled or skipped.",
    ),
    MetricDefinition("driftq_failures_total", "counter", _GROUP, "Attempts that ended with a nack."),
    MetricDefinition(
        "driftq_lease_losses_total", "counter", _GROUP, "Attempts that ended because their lease expired."
    ),
    MetricDefinition("driftq_releases_total", "counter", _GROUP, "Messages released without counting an attempt."),
    MetricDefinition("driftq_lease_extensions_total", "counter", _GROUP, "Messages whose lease was extended."),
    MetricDefinition("driftq_dlq_messages_total", "counter", ("topic", "reason"), "Messages that became dead letters."),
    MetricDefinition("driftq_redriven_total", "counter", ("topic",), "Dead letters that were sent back."),
    MetricDefinition("driftq_refusals_total", "counter", ("code",), "Calls, or messages of a call, that were refused."),
    MetricDefinition(
        "driftq_stale_lease_rejections_total",
        "counter",
        (),
        "Acks, nacks and the like from a client that does not hold the lease.",
    ),
    MetricDefinition("driftq_stream_records_total", "counter", (), "Records appended to durable streams."),
    MetricDefinition("driftq_stream_bytes_total", "counter", (), "Bytes appended to durable streams."),
    MetricDefinition(
        "driftq_events_total", "counter", ("event",), "Topics, groups, streams and effects created, ended or deleted."
    ),
    MetricDefinition("driftq_frames_total", "counter", (), "Frames that became durable."),
    MetricDefinition("driftq_commit_seconds", "histogram", (), "Time from the start of a commit until it is durable."),
    MetricDefinition("driftq_fsync_seconds", "histogram", (), "Time to write and sync one block of the journal."),
    MetricDefinition("driftq_commit_frames", "histogram", (), "Frames that shared one sync."),
    MetricDefinition(
        "driftq_loop_stall_seconds",
        "histogram",
        ("cause",),
        "Turns of the event loop of 20 ms and longer, by what held it: a route, `commit`, `sweep` and so on.",
    ),
    MetricDefinition("driftq_journal_lsn", "gauge", ("state",), "LSN of the last frame: decided, or durable."),
    MetricDefinition("driftq_unsynced_bytes", "gauge", (), "Bytes that are decided and not yet durable."),
    MetricDefinition(
        "driftq_journal_room_bytes", "gauge", (), "Bytes the journal can take before it needs more disk space."
    ),
    MetricDefinition(
        "driftq_archive_lag_seconds", "gauge", (), "Age of the oldest change that is not in the archive yet."
    ),
    MetricDefinition(
        "driftq_archive_lag_bytes", "gauge", (), "Bytes of the journal that are durable and not in the archive yet."
    ),
    MetricDefinition(
        "driftq_archive_lsn", "gauge", ("state",), "LSN of the last frame in the archive: shipped, or base."
    ),
    MetricDefinition(
        "driftq_archive_up",
        "gauge",
        ("state",),
        "1 for the present state of the archive: starting, waiting, shipping, failing or superseded.",
    ),
    MetricDefinition("driftq_disk_bytes", "gauge", ("part",), "Bytes of files: journal, logs, snapshots."),
    MetricDefinition("driftq_disk_free_bytes", "gauge", (), "Free bytes of the file system of the data folder."),
    MetricDefinition("driftq_recovery_seconds", "gauge", (), "How long recovery took at the last start."),
    MetricDefinition(
        "driftq_clock_ahead_seconds", "gauge", (), "How far the machine's clock is ahead of the broker's time."
    ),
    MetricDefinition(
        "driftq_clock_held", "gauge", (), "1 while the two differ so much that an operator has to decide."
    ),
    MetricDefinition("driftq_topics", "gauge", (), "Topics, not counting dead-letter topics."),
    MetricDefinition("driftq_groups", "gauge", (), "Groups of all topics."),
    MetricDefinition("driftq_idle_groups", "gauge", (), "Idle groups, which do not block producers."),
    MetricDefinition("driftq_streams", "gauge", (), "Durable streams."),
    MetricDefinition("driftq_idempotency_keys", "gauge", (), "Idempotency keys of produces that are remembered."),
    MetricDefinition("driftq_effect_keys", "gauge", (), "Keys of effects that are remembered."),
    MetricDefinition("driftq_backlog_messages", "gauge", ("topic",), "Messages that a topic holds."),
    MetricDefinition(
        "driftq_backlog_bytes", "gauge", ("topic",), "Bytes of keys, values and envelopes that a topic holds."
    ),
    MetricDefinition(
        "driftq_backlog_used_ratio",
        "gauge",
        _GROUP,
        "Share of the backlog limit in use, by the slowest group in the fullest partition; at 1 produces get 429.",
    ),
    MetricDefinition(
        "driftq_oldest_message_age_seconds", "gauge", ("topic",), "Age of the oldest message that a topic holds."
    ),
    MetricDefinition("driftq_dead_letters", "gauge", ("topic",), "Dead letters that were not sent back."),
    MetricDefinition("driftq_consumer_lag_messages", "gauge", _PARTITION, "Messages that a group has not settled."),
    MetricDefinition(
        "driftq_consumer_lag_seconds", "gauge", _PARTITION, "Age of the oldest message a group has not settled."
    ),
    MetricDefinition("driftq_inflight_messages", "gauge", _PARTITION, "Messages in flight, under a lease."),
    MetricDefinition(
        "driftq_resting_messages", "gauge", _PARTITION, "Waiting messages: in backoff, or delayed until a time."
    ),
    MetricDefinition(
        "driftq_group_gaps",
        "gauge",
        _PARTITION,
        "Settled ranges above the lowest unsettled message; 16 bytes of memory each.",
    ),
    MetricDefinition("driftq_connections", "gauge", (), "Open connections."),
    MetricDefinition("driftq_connections_max", "gauge", (), "Limit of connections; further ones get 503."),
    MetricDefinition("driftq_workers", "gauge", (), "Processes that run workers and announce themselves."),
    MetricDefinition("driftq_open_streams", "gauge", (), "Connections with an open stream: consumers, live tails."),
    MetricDefinition(
        "driftq_tls_certificate_expiry_seconds",
        "gauge",
        (),
        "When the TLS certificate in use expires, as a Unix time; nothing without TLS.",
    ),
    MetricDefinition("driftq_http_responses_total", "counter", ("status",), "Responses by HTTP status."),
    MetricDefinition(
        "driftq_router_decisions_total",
        "counter",
        ("result",),
        "Calls of the router: routed, unrouted, timeout, error, invalid.",
    ),
    MetricDefinition("driftq_router_seconds", "histogram", (), "Time of a router call."),
    MetricDefinition("driftq_build_info", "gauge", ("version", "durability"), "Always 1."),
    MetricDefinition("inflight_messages", "gauge", _PARTITION, "Upstream name of driftq_inflight_messages."),
    MetricDefinition("consumer_lag", "gauge", _PARTITION, "Upstream name of driftq_consumer_lag_messages."),
    MetricDefinition(
        "dlq_messages_total", "counter", ("topic", "reason"), "Upstream name of driftq_dlq_messages_total."
    ),
    MetricDefinition(
        "produce_rejected_total", "counter", ("reason",), "Upstream name of driftq_produce_rejected_total."
    ),
)


def table() -> list[tuple[str, str, str, str]]:
    """The rows of the table in the reference."""
    return [(f"`{name}`", kind, ", ".join(labels), meaning) for name, kind, labels, meaning in METRICS]


_DEFINED = {metric.name: metric for metric in METRICS}


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


class Metrics:
    """The metrics of one server. Counting starts with the constructor."""

    def __init__(self, engine: Engine, sources: Sources | None = None) -> None:
        self.counts = Counters(engine.latest_state)
        self._engine = engine
        self._sources = sources or Sources()
        self._gauges = Gauges(engine)
        self._sample = GaugeSample([], [], {}, 0, {})  # the last finished one: all of it is durable
        self._sampling: asyncio.Task[None] | None = None
        self._registry = CollectorRegistry()  # of the process
        ProcessCollector(registry=self._registry)
        engine.sequencer.observers.append(self.counts.observe)
        engine.sequencer.reply_observers.append(self.counts.observe_reply)
        engine.commits.on_commit = self.counts.committed
        engine.monitor.on_stall = self.counts.stalled

    async def page(self) -> bytes:
        """All metrics, in the text format. If the disk is stuck, a scrape shows the last sample."""
        if self._sampling is None:
            self._sampling = asyncio.ensure_future(self._engine.monitor.steps("metrics", self._take_sample()))
        done, _ = await asyncio.wait([self._sampling], timeout=SAMPLE_WAIT_S)
        for task in done:
            task.result()
        parts = [generate_latest(self._registry).decode()]
        rest = lines(self._families())
        while (piece := next_slice(rest)) is not None:
            parts.append("".join(piece))
            await asyncio.sleep(0)
        return "".join(parts).encode()

    async def _take_sample(self) -> None:
        try:
            self._sample = await self._gauges.sample()
        finally:
            self._sampling = None

    def _families(self) -> Iterator[Family]:
        yield from self._produce()
        yield from self._consume()
        yield from self._commit()
        yield from self._state()
        yield from self._lag()
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
        sequencer, sample = self._engine.sequencer, self._sample
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
        yield _one("driftq_recovery_seconds", self._sources.recovery_s)
        yield from self._archive()
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

    def _state(self) -> Iterator[Family]:
        topics = self._sample.topics
        for name, count in self._sample.counts.items():
            yield _one(name, count)
        yield _samples("driftq_backlog_messages", (((row.topic,), row.messages) for row in topics))
        yield _samples("driftq_backlog_bytes", (((row.topic,), row.payload_bytes) for row in topics))
        used = (((row.topic, row.slowest), row.used) for row in topics if row.slowest)
        yield _samples("driftq_backlog_used_ratio", used)
        yield _samples("driftq_oldest_message_age_seconds", (((row.topic,), row.oldest_s) for row in topics))
        yield _samples("driftq_dead_letters", (((row.topic,), row.dead_letters) for row in topics))
        durability = "fsync" if self._engine.report is not None else "memory"
        yield _samples("driftq_build_info", [((driftq.__version__, durability), 1)])

    def _lag(self) -> Iterator[Family]:
        rows = self._sample.partitions
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

    def _http(self) -> Iterator[Family]:
        access_log, router = self._sources.access_log, self._sources.router
        yield _one("driftq_connections", self._sources.connections())
        yield _one("driftq_connections_max", self._sources.connections_max)
        yield _one("driftq_open_streams", self._sources.streams())
        yield _one("driftq_workers", self._sources.workers())
        expiry = self._sources.tls_not_after_s
        yield _samples("driftq_tls_certificate_expiry_seconds", [((), expiry())] if expiry is not None else [])
        statuses = sorted(access_log.by_status.items()) if access_log is not None else []
        yield _samples("driftq_http_responses_total", (((str(status),), count) for status, count in statuses))
        results = sorted(router.results.items()) if router is not None else []
        yield _samples("driftq_router_decisions_total", (((result,), count) for result, count in results))
        yield _histogram("driftq_router_seconds", router.seconds if router is not None else Histogram())


def _samples(name: str, samples: Iterable[Sample]) -> Family:
    return Family(_DEFINED[name], list(samples))


def _one(name: str, value: float) -> Family:
    return _samples(name, [((), value)])


def _histograms(name: str, histograms: Iterable[tuple[tuple[str, ...], Histogram]]) -> Family:
    return Family(_DEFINED[name], histograms=list(histograms))


def _histogram(name: str, histogram: Histogram) -> Family:
    return _histograms(name, [((), histogram)])
