"""A table in a real object store with the S3 API: Spark needs no jars for it, and other readers read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import deltalake
import polars

from driftq.spark import read_table
from driftq.spark.tables import BatchKnown, Committed, Compaction, DeltaTable
from driftq.spark.tables.delta_log import DeltaLog
from driftq.spark.tables.storage import ObjectFiles
from tests.spark.test_tables import offsets, rows_of
from tests.support.s3_server import s3_server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

URL = "s3://tables/folder/orders"
TOPIC = "a:b é"


class RacedFiles(ObjectFiles):
    """Another writer makes the next version first, once."""

    def __init__(self, options: dict[str, str], other: Callable[[], object]) -> None:
        super().__init__(URL, options)
        self._others = [other]

    def create(self, path: str, data: bytes) -> bool:
        if self._others:
            self._others.pop()()
        return super().create(path, data)


def test_a_table_in_an_object_store_is_exact(spark: SparkSession) -> None:
    with s3_server() as server:
        server.make_bucket("tables")
        options = {**server.environment(), "AWS_ALLOW_HTTP": "true"}

        def table(files: ObjectFiles | None = None) -> DeltaTable:
            log = DeltaLog(files or ObjectFiles(URL, options), checkpoint_every=2)
            return DeltaTable(spark, URL, ("topic", "date"), options, log=log)

        def rows(first: int, end: int) -> DataFrame:
            return rows_of(spark, first, end, topic=TOPIC)

        first = table()
        for batch_id in range(3):
            assert isinstance(first.commit("w", batch_id, rows(10 * batch_id, 10 * batch_id + 10)), Committed)
        raced = table(RacedFiles(options, lambda: first.commit("w", 3, rows(30, 40))))
        second = raced.commit("other", 0, rows(25, 50).selectExpr("*", "named_struct('x', offset) AS body"))

        assert isinstance(second, Committed)
        assert (second.rows, second.rows_held) == (10, 15)
        assert table().commit("w", 9, rows(0, 50)) == BatchKnown("w", 9)
        assert table().compact(Compaction(files_min=5)).into == 1
        assert offsets(read_table(spark, URL, options)) == list(range(50))
        assert read_table(spark, URL, options).where("body.x = offset").count() == 10
        delta_rs = deltalake.DeltaTable(URL, storage_options=options).to_pyarrow_table()
        assert sorted(delta_rs.column("offset").to_pylist()) == list(range(50))
        assert set(delta_rs.column("topic").to_pylist()) == {TOPIC}
        assert polars.read_delta(URL, storage_options=options).height == 50
        visible, problems = table().visible(first.ledger())
        assert (visible.count(), problems) == (50, [])
        assert table().vacuum() == 0, "replaced files stay for a day"
