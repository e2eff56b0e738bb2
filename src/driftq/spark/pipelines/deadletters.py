"""The pipeline `deadletters`: counts dead letters by kind of error, and redrives them.

The kind of an error is its fingerprint, the error without numbers, ids and quoted parts, as the broker computes it. A
redrive names letters by their offsets, a slice at a time, at a rate. The broker produces and settles each letter in one
write, so a redrive that was interrupted can simply be run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from driftq.client.errors import NotFound
from driftq.spark.pipelines.io import broker_of, source_options
from driftq.wire.dead_letters import REDRIVE_GROUP
from driftq.wire.errors import LENGTH_MAX, MARK, SPACE, TRACEBACK, VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from driftq.client.api import DriftQ
    from driftq.spark.pipelines.query_monitor import Echo, Stop
    from driftq.spark.pipelines.settings import Configuration

DEAD_PREFIX = "dlq."
SLICE_MAX = 500
_HEAD = (
    "dlq STRUCT<topic: STRING, partition: INT, offset: BIGINT, `group`: STRING, attempts: INT, lease_losses: INT, "
    "last_error: STRING, reason: STRING, dead_at: TIMESTAMP>"
)


class Redriven(NamedTuple):
    """The result of a redrive."""

    requested: int
    redriven: int
    failed: int


def fingerprint(error: Column) -> Column:
    """The kind of an error, as the broker computes it."""
    last = F.substring_index(F.regexp_replace(error, rf"[{SPACE}]+\z", ""), "\n", -1)
    line = F.when(error.startswith(TRACEBACK), last).otherwise(F.substring_index(error, "\n", 1))
    return F.substring(F.regexp_replace(line, F.lit(VARIABLE), F.lit(MARK)), 1, LENGTH_MAX)


def letters(source: DataFrame) -> DataFrame:
    """Dead letters with their origin and reason, from rows of `dlq.<topic>` that have the column `head`."""
    parsed = source.withColumn("dlq", F.from_json("head", _HEAD)["dlq"]).where("dlq IS NOT NULL")
    return parsed.select(
        F.col("topic").alias("dead_topic"),
        F.col("partition").alias("dead_partition"),
        F.col("offset").alias("dead_offset"),
        "key",
        "value",
        "dlq.*",
        fingerprint(F.coalesce("dlq.last_error", F.lit(""))).alias("fingerprint"),
    )


def kinds(letters: DataFrame, examples: int = 3) -> DataFrame:
    """The number of letters of each kind, the most frequent first, with an example and a few offsets."""
    places = F.slice(F.sort_array(F.collect_set(F.struct("dead_partition", "dead_offset"))), 1, examples)
    return (
        letters.groupBy("topic", "group", "reason", "fingerprint")
        .agg(
            F.count("*").alias("letters"),
            F.max("attempts").alias("attempts_max"),
            F.min("dead_at").alias("first_at"),
            F.max("dead_at").alias("last_at"),
            F.max_by("last_error", "dead_at").alias("example"),
            places.alias("places"),
        )
        .orderBy(F.desc("letters"), "topic", "group", "fingerprint")
    )


def redrive(
    broker: DriftQ,
    topic: str,
    offsets: Sequence[tuple[int, int]],
    *,
    rate_per_s: int,
    stopped: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda line: None,
) -> Redriven:
    """Redrive letters, about a second's worth in each call, so that a stop takes effect soon and progress is
    visible."""
    done = failed = 0
    started_s = time.monotonic()
    for part in _slices(offsets, min(SLICE_MAX, max(1, rate_per_s))):
        if stopped():
            break
        reply = broker.dead_letters.redrive(topic, offsets=part, limit=len(part), rate_per_s=rate_per_s)
        done += int(reply["redriven"])
        failed += len(reply["failed"])
        seconds = time.monotonic() - started_s
        say(f"{topic}: {done:,} of {len(offsets):,} redriven, {done / max(seconds, 0.001):,.0f}/s")
    return Redriven(len(offsets), done, failed)


def _slices(offsets: Sequence[tuple[int, int]], size: int) -> Iterator[Sequence[tuple[int, int]]]:
    for at in range(0, len(offsets), size):
        yield offsets[at : at + size]


# --- the pipeline -----------------------------------------------------------------------------------------------------


def run_deadletters(spark: SparkSession, configuration: Configuration, stop: Stop, echo: Echo) -> int:
    """Print the kinds of dead letters, and redrive them if the settings say so. Returns the exit code."""
    settings = configuration.deadletters
    with broker_of(configuration) as broker:
        topics = [name.removeprefix(DEAD_PREFIX) for name in configuration.source.topics]
        pending = reduce(
            DataFrame.unionByName, (_pending_letters(spark, configuration, broker, topic) for topic in topics)
        )
        if settings.group:
            pending = pending.where(pending["group"] == settings.group)
        if settings.fingerprint:
            pending = pending.where(pending["fingerprint"] == settings.fingerprint)
        for line in kind_lines(kinds(pending, settings.examples).collect()):
            echo(line)
        if not settings.redrive and not settings.dry_run:
            return 0
        failed = 0
        for topic in topics:
            letters_of_topic = pending.where(pending["dead_topic"] == DEAD_PREFIX + topic)
            ordered = letters_of_topic.orderBy("dead_at", "dead_partition", "dead_offset").limit(settings.limit)
            offsets = [(row[0], row[1]) for row in ordered.select("dead_partition", "dead_offset").collect()]
            if settings.dry_run:
                echo(f"{topic}: {len(offsets):,} letters would be redriven, {settings.rate_per_s} per second")
                continue
            result = redrive(
                broker, topic, offsets, rate_per_s=settings.rate_per_s, stopped=lambda: stop.requested, say=echo
            )
            failed += result.failed
            left = result.requested - result.redriven - result.failed
            echo(f"{topic}: {result.redriven:,} redriven, {result.failed:,} refused, {left:,} left")
        return 1 if failed else 0


def _pending_letters(spark: SparkSession, configuration: Configuration, broker: DriftQ, topic: str) -> DataFrame:
    """The letters of a topic that were not redriven yet: those that the broker's own group has not settled."""
    dead = DEAD_PREFIX + topic
    options = source_options(configuration, [dead]) | {"includeHead": "true"}
    try:
        broker.groups.describe(dead, REDRIVE_GROUP)
    except NotFound:
        return letters(spark.read.format("driftq").options(**options).load())
    rows = spark.read.format("driftq").options(**options, queueState=REDRIVE_GROUP).load()
    return letters(rows.where("queue_state != 'settled'"))


def kind_lines(rows: list[Row]) -> list[str]:
    """The kinds of errors as lines of text."""
    if not rows:
        return ["no dead letters"]
    lines = []
    for row in rows:
        offsets = ", ".join(f"{place['dead_partition']}/{place['dead_offset']}" for place in row["places"])
        kind = row["fingerprint"] or "(no error)"
        lines.append(f"{row['letters']:>8,}  {row['topic']}  {row['group']}  {row['reason']}  {kind}")
        lines.append(f"          at most {row['attempts_max']} attempts, last {row['last_at']}, for example {offsets}")
    return lines
