"""The rows of a batch that a table may already hold: which they are, and whether they are the same.

    batch      5 ........ 14            orders/0, offsets
    held   0 ....... 9                  what the table holds
               5 ... 9                  the overlap: must be the same rows in both, and is left out
                     10 .. 14           appended

An older checkpoint, a second driver, or a new checkpoint that starts early makes such batches. The comparison is by the
count and the checksum of offset, key and value, for each log.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from driftq.spark.tables.checksum import span_of, totals
from driftq.spark.tables.ledger import BatchRefused, FileSpan, Overlap

LogTotals = dict[tuple[str, int], tuple[int, int]]  # rows and checksum of each log


def inside(rows: DataFrame, overlaps: Sequence[Overlap]) -> DataFrame:
    """The rows with offsets in these ranges."""
    return _joined(rows, overlaps, "left_semi")


def outside(rows: DataFrame, overlaps: Sequence[Overlap]) -> DataFrame:
    """The other rows."""
    return _joined(rows, overlaps, "left_anti")


def _joined(rows: DataFrame, overlaps: Sequence[Overlap], how: str) -> DataFrame:
    ranges = rows.sparkSession.createDataFrame(
        [(overlap.topic, overlap.partition, overlap.first, overlap.last) for overlap in overlaps],
        "_topic STRING, _partition INT, _first BIGINT, _last BIGINT",
    )
    in_range = (
        (F.col("topic") == F.col("_topic"))
        & (F.col("partition") == F.col("_partition"))
        & F.col("offset").between(F.col("_first"), F.col("_last"))
    )
    return rows.join(F.broadcast(ranges), in_range, how)


def totals_of(rows: DataFrame | None) -> LogTotals:
    if rows is None:
        return {}
    spans = [span_of(row) for row in totals(rows, [F.col("topic"), F.col("partition")]).collect()]
    return {(span.topic, span.partition): (span.rows, span.checksum) for span in spans}


def contradiction(batch: LogTotals, table: LogTotals, spans: Sequence[FileSpan]) -> BatchRefused | None:
    """Refuse a batch whose rows differ from those that the table holds under the same offsets."""
    for span in spans:
        log = (span.topic, span.partition)
        sent, held = batch.get(log, (0, 0)), table.get(log, (0, 0))
        if sent != held:
            what = "other content" if sent[0] == held[0] else f"{held[0]:,} rows where the batch has {sent[0]:,}"
            return BatchRefused(
                "CONTENT_DIFFERS",
                f"{span.topic}/{span.partition}: of offsets {span.first} to {span.last} the table holds {what}. It was "
                "written from another log of this name, from the broker before it was restored from a copy, or with "
                "another schema. Nothing was written. Compare them (driftq pipeline run audit), then write to another "
                "table, or start with a new checkpoint: the archive continues where the table ends.",
            )
    return None
