"""Questions to the tables that pipelines write, for people at a terminal."""

from __future__ import annotations

import os
from pathlib import Path

from driftq.spark.pipelines.running import sheltered


class NoStory(Exception):
    """There is nothing at this place that runs could be told from."""


def tell_story(run_id: str, table: str) -> list[str]:
    """What happened in a run, as lines; none if the table does not know it."""
    if "://" not in table and not Path(table).is_dir():
        raise NoStory(f"there is no table at {table}")  # and no need to start Spark
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123  # not a path of anybody's
        spark = sheltered("local[2]", "driftq-story", {"spark.sql.shuffle.partitions": "1"}, nowhere)
    # Here and not above: these modules need Spark's.
    from driftq.spark.pipelines.runs import story  # noqa: PLC0415
    from driftq.spark.tables import NoTable, open_table  # noqa: PLC0415

    try:
        rows = open_table(spark, table).read()
        if "step_id" not in rows.columns:
            raise NoStory(f"{table} is no table of the pipeline `runs`: its rows are no steps")
        return story(rows, run_id)
    except NoTable as error:
        raise NoStory(str(error)) from None
    finally:
        spark.stop()
