"""The driver that a test kills: archives a topic in small micro-batches and prints each batch id.

python archive_driver.py URL TABLE TOPIC MAX_OFFSETS COMPACT_FILES
"""

from __future__ import annotations

import sys

from driftq.spark import driftq_session
from driftq.spark.pipelines import archive
from driftq.spark.pipelines.settings import from_tree

if __name__ == "__main__":
    url, table, topic, max_offsets, compact_files = sys.argv[1:]
    configuration = from_tree(
        {
            "pipeline": {"name": "archive", "trigger": "1 millisecond"},
            "source": {"url": url, "topics": [topic], "max_offsets": int(max_offsets)},
            "sink": {"table": table},
            "archive": {"compact_files": int(compact_files)},
        }
    )
    commit_batch = archive.commit_batch

    def commit_and_print(rows, tables, writer, batch_id):
        print("batch", batch_id, flush=True)
        commit_batch(rows, tables, writer, batch_id)

    archive.commit_batch = commit_and_print
    spark = driftq_session("local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    archive.start_archive(spark, configuration).awaitTermination()
