"""Dead letters by kind of error, and their way back: the analysis is a query, the way back is the broker's own redrive.

A kind is what the broker calls a kind: numbers, ids and quoted parts of the error left out. Redriving names letters by
their offsets, a slice at a time, at a rate; each is produced and settled in one write, so a redrive that was
interrupted is simply run again. Knows nothing of sessions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from driftq.wire.errors import LENGTH_MAX, MARK, VARIABLE

if TYPE_CHECKING:
    from driftq.client.api import DriftQ

DEAD_PREFIX = "dlq."
SLICE_MAX = 500
_HEAD = (
    "dlq STRUCT<topic: STRING, partition: INT, offset: BIGINT, `group`: STRING, attempts: INT, lease_losses: INT, "
    "last_error: STRING, reason: STRING, dead_at: TIMESTAMP>"
)


class Redriven(NamedTuple):
    """How far a redrive came."""

    wanted: int
    redriven: int
    failed: int


def fingerprint(error: Column) -> Column:
    """The kind of an error, as the broker names it."""
    line = F.substring_index(error, "\n", 1)
    return F.substring(F.regexp_replace(line, F.lit(VARIABLE), F.lit(MARK)), 1, LENGTH_MAX)


def letters(source: DataFrame) -> DataFrame:
    """Dead letters with where they came from and why, from rows of `dlq.<topic>` that have the column `head`."""
    told = source.withColumn("dlq", F.from_json("head", _HEAD)["dlq"]).where("dlq IS NOT NULL")
    return told.select(
        F.col("topic").alias("dead_topic"),
        F.col("partition").alias("dead_partition"),
        F.col("offset").alias("dead_offset"),
        "key",
        "value",
        "dlq.*",
        fingerprint(F.coalesce("dlq.last_error", F.lit(""))).alias("fingerprint"),
    )


def kinds(found: DataFrame, examples: int = 3) -> DataFrame:
    """How many letters of each kind, the most frequent first, with an example and a few offsets."""
    places = F.slice(F.sort_array(F.collect_set(F.struct("dead_partition", "dead_offset"))), 1, examples)
    return (
        found.groupBy("topic", "group", "reason", "fingerprint")
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
    """Send letters back, about a second's worth in each call, so that a stop is obeyed soon and progress is seen."""
    done = failed = 0
    began_s = time.monotonic()
    for some in _slices(offsets, min(SLICE_MAX, max(1, rate_per_s))):
        if stopped():
            break
        reply = broker.dead_letters.redrive(topic, offsets=some, limit=len(some), rate_per_s=rate_per_s)
        done += int(reply["redriven"])
        failed += len(reply["failed"])
        seconds = time.monotonic() - began_s
        say(f"{topic}: {done:,} of {len(offsets):,} sent back, {done / max(seconds, 0.001):,.0f}/s")
    return Redriven(len(offsets), done, failed)


def _slices(offsets: Sequence[tuple[int, int]], size: int) -> Iterator[Sequence[tuple[int, int]]]:
    for at in range(0, len(offsets), size):
        yield offsets[at : at + size]
