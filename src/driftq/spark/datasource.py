"""The data source as Spark sees it: its name, its schema, its readers and writers.

    spark.read.format("driftq").option("subscribe", "orders").load()

Registered by `driftq.spark.register`, or by Spark itself, which looks for packages named `pyspark_*`. The work is done
in `source.reader` and `sink.writer`, which are imported when they are needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from driftq.spark.source import columns
from driftq.spark.source.options import read_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class DriftqDataSource(DataSource):
    """`format("driftq")`."""

    @classmethod
    def name(cls) -> str:
        return "driftq"

    def schema(self) -> StructType:
        return columns.spark_schema(columns.available_columns(read_options(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        from driftq.spark.source.reader import DriftqReader, FilteringReader  # noqa: PLC0415  # not needed to write

        options = read_options(self.options)
        return (FilteringReader if options.push_filters else DriftqReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from driftq.spark.source.reader import DriftqStreamReader  # noqa: PLC0415

        return DriftqStreamReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        writer: DataSourceWriter = importlib.import_module("driftq.spark.sink.writer").batch_writer(
            dict(self.options), schema, overwrite
        )
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        writer: DataSourceStreamWriter = importlib.import_module("driftq.spark.sink.writer").stream_writer(
            dict(self.options), schema, overwrite
        )
        return writer
