"""All pipelines by name, and how one is run: check, start Spark, start the query, watch it, stop it.

There is one short function for each, from a session and a configuration to a query or an exit code. A streaming
pipeline is started and returns a query; a batch pipeline runs to its end and returns an exit code. What a pipeline
computes is in the module with its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from driftq.client.transport.sansio import RetryOptions
from driftq.settings.loader import SettingsError
from driftq.spark.pipelines import costs, dedupe, metrics, quality, route, runs, transform
from driftq.spark.pipelines.archive import start_archive
from driftq.spark.pipelines.audit import PeriodicAudit, run_audit
from driftq.spark.pipelines.backlog import run_backlog
from driftq.spark.pipelines.deadletters import run_deadletters
from driftq.spark.pipelines.io import broker_of, read_stream, to_table, to_topic, with_history
from driftq.spark.pipelines.json_values import schema_of
from driftq.spark.pipelines.progress_report import ProgressReport
from driftq.spark.pipelines.query_monitor import Echo, QueryFailed, Stop, cause, session, signals, spark_log, watch
from driftq.spark.pipelines.replay import run_replay
from driftq.spark.pipelines.settings import Configuration, identity
from driftq.spark.tables import Compaction, open_table
from driftq.wire.router import BadRules, Rules, load_rules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CHECK_TIMEOUT_MS = 5_000

StreamingPipeline = Callable[["SparkSession", Configuration], "StreamingQuery"]
BatchPipeline = Callable[["SparkSession", Configuration, Stop, Echo], int]


def start_dedupe(spark: SparkSession, configuration: Configuration) -> StreamingQuery:
    messages = read_stream(spark, configuration, aligned=True)
    unique = dedupe.deduplicated(messages, configuration.dedupe.watermark)
    return to_topic(transform.without_origin(unique), configuration)


def start_route(spark: SparkSession, configuration: Configuration) -> StreamingQuery:
    decider = decider_of(configuration)
    messages = read_stream(spark, configuration)
    default, unrouted = configuration.sink.topic, configuration.route.unrouted
    # Rules are deterministic and decide row by row, so the plan yields the same rows each time. Direct mode needs that,
    # and only direct mode can write labels.
    mode = "direct" if isinstance(decider, route.ByRules) else "staged"
    return to_topic(route.routed(messages, decider, default=default, unrouted=unrouted), configuration, "", mode=mode)


def start_transform(spark: SparkSession, configuration: Configuration) -> StreamingQuery:
    settings = configuration.transform
    if bool(settings.function) == bool(settings.each):
        raise SettingsError("transform takes one of transform.function and transform.each")
    messages = read_stream(spark, configuration)
    if settings.each:
        return to_topic(transform.mapped(messages, settings.each), configuration)
    return to_topic(transform.transformed(messages, transform.load_function(settings.function)), configuration)


def start_metrics(spark: SparkSession, configuration: Configuration) -> StreamingQuery:
    settings = configuration.metrics
    source = read_stream(spark, configuration, _topics(configuration, settings.history), aligned=True)
    happened = metrics.arrivals(source, settings.watermark)
    if settings.history:
        # The broker has one clock, and every micro-batch reads both logs to their end: the later watermark is right. By
        # default Spark takes the earlier one, and a quiet history would delay all windows.
        spark.conf.set("spark.sql.streaming.multipleWatermarkPolicy", "max")
        happened = happened.unionByName(metrics.endings(source, settings.watermark, settings.latency_max))
    return to_table(metrics.windowed(happened, settings.window), configuration)


def start_runs(spark: SparkSession, configuration: Configuration) -> StreamingQuery:
    settings = configuration.runs
    source = read_stream(spark, configuration, _topics(configuration, settings.history), aligned=True)
    steps = runs.steps(runs.events(source), settings.keep)
    return to_table(steps, configuration, mode="update")


def decider_of(configuration: Configuration) -> route.Decider:
    """The configured decider. Raises `SettingsError` for none, several, or one that is wrong."""
    settings = configuration.route
    deciders = [name for name in ("rules", "router", "frames") if getattr(settings, name)]
    if len(deciders) != 1:
        given = " and ".join(deciders) or "none"
        raise SettingsError(f"route takes one of route.rules, route.router and route.frames, not {given}")
    try:
        if settings.rules:
            rules = load_rules(settings.rules)
            _refuse_cycles(rules, configuration)
            return route.ByRules(Path(settings.rules).read_text(encoding="utf-8"), settings.rules)
        transform.load_function(settings.router or settings.frames)
    except (BadRules, transform.NoFunction) as error:
        raise SettingsError(str(error)) from None
    return route.ByFunction(settings.router) if settings.router else route.ByFrames(settings.frames)


def _refuse_cycles(rules: Rules, configuration: Configuration) -> None:
    """Refuse a rule that sends messages to the topic they were read from."""
    for rule in rules.rules:
        target = rule.decision.target_topic if rule.decision is not None else ""
        if target and target in configuration.source.topics and len(configuration.source.topics) == 1:
            raise SettingsError(f"rule {rule.name!r} sends messages of {target!r} to {target!r} again, without end")


def _topics(configuration: Configuration, history: bool) -> tuple[str, ...]:
    """Empty: the topics of the configuration."""
    return with_history(configuration) if history and configuration.source.topics else ()


def start_costs(spark: SparkSession, configuration: Configuration) -> StreamingQuery:
    settings = configuration.costs
    prices = costs.load_prices(settings.prices)
    messages = read_stream(spark, configuration, aligned=True)
    used = costs.usage(messages, settings.model, settings.input_tokens, settings.output_tokens)
    return to_table(costs.summed(costs.priced(used, prices), settings.window, settings.watermark), configuration)


def start_quality(spark: SparkSession, configuration: Configuration) -> StreamingQuery:
    settings, target = configuration.quality, configuration.sink.topic
    rules = quality.load_quality_rules(settings.rules)
    if settings.schema:
        schema_of(settings.schema, "quality.schema")
    rejected = settings.rejected or target + quality.SUFFIX
    if {target, rejected} & set(configuration.source.topics):
        raise SettingsError("quality would write to a topic that it reads: use other topics")
    with broker_of(configuration) as broker:
        broker.topics.offsets(rejected)
    judged = quality.judged(read_stream(spark, configuration), rules, settings.schema)
    return to_topic(quality.divided(judged, target, rejected), configuration, "")


def run_compact(spark: SparkSession, configuration: Configuration, stop: Stop, echo: Echo) -> int:
    """Rewrite the small files of a table as larger ones, and delete files that are no longer needed, for tables whose
    pipelines do not do it or have ended."""
    sink = configuration.sink
    table = open_table(spark, sink.table, storage_options=sink.storage)
    while not stop.requested:
        done = table.compact(Compaction(files_min=configuration.compact.files_min))
        if not done.files:
            break
        echo(f"{table.path}: {done.files:,} files became {done.into:,} ({done.size_bytes / (1 << 20):,.1f} MiB)")
        if done.into >= done.files:
            break  # The session limits the size of files; this loop would never end.
    deleted = table.vacuum()
    if deleted:
        echo(f"{table.path}: {deleted:,} files were deleted that no version of the last day names")
    return 0


STREAMING_PIPELINES: Mapping[str, StreamingPipeline] = {
    "archive": start_archive,
    "dedupe": start_dedupe,
    "route": start_route,
    "transform": start_transform,
    "metrics": start_metrics,
    "runs": start_runs,
    "costs": start_costs,
    "quality": start_quality,
}
BATCH_PIPELINES: Mapping[str, BatchPipeline] = {
    "audit": run_audit,
    "deadletters": run_deadletters,
    "replay": run_replay,
    "backlog": run_backlog,
    "compact": run_compact,
}


def run_pipeline(configuration: Configuration, log: Echo, echo: Echo) -> int:
    """Run a pipeline to its end and return the exit code. `log` prints progress, `echo` results. Raises the client's
    errors if the broker or a topic is not there, `SettingsError`, and `QueryFailed`."""
    check(configuration)
    name = identity(configuration)
    log(f"{name}: starting Spark; its own log is {spark_log(configuration)}")
    stop = Stop()
    with session(configuration, name) as spark, signals(stop):
        kind = configuration.pipeline.name
        try:
            if kind in BATCH_PIPELINES:
                return BATCH_PIPELINES[kind](spark, configuration, stop, echo)
            log(f"{name}: running{', until all available messages are done' if configuration.pipeline.once else ''}")
            _run_streaming(spark, configuration, stop, log)
        except PySparkException as error:
            raise QueryFailed(f"{name}: {cause(str(error))}") from None
        log(f"{name}: {'stopped; start it again to continue' if stop.requested else 'done'}")
    return 0


def _run_streaming(spark: SparkSession, configuration: Configuration, stop: Stop, log: Echo) -> None:
    """Run a query, audit it if that is configured, and report to the broker."""
    name, kind = identity(configuration), configuration.pipeline.name
    report = ProgressReport(configuration, name)
    audits = PeriodicAudit(spark, configuration, log)
    audits.on_verdict = report.audit
    try:
        watch({name: lambda: STREAMING_PIPELINES[kind](spark, configuration)}, stop, log, audits.poll, report.batch)
        if configuration.archive.audit_every and configuration.pipeline.once and not stop.requested:
            audits.run()
    except Exception as error:
        report.end("failed", cause(str(error)))
        raise
    report.end("done")


def check(configuration: Configuration) -> None:
    """Check before Spark starts, which takes seconds, that the broker answers and the topics exist."""
    retry = RetryOptions(timeout_ms=CHECK_TIMEOUT_MS, deadline_ms=CHECK_TIMEOUT_MS, first_contact_ms=0)
    with broker_of(configuration, retry) as broker:
        broker.ready()
        for topic in configuration.source.topics:
            broker.topics.offsets(topic)
        if configuration.sink.topic:
            broker.topics.offsets(configuration.sink.topic)
