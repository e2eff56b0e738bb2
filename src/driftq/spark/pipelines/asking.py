"""Questions to the tables that pipelines write, for people at a terminal."""

from __future__ import annotations

import os

from driftq.spark.pipelines.running import sheltered


def tell_story(run_id: str, table: str) -> list[str]:
    """What happened in a run, as lines; none if the table does not know it."""
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123  # not a path of anybody's
        spark = sheltered("local[2]", "driftq-story", {"spark.sql.shuffle.partitions": "1"}, nowhere)
    # Here and not above: these modules need Spark's.
    from driftq.spark.pipelines.runs import story  # noqa: PLC0415
    from driftq.spark.tables import open_table  # noqa: PLC0415

    try:
        return story(open_table(spark, table).read(), run_id)
    finally:
        spark.stop()
