"""Runs a pipeline from its configuration to its end: check, start Spark, start the query, watch it, stop it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

from driftq.client.transport.sansio import RetryOptions
from driftq.spark.pipelines.configuration import checkpoint, identity
from driftq.spark.pipelines.io import broker_of
from driftq.spark.pipelines.query_monitor import Echo, QueryFailed, Stop, cause, session, signals, watch
from driftq.spark.pipelines.registry import BATCH_PIPELINES, STREAMING_PIPELINES

if TYPE_CHECKING:
    from driftq.spark.pipelines.settings import Configuration

CHECK_TIMEOUT_MS = 5_000


def run_pipeline(configuration: Configuration, log: Echo, echo: Echo) -> int:
    """Run a pipeline to its end and return the exit code. `log` prints progress, `echo` results. Raises the client's
    errors if the broker or a topic is not there, `SettingsError`, and `QueryFailed`."""
    check(configuration)
    name = identity(configuration)
    log(f"{name}: starting Spark; its own log is {checkpoint(configuration)}/../spark.log")
    stop = Stop()
    with session(configuration, name) as spark, signals(stop):
        kind = configuration.pipeline.name
        try:
            if kind in BATCH_PIPELINES:
                return BATCH_PIPELINES[kind](spark, configuration, stop, echo)
            log(f"{name}: running{', until all available messages are done' if configuration.pipeline.once else ''}")
            watch({name: lambda: STREAMING_PIPELINES[kind](spark, configuration)}, stop, log)
        except PySparkException as error:
            raise QueryFailed(f"{name}: {cause(str(error))}") from None
        log(f"{name}: {'stopped; start it again to continue' if stop.requested else 'done'}")
    return 0


def check(configuration: Configuration) -> None:
    """Check before Spark starts, which takes seconds, that the broker answers and the topics exist."""
    retry = RetryOptions(timeout_ms=CHECK_TIMEOUT_MS, deadline_ms=CHECK_TIMEOUT_MS, first_contact_ms=0)
    with broker_of(configuration, retry) as broker:
        broker.ready()
        for topic in configuration.source.topics:
            broker.topics.offsets(topic)
        if configuration.sink.topic:
            broker.topics.offsets(configuration.sink.topic)
