"""Every metric by name, and the page that Prometheus reads.

`METRICS` is the list: what is not in it cannot be shown, and `docs/reference/metrics.md` is made from it. Counters come
from `server.metrics.counters`, gauges from `server.metrics.gauges` at the moment of the scrape, or as they last were
durable. Units are seconds and bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

import driftq
from driftq.server.metrics.counters import Counters
from driftq.server.metrics.gauges import Gauges, GaugeSample
from driftq.server.metrics.histogram import Histogram
from driftq.wire.errors import Code

if TYPE_CHECKING:
    from driftq.engine.engine import Engine
    from driftq.server.access_log import AccessLog
    from driftq.server.router.caller import RouterCaller

LOOK_WAIT_S = 1.0  # for gauges to be durable
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Defined(NamedTuple):
    """One metric."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    meaning: str


_GROUP = ("topic", "group")
_PARTITION = ("topic", "group", "partition")

METRICS: tuple[Defined, ...] = (
    Defined("driftq_messages_produced_total", "counter", ("topic",), "Messages stored in a topic."),
    Defined("driftq_produced_bytes_total", "counter", ("topic",), "Bytes of keys and values stored in a topic."),
    Defined("driftq_produce_duplicates_total", "counter", (), "Produces answered with the result of an earlier one."),
    Defined("driftq_produce_rejected_total", "counter", ("reason",), "Produces that were refused."),
    Defined("driftq_deliveries_total", "counter", _GROUP, "Messages handed out, each time it happened."),
    Defined(
        "driftq_settled_total",
        "counter",
        ("topic", "group", "how"),
        "Messages done: acked, dead, cancelled or skipped.",
    ),
    Defined("driftq_failures_total", "counter", _GROUP, "Attempts that ended with a nack."),
    Defined("driftq_lease_losses_total", "counter", _GROUP, "Attempts that ended because their lease ran out."),
    Defined("driftq_releases_total", "counter", _GROUP, "Messages given back without counting an attempt."),
    Defined("driftq_lease_extensions_total", "counter", _GROUP, "Messages whose lease was extended."),
    Defined("driftq_dlq_messages_total", "counter", ("topic", "reason"), "Messages that became dead letters."),
    Defined("driftq_redriven_total", "counter", ("topic",), "Dead letters that were sent back."),
    Defined("driftq_refusals_total", "counter", ("code",), "Calls, or messages of a call, that were refused."),
    Defined(
        "driftq_stale_lease_rejections_total", "counter", (), "Acks, nacks and the like from who is not the holder."
    ),
    Defined("driftq_stream_records_total", "counter", (), "Records appended to durable streams."),
    Defined("driftq_stream_bytes_total", "counter", (), "Bytes appended to durable streams."),
    Defined(
        "driftq_events_total", "counter", ("event",), "Topics, groups, streams and effects made, ended or deleted."
    ),
    Defined("driftq_frames_total", "counter", (), "Frames that became durable."),
    Defined("driftq_commit_seconds", "histogram", (), "From taking a batch of frames to its being durable."),
    Defined("driftq_fsync_seconds", "histogram", (), "Writing and syncing one block of the journal."),
    Defined("driftq_commit_frames", "histogram", (), "Frames that shared one sync."),
    Defined("driftq_journal_lsn", "gauge", ("state",), "Number of the last frame: decided, or durable."),
    Defined("driftq_unsynced_bytes", "gauge", (), "Decided and not yet durable."),
    Defined("driftq_journal_room_bytes", "gauge", (), "What the journal takes before it needs more of the disk."),
    Defined("driftq_disk_bytes", "gauge", ("part",), "Bytes of files: journal, logs, snapshots."),
    Defined("driftq_disk_free_bytes", "gauge", (), "Free bytes where the data folder is."),
    Defined("driftq_recovery_seconds", "gauge", (), "How long the last start took to fold the journal."),
    Defined("driftq_clock_ahead_seconds", "gauge", (), "How far the machine's clock is ahead of the broker's time."),
    Defined("driftq_clock_held", "gauge", (), "1 while the two are so far apart that an operator has to decide."),
    Defined("driftq_topics", "gauge", (), "Topics, without those of dead letters."),
    Defined("driftq_groups", "gauge", (), "Groups of all topics."),
    Defined("driftq_idle_groups", "gauge", (), "Groups that hold no producer up because they are idle."),
    Defined("driftq_streams", "gauge", (), "Durable streams."),
    Defined("driftq_idempotency_keys", "gauge", (), "Keys of produces that are remembered."),
    Defined("driftq_effect_keys", "gauge", (), "Keys of effects that are remembered."),
    Defined("driftq_backlog_messages", "gauge", ("topic",), "Messages that a topic holds."),
    Defined("driftq_backlog_bytes", "gauge", ("topic",), "Bytes of keys and values that a topic holds."),
    Defined(
        "driftq_backlog_used_ratio",
        "gauge",
        _GROUP,
        "Share of the limit that waits for the slowest group, in the fullest partition; at 1 produces get 429.",
    ),
    Defined("driftq_oldest_message_age_seconds", "gauge", ("topic",), "Age of the oldest message that a topic holds."),
    Defined("driftq_dead_letters", "gauge", ("topic",), "Dead letters that were not sent back."),
    Defined("driftq_consumer_lag_messages", "gauge", _PARTITION, "Messages that a group has not settled."),
    Defined("driftq_consumer_lag_seconds", "gauge", _PARTITION, "Age of the oldest message a group has not settled."),
    Defined("driftq_inflight_messages", "gauge", _PARTITION, "Messages that are out under a lease."),
    Defined("driftq_resting_messages", "gauge", _PARTITION, "Messages that wait for their time or their next attempt."),
    Defined("driftq_group_gaps", "gauge", _PARTITION, "Settled ranges above the lowest open message: 16 bytes each."),
    Defined("driftq_connections", "gauge", (), "Open connections."),
    Defined("driftq_connections_max", "gauge", (), "Connections that are served at once; further ones get 503."),
    Defined("driftq_open_streams", "gauge", (), "Connections that carry a stream: consumers, live tails."),
    Defined("driftq_http_responses_total", "counter", ("status",), "Answers by HTTP status."),
    Defined(
        "driftq_router_decisions_total",
        "counter",
        ("result",),
        "Routers asked: routed, unrouted, timeout, error, invalid.",
    ),
    Defined("driftq_router_seconds", "histogram", (), "How long a router took."),
    Defined("driftq_build_info", "gauge", ("version", "durability"), "Always 1."),
    Defined("inflight_messages", "gauge", _PARTITION, "The name upstream gives to driftq_inflight_messages."),
    Defined("consumer_lag", "gauge", _PARTITION, "The name upstream gives to driftq_consumer_lag_messages."),
    Defined(
        "dlq_messages_total", "counter", ("topic", "reason"), "The name upstream gives to driftq_dlq_messages_total."
    ),
    Defined(
        "produce_rejected_total", "counter", ("reason",), "The name upstream gives to driftq_produce_rejected_total."
    ),
)


def table() -> list[tuple[str, str, str, str]]:
    """The rows of the reference."""
    return [(f"`{name}`", kind, ", ".join(labels), meaning) for name, kind, labels, meaning in METRICS]


_DEFINED = {metric.name: metric for metric in METRICS}
Sample = tuple[tuple[str, ...], float]


class Sources(NamedTuple):
    """Where numbers come from, besides the engine."""

    answers: AccessLog | None = None
    router: RouterCaller | None = None
    connections: Callable[[], int] = lambda: 0
    streams: Callable[[], int] = lambda: 0
    recovery_s: float = 0.0
    connections_max: int = 0


class Metrics(Collector):
    """The metrics of one server. Counting starts when it is made."""

    def __init__(self, engine: Engine, sources: Sources | None = None) -> None:
        self.counts = Counters(engine.latest_state)
        self._engine = engine
        self._sources = sources or Sources()
        self._gauges = Gauges(engine)
        self._look = GaugeSample([], [], {}, 0, {})  # the last one that was finished, so all of it is durable
        self._looking: asyncio.Task[None] | None = None
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)
        engine.sequencer.observers.append(self.counts.observe)
        engine.sequencer.reply_observers.append(self.counts.hear)
        engine.commits.on_commit = self.counts.committed

    async def page(self) -> bytes:
        """Everything, in the text format. A scrape does not wait for a stuck disk: then it shows what was durable."""
        if self._looking is None:
            self._looking = asyncio.ensure_future(self._take_look())
        done, _ = await asyncio.wait([self._looking], timeout=LOOK_WAIT_S)
        for look in done:
            look.result()
        return generate_latest(self._registry)

    async def _take_look(self) -> None:
        try:
            self._look = await self._gauges.look()
        finally:
            self._looking = None

    def describe(self) -> Iterable[Metric]:
        """Tells the registry that there is nothing to collect at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield from self._produce()
        yield from self._consume()
        yield from self._commit()
        yield from self._state()
        yield from self._lag()
        yield from self._http()

    def _produce(self) -> Iterator[Metric]:
        counts = self.counts
        live = [(name, tally) for name, tally in counts.topics.items() if not tally.dead_of]
        yield _samples("driftq_messages_produced_total", (((name,), tally.messages) for name, tally in live))
        yield _samples("driftq_produced_bytes_total", (((name,), tally.payload_bytes) for name, tally in live))
        yield _one("driftq_produce_duplicates_total", counts.duplicates)
        rejected: list[Sample] = [((reason,), count) for reason, count in counts.produce_refusals.items()]
        yield _samples("driftq_produce_rejected_total", rejected)
        yield _samples("produce_rejected_total", rejected)
        dead: list[Sample] = [
            ((tally.dead_of, reason), count)
            for tally in counts.topics.values()
            if tally.dead_of
            for reason, count in tally.reasons.items()
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

    def _consume(self) -> Iterator[Metric]:
        groups = list(self.counts.groups.items())
        yield _samples("driftq_deliveries_total", ((names, tally.delivered) for names, tally in groups))
        settled = [((*names, how), n) for names, tally in groups for how, n in tally.settled.items()]
        yield _samples("driftq_settled_total", settled)
        yield _samples("driftq_failures_total", ((names, tally.failures) for names, tally in groups))
        yield _samples("driftq_lease_losses_total", ((names, tally.lease_losses) for names, tally in groups))
        yield _samples("driftq_releases_total", ((names, tally.released) for names, tally in groups))
        yield _samples("driftq_lease_extensions_total", ((names, tally.extended) for names, tally in groups))

    def _commit(self) -> Iterator[Metric]:
        sequencer, look = self._engine.sequencer, self._look
        yield _one("driftq_frames_total", self.counts.frames)
        yield _histogram("driftq_commit_seconds", self.counts.commit_seconds)
        yield _histogram("driftq_fsync_seconds", self.counts.fsync_seconds)
        yield _histogram("driftq_commit_frames", self.counts.commit_frames)
        lsns = [(("decided",), sequencer.decided_lsn), (("durable",), sequencer.durable_lsn)]
        yield _samples("driftq_journal_lsn", lsns)
        yield _one("driftq_unsynced_bytes", sequencer.waiting_bytes())
        yield _one("driftq_journal_room_bytes", self._engine.room_bytes)
        yield _samples("driftq_disk_bytes", (((part,), size) for part, size in sorted(look.disk_bytes.items())))
        yield _one("driftq_disk_free_bytes", look.disk_free_bytes)
        yield _one("driftq_recovery_seconds", self._sources.recovery_s)
        clock = self._engine.read_clock()
        yield _one("driftq_clock_ahead_seconds", clock.ahead_ms / 1_000)
        yield _one("driftq_clock_held", clock.held)

    def _state(self) -> Iterator[Metric]:
        topics = self._look.topics
        for name, count in self._look.counts.items():
            yield _one(name, count)
        yield _samples("driftq_backlog_messages", (((row.topic,), row.messages) for row in topics))
        yield _samples("driftq_backlog_bytes", (((row.topic,), row.payload_bytes) for row in topics))
        used = (((row.topic, row.slowest), row.used) for row in topics if row.slowest)
        yield _samples("driftq_backlog_used_ratio", used)
        yield _samples("driftq_oldest_message_age_seconds", (((row.topic,), row.oldest_s) for row in topics))
        yield _samples("driftq_dead_letters", (((row.topic,), row.dead_letters) for row in topics))
        durability = "fsync" if self._engine.report is not None else "memory"
        yield _samples("driftq_build_info", [((driftq.__version__, durability), 1)])

    def _lag(self) -> Iterator[Metric]:
        rows = self._look.partitions
        names = [(row.topic, row.group, row.partition) for row in rows]
        lag = list(zip(names, (row.lag for row in rows)))
        in_flight = list(zip(names, (row.in_flight for row in rows)))
        yield _samples("driftq_consumer_lag_messages", lag)
        yield _samples("consumer_lag", lag)
        yield _samples("driftq_consumer_lag_seconds", zip(names, (row.lag_s for row in rows)))
        yield _samples("driftq_inflight_messages", in_flight)
        yield _samples("inflight_messages", in_flight)
        yield _samples("driftq_resting_messages", zip(names, (row.resting for row in rows)))
        yield _samples("driftq_group_gaps", zip(names, (row.gaps for row in rows)))

    def _http(self) -> Iterator[Metric]:
        answers, router = self._sources.answers, self._sources.router
        yield _one("driftq_connections", self._sources.connections())
        yield _one("driftq_connections_max", self._sources.connections_max)
        yield _one("driftq_open_streams", self._sources.streams())
        statuses = sorted(answers.by_status.items()) if answers is not None else []
        yield _samples("driftq_http_responses_total", (((str(status),), count) for status, count in statuses))
        results = sorted(router.results.items()) if router is not None else []
        yield _samples("driftq_router_decisions_total", (((result,), count) for result, count in results))
        yield _histogram("driftq_router_seconds", router.seconds if router is not None else Histogram())


def _samples(name: str, samples: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    defined = _DEFINED[name]
    made = CounterMetricFamily if defined.kind == "counter" else GaugeMetricFamily
    family = made(name, defined.meaning, labels=defined.labels)
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _one(name: str, value: float) -> Metric:
    return _samples(name, [((), value)])


def _histogram(name: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(name, _DEFINED[name].meaning)
    family.add_metric((), histogram.buckets(), histogram.total)
    return family
