"""Reports of a pipeline to the broker: each micro-batch, the audit verdict, the end. A report that fails is dropped: it
must never hold up or end a pipeline."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from driftq.client.errors import DriftQError
from driftq.client.transport.sansio import RetryOptions
from driftq.spark.pipelines.io import broker_of
from driftq.spark.pipelines.query_monitor import lag
from driftq.wire.pipelines import TOPICS_MAX, PipelineReport

if TYPE_CHECKING:
    from driftq.client.api import DriftQ
    from driftq.spark.pipelines.settings import Configuration
    from driftq.wire.pipelines import PipelineState

TIMEOUT_MS = 2_000
TEXT_MAX = 1_000


class ProgressReport:
    """What one pipeline reports, with a connection of its own."""

    def __init__(self, configuration: Configuration, name: str) -> None:
        self._name = name
        self._broker: DriftQ = broker_of(
            configuration, RetryOptions(timeout_ms=TIMEOUT_MS, deadline_ms=TIMEOUT_MS, first_contact_ms=0)
        )
        sink = configuration.sink
        target = (sink.topic or sink.table)[:TEXT_MAX]
        topics = tuple(configuration.source.topics)[:TOPICS_MAX]
        self._report = PipelineReport(configuration.pipeline.name, topics, target)

    def batch(self, progress: Any) -> None:
        """A micro-batch is done."""
        unread = lag(progress)
        self._report = replace(
            self._report,
            batch=int(progress["batchId"]),
            rows=int(progress["numInputRows"]),
            took_ms=int(progress["durationMs"].get("triggerExecution", 0)),
            lag=unread if unread is not None else -1,
        )
        self._send()

    def audit(self, verdict: str) -> None:
        self._report = replace(self._report, audit=verdict[:TEXT_MAX], rows=0)
        self._send()

    def end(self, state: PipelineState, error: str = "") -> None:
        self._report = replace(self._report, state=state, error=error[:TEXT_MAX], rows=0)
        self._send()
        self._broker.close()

    def _send(self) -> None:
        with suppress(DriftQError, OSError):  # the broker is away, or of an earlier version
            self._broker.pipelines.report(self._name, self._report)
