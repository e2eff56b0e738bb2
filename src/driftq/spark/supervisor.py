"""Runs the queries of your own driver, as `driftq pipeline run` runs pipelines.

    from driftq.spark.supervisor import supervise

    supervise({"copy": lambda: frame.writeStream.format("driftq").options(...).start()})

Spark gives the Python process of a source ten seconds to start, and no setting changes that. On a busy machine a query
fails then although nothing is wrong. It is safe to start it again: its checkpoint has what is done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from driftq.spark.pipelines.query_monitor import Stop, signals, watch

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def supervise(starts: Mapping[str, Callable[[], StreamingQuery]], echo: Callable[[str], None] = print) -> None:
    """Start queries, each by its function, and return when all have ended. Prints a line for every micro-batch.

    A query whose Python was too slow to start is started again, up to ten times. SIGINT and SIGTERM stop the queries
    after their micro-batch, a second signal at once. Raises `QueryFailed` if a query fails for another reason; the
    others are stopped. Call it in the main thread, after the session has started.
    """
    stop = Stop()
    with signals(stop):
        watch(starts, stop, echo)
