"""A program that uses Spark only as a Connect client: reads, a stream to the sink, `foreachBatch`, views.

    python -m tests.spark.connect_driver URL FOLDER

`remote("local[2]")` starts a server on this machine and talks to it as to any other.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from driftq.spark import views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def main(url: str, folder: str) -> None:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    batch = spark.read.format("driftq").option("url", url).load("in")
    print("read", batch.count(), type(spark).__module__)
    views.create(spark, "in", url=url)
    print("jobs", spark.sql("SELECT id FROM in_jobs").count())

    def stream() -> DataFrame:
        reader = spark.readStream.format("driftq").options(url=url, subscribe="in", startingOffsets="earliest")
        return reader.load().select("key", "value")

    writer = stream().writeStream.format("driftq").options(url=url, topic="copy")
    writer.option("checkpointLocation", f"{folder}/copy").trigger(availableNow=True).start().awaitTermination()

    def write_again(rows: DataFrame, batch_id: int) -> None:
        """A batch that is run again after it was written is the same batch."""
        for _ in range(2):
            target = rows.write.format("driftq").mode("append").options(url=url, topic="each")
            target.option("writer", "each").option("batchId", batch_id).save()

    writer = stream().writeStream.foreachBatch(write_again).option("checkpointLocation", f"{folder}/each")
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
