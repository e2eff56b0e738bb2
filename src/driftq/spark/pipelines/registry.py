"""Which pipeline starts how: one short function for each, from a session and a configuration to a query or a verdict.

Pipelines that go on until they are stopped give a query; those that end give the number to exit with. What they compute
is in their own modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from driftq.client.errors import NotFound
from driftq.settings.loader import SettingsError
from driftq.spark.pipelines import dead_letters, dedupe, history, metrics, route, runs
from driftq.spark.pipelines.archive import finish_compact, start_archive
from driftq.spark.pipelines.audit import finish_audit
from driftq.spark.pipelines.io import broker_of, options, read_stream, to_table, to_topic
from driftq.spark.pipelines.query_monitor import Say, Stop
from driftq.spark.pipelines.replay import finish_replay
from driftq.spark.pipelines.settings import Configuration
from driftq.wire import router_rules
from driftq.wire.dead_letters import REDRIVE_GROUP

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from driftq.client.api import DriftQ
from driftq.client.transport.sansio import RetryOptions
from driftq.spark.pipelines.configuration import checkpoint, identity
from driftq.spark.pipelines.query_monitor import QueryFailed, cause, session, signals, watch

Start = Callable[["SparkSession", Configuration], "StreamingQuery"]
Finish = Callable[["SparkSession", Configuration, Stop, Say], int]


def start_dedupe(spark: SparkSession, configuration: Configuration) -> StreamingQuery:
    messages = read_stream(spark, configuration, aligned=True)
    unique = dedupe.deduplicated(messages, configuration.dedupe.watermark)
    return to_topic(dedupe.placeless(unique), configuration)


def start_route(spark: SparkSession, configuration: Configuration) -> StreamingQuery:
    decider = decider_of(configuration)
    messages = read_stream(spark, configuration)
    default, unrouted = configuration.sink.topic, configuration.route.unrouted
    # Rules decide the same each time and are asked row by row, so the plan repeats exactly: labels need that.
    mode = "direct" if isinstance(decider, route.ByRules) else "staged"
    return to_topic(route.routed(messages, decider, default=default, unrouted=unrouted), configuration, "", mode=mode)


def start_transform(spark: SparkSession, configuration: Configuration) -> StreamingQuery:
    settings = configuration.transform
    if bool(settings.function) == bool(settings.each):
        raise SettingsError("transform takes one of transform.function and transform.each")
    messages = read_stream(spark, configuration)
    if settings.each:
        return to_topic(dedupe.mapped(messages, settings.each), configuration)
    return to_topic(dedupe.transformed(messages, dedupe.named(settings.function)), configuration)


def start_metrics(spark: SparkSession, configuration: Configuration) -> StreamingQuery:
    settings = configuration.metrics
    source = read_stream(spark, configuration, _with_history(configuration, settings.history), aligned=True)
    happened = metrics.arrivals(source, settings.watermark)
    if settings.history:
        # One broker, one clock, and every micro-batch reads both logs to their end: the log that is ahead says what
        # time it is. By default Spark would wait for the other, and a quiet history would hold all windows back.
        spark.conf.set("spark.sql.streaming.multipleWatermarkPolicy", "max")
        happened = happened.unionByName(metrics.endings(source, settings.watermark, settings.latency_max))
    return to_table(metrics.windowed(happened, settings.window), configuration)


def start_runs(spark: SparkSession, configuration: Configuration) -> StreamingQuery:
    settings = configuration.runs
    source = read_stream(spark, configuration, _with_history(configuration, settings.history), aligned=True)
    found = runs.steps(runs.events(source), settings.keep)
    return to_table(found, configuration, mode="update")


def decider_of(configuration: Configuration) -> route.Decider:
    """The one way to decide that is configured. Raises `SettingsError` for none, several, or one that is wrong."""
    settings = configuration.route
    given = [name for name in ("rules", "router", "frames") if getattr(settings, name)]
    if len(given) != 1:
        said = " and ".join(given) or "none"
        raise SettingsError(f"route takes one of route.rules, route.router and route.frames, not {said}")
    try:
        if settings.rules:
            found = router_rules.load(settings.rules)
            _refuse_circles(found, configuration)
            return route.ByRules(Path(settings.rules).read_text(encoding="utf-8"), settings.rules)
        dedupe.named(settings.router or settings.frames)
    except (router_rules.BadRules, dedupe.NoFunction) as error:
        raise SettingsError(str(error)) from None
    return route.ByFunction(settings.router) if settings.router else route.ByFrames(settings.frames)


def _refuse_circles(found: router_rules.Rules, configuration: Configuration) -> None:
    """What can be seen before the first message: a rule that sends messages to where they were read."""
    for rule in found.rules:
        target = rule.decision.target_topic if rule.decision is not None else ""
        if target and target in configuration.source.topics and len(configuration.source.topics) == 1:
            raise SettingsError(f"rule {rule.name!r} sends messages of {target!r} to {target!r} again, for ever")


def finish_deadletters(spark: SparkSession, configuration: Configuration, stop: Stop, say: Say) -> int:
    """Tell the kinds of dead letters, and send some back when that is asked for."""
    settings = configuration.deadletters
    with broker_of(configuration) as broker:
        topics = [name.removeprefix(dead_letters.DEAD_PREFIX) for name in configuration.source.topics]
        letters = reduce(DataFrame.unionByName, (_letters(spark, configuration, broker, topic) for topic in topics))
        if settings.group:
            letters = letters.where(letters["group"] == settings.group)
        if settings.fingerprint:
            letters = letters.where(letters["fingerprint"] == settings.fingerprint)
        for line in kind_lines(dead_letters.kinds(letters, settings.examples).collect()):
            say(line)
        if not settings.redrive and not settings.dry_run:
            return 0
        failed = 0
        for topic in topics:
            places = letters.where(letters["dead_topic"] == dead_letters.DEAD_PREFIX + topic)
            ordered = places.orderBy("dead_at", "dead_partition", "dead_offset").limit(settings.limit)
            offsets = [(row[0], row[1]) for row in ordered.select("dead_partition", "dead_offset").collect()]
            if settings.dry_run:
                say(f"{topic}: {len(offsets):,} letters would be sent back, {settings.rate_per_s} a second")
                continue
            done = dead_letters.redrive(
                broker, topic, offsets, rate_per_s=settings.rate_per_s, stopped=lambda: stop.wanted, say=say
            )
            failed += done.failed
            left = done.wanted - done.redriven - done.failed
            say(f"{topic}: {done.redriven:,} sent back, {done.failed:,} refused, {left:,} not sent now")
        return 1 if failed else 0


def _letters(spark: SparkSession, configuration: Configuration, broker: DriftQ, topic: str) -> DataFrame:
    """The letters of a topic that were not sent back yet: those that the broker's own group has not settled."""
    dead = dead_letters.DEAD_PREFIX + topic
    found = options(configuration, [dead]) | {"includeHead": "true"}
    try:
        broker.groups.describe(dead, REDRIVE_GROUP)
    except NotFound:
        return dead_letters.letters(spark.read.format("driftq").options(**found).load())
    rows = spark.read.format("driftq").options(**found, queueState=REDRIVE_GROUP).load()
    return dead_letters.letters(rows.where("queue_state != 'settled'"))


def kind_lines(found: list[Row]) -> list[str]:
    """The kinds of errors, for people."""
    if not found:
        return ["no dead letters"]
    lines = []
    for row in found:
        places = ", ".join(f"{place['dead_partition']}/{place['dead_offset']}" for place in row["places"])
        kind = row["fingerprint"] or "(no error)"
        lines.append(f"{row['letters']:>8,}  {row['topic']}  {row['group']}  {row['reason']}  {kind}")
        lines.append(f"          at most {row['attempts_max']} attempts, last {row['last_at']}, for example {places}")
    return lines


def _with_history(configuration: Configuration, wanted: bool) -> tuple[str, ...]:
    """The topics to read, with the histories that exist. Empty: as the configuration says."""
    topics = configuration.source.topics
    if not wanted or not topics:
        return ()
    found = list(topics)
    with broker_of(configuration) as broker:
        for topic in topics:
            try:
                broker.topics.describe(topic + history.SUFFIX)
            except NotFound:
                continue
            found.append(topic + history.SUFFIX)
    return tuple(found)


STARTS: Mapping[str, Start] = {
    "archive": start_archive,
    "dedupe": start_dedupe,
    "route": start_route,
    "transform": start_transform,
    "metrics": start_metrics,
    "runs": start_runs,
}
FINISHES: Mapping[str, Finish] = {
    "audit": finish_audit,
    "deadletters": finish_deadletters,
    "replay": finish_replay,
    "compact": finish_compact,
}


# --- From a configuration to its end: look whether it can work, bring up Spark, start, watch, stop, and say how it
# went


CONTACT_MS = 5_000


def execute(configuration: Configuration, say: Say, tell: Say) -> int:
    """Run a pipeline to its end and give the number to exit with. Raises what the client raises when the broker or a
    topic is not there, `SettingsError`, and `QueryFailed`."""
    check(configuration)
    name = identity(configuration)
    say(f"{name}: starting Spark; its own lines go to {checkpoint(configuration)}/../spark.log")
    stop = Stop()
    with session(configuration, name) as spark, signals(stop):
        # Here and not above: these modules need Spark's.
        from pyspark.errors import PySparkException  # noqa: PLC0415

        kind = configuration.pipeline.name
        try:
            if kind in FINISHES:
                return FINISHES[kind](spark, configuration, stop, tell)
            say(f"{name}: running{', until all that is there is done' if configuration.pipeline.once else ''}")
            watch({name: lambda: STARTS[kind](spark, configuration)}, stop, say)
        except PySparkException as error:
            raise QueryFailed(f"{name}: {cause(str(error))}") from None
        say(f"{name}: {'stopped; start it again to go on' if stop.wanted else 'done'}")
    return 0


def check(configuration: Configuration) -> None:
    """What can be known before Spark is up, which takes seconds: the broker answers, and the topics are there."""
    retry = RetryOptions(timeout_ms=CONTACT_MS, deadline_ms=CONTACT_MS, first_contact_ms=0)
    with broker_of(configuration, retry) as broker:
        broker.ready()
        for topic in configuration.source.topics:
            broker.topics.offsets(topic)
        if configuration.sink.topic:
            broker.topics.offsets(configuration.sink.topic)
