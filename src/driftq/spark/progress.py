"""How far queries are behind, where Spark's own users look for it: in the metrics of a source.

    from driftq.spark.progress import LagListener

    spark.streams.addListener(LagListener(lambda progress: print(progress["name"], progress["sources"][0]["metrics"])))

Spark 4.3 fills `sources[].metrics` from sources that are written in Java; one in Python reports an offset and nothing
else. The source puts its lag into that offset (`latestOffset`), and `with_lag` moves it to where it belongs, under the
names that the source for Kafka uses. Works with any progress that Spark gives: of a query, or of a listener.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

Progress = dict[str, Any]  # as Spark writes it as JSON


def with_lag(progress: StreamingQueryProgress | Progress) -> Progress:
    """The progress of a query, with metrics in each source of ours: how many records it has not read at the end of the
    batch, in all and for each log, and how old the oldest of them is."""
    tree: Progress = json.loads(progress.json if isinstance(progress, StreamingQueryProgress) else json.dumps(progress))
    for source in tree.get("sources", ()):
        latest = source.get("latestOffset")
        if isinstance(latest, str):  # Spark writes a JSON offset as such, and as text in some versions
            latest = _parsed(latest)
        if isinstance(latest, dict) and isinstance(latest.get("lag"), dict):
            source["metrics"] = {**(source.get("metrics") or {}), **_metrics(latest)}
    return tree


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _metrics(latest: dict[str, Any]) -> dict[str, str]:
    """Metrics are texts. Only logs with a lag are in the report, a thousand at most; the others are read up to their
    ends."""
    lag = latest["lag"]
    unread = {f"{topic}/{number}": count for topic, logs in lag["logs"].items() for number, count in logs.items()}
    logs = max(1, sum(map(len, latest.get("offsets", {}).values())), len(unread))
    behind = {
        "offsetsBehindLatest": lag["offsets"],
        "secondsBehindLatest": lag["seconds"],
        "minOffsetsBehindLatest": min(unread.values(), default=0) if len(unread) == logs else 0,
        "maxOffsetsBehindLatest": max(unread.values(), default=0),
        "avgOffsetsBehindLatest": round(lag["offsets"] / logs, 3),
    }
    by_log = {f"offsetsBehindLatest.{log}": count for log, count in unread.items()}
    return {name: str(number) for name, number in (behind | by_log).items()}


class LagListener(StreamingQueryListener):
    """Calls a function with the progress of each micro-batch of each query of the session, with the lag in it."""

    def __init__(self, report: Callable[[Progress], None]) -> None:
        self._report = report

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._report(with_lag(event.progress))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass
