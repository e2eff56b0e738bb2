"""From a configuration to its end: look whether it can work, bring up Spark, start, watch, stop, and say how it went.

The one function that `driftq pipeline run` and programs call. Printing is left to whoever calls: `say` gets lines about
what is going on, `tell` gets what was asked for.
"""

from __future__ import annotations

from driftq.client.flows import Patience
from driftq.spark.pipelines.configuration import checkpoint, identity
from driftq.spark.pipelines.running import QueryFailed, Say, Stop, cause, session, signals, watch
from driftq.spark.pipelines.sections import Configuration
from driftq.spark.pipelines.wiring import broker_of

CONTACT_MS = 5_000


def execute(configuration: Configuration, say: Say, tell: Say) -> int:
    """Run a pipeline to its end and give the number to exit with. Raises what the client raises when the broker or a
    topic is not there, `BadConfiguration`, and `QueryFailed`."""
    check(configuration)
    name = identity(configuration)
    say(f"{name}: starting Spark; its own lines go to {checkpoint(configuration)}/../spark.log")
    stop = Stop()
    with session(configuration, name) as spark, signals(stop):
        # Here and not above: these modules need Spark's.
        from pyspark.errors import PySparkException  # noqa: PLC0415

        from driftq.spark.pipelines.starting import FINISHES, STARTS  # noqa: PLC0415

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
    patience = Patience(timeout_ms=CONTACT_MS, deadline_ms=CONTACT_MS, first_contact_ms=0)
    with broker_of(configuration, patience) as broker:
        broker.ready()
        for topic in configuration.source.topics:
            broker.topics.offsets(topic)
        if configuration.sink.topic:
            broker.topics.offsets(configuration.sink.topic)
