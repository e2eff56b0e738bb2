"""The columns of the source, for Spark and for Arrow, in one table.

A query may pass a schema of its own: any of the columns, in any order. That is how it reads less, because Spark does
not push column selection down to Python sources. Knows no broker and no bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from driftq.spark.source.options import BadOption, ReadOptions


class Column(NamedTuple):
    name: str
    spark: DataType
    arrow: pa.DataType
    meaning: str


_TEXTS = MapType(StringType(), StringType(), True)
_TIME = pa.timestamp("us", tz="UTC")
_ARROW_TEXTS = pa.map_(pa.string(), pa.string())

BASE: tuple[Column, ...] = (
    Column("topic", StringType(), pa.string(), "the topic, or the path of the stream"),
    Column("partition", IntegerType(), pa.int32(), "the partition; 0 for a stream"),
    Column("offset", LongType(), pa.int64(), "the number of the record in its log: dense, from 0"),
    Column("timestamp", TimestampType(), _TIME, "when the broker accepted the record, in milliseconds"),
    Column("key", BinaryType(), pa.binary(), "null if the record has none"),
    Column("value", BinaryType(), pa.binary(), "the payload; never null"),
)
ENVELOPE: tuple[Column, ...] = (
    Column("run_id", StringType(), pa.string(), "the run that the message belongs to"),
    Column("step_id", StringType(), pa.string(), "the step of the run"),
    Column("parent_step_id", StringType(), pa.string(), "the step that caused this one"),
    Column("tenant_id", StringType(), pa.string(), "the tenant that the message belongs to"),
    Column("idempotency_key", StringType(), pa.string(), "the key by which repeats are recognised"),
    Column("labels", _TEXTS, _ARROW_TEXTS, "labels that the sender set; null if there are none"),
    Column("deadline", TimestampType(), _TIME, "when the message expires"),
    Column("routing_label", StringType(), pa.string(), "the label that the router chose"),
    Column("routing_meta", _TEXTS, _ARROW_TEXTS, "the metadata that the router added"),
    Column("task", StringType(), pa.string(), "the handler of a job"),
    Column("priority", IntegerType(), pa.int32(), "the priority of a job; null for a message that is not a job"),
)
HEAD: tuple[Column, ...] = (
    Column("head", StringType(), pa.string(), "the record's head (JSON) as text; null if there is none"),
)
STATE: tuple[Column, ...] = (
    Column(
        "queue_state",
        StringType(),
        pa.string(),
        "waiting, settled, leased, retrying or delayed in the group",
    ),
    Column("attempts", IntegerType(), pa.int32(), "deliveries so far; null for a settled message"),
    Column("last_error", StringType(), pa.string(), "why the last attempt failed"),
)
ALL_COLUMNS = {column.name: column for column in (*BASE, *ENVELOPE, *HEAD, *STATE)}


def available_columns(options: ReadOptions) -> tuple[Column, ...]:
    """The columns of a read with these options."""
    return (
        *BASE,
        *(ENVELOPE if options.envelope else ()),
        *(HEAD if options.head else ()),
        *(STATE if options.state_group else ()),
    )


def spark_schema(columns: Sequence[Column]) -> StructType:
    return StructType([StructField(column.name, column.spark, True) for column in columns])


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([pa.field(column.name, column.arrow) for column in columns])


def selected_columns(schema: StructType, options: ReadOptions) -> tuple[Column, ...]:
    """The columns that the schema of a query selects. Raises `BadOption` for one that the source does not have."""
    available = {column.name: column for column in available_columns(options)}
    selected = []
    for field in schema.fields:
        column = available.get(field.name)
        if column is None:
            known = ALL_COLUMNS.get(field.name)
            hint = f"; it needs the option {_required_option(known)}" if known else f"; it has {', '.join(available)}"
            raise BadOption(f"the driftq source has no column {field.name}{hint}")
        if field.dataType != column.spark:
            types = f"{column.spark.simpleString()}, not {field.dataType.simpleString()}"
            raise BadOption(f"the column {field.name} is {types}: read it as it is and cast it")
        selected.append(column)
    return tuple(selected)


def _required_option(column: Column) -> str:
    if column in ENVELOPE:
        return "includeEnvelope=true"
    return "includeHead=true" if column in HEAD else "queueState=<group>"


def table() -> list[tuple[str, str, str]]:
    """The rows of the table in docs/reference/spark.md."""
    return [(f"`{column.name}`", f"`{column.spark.simpleString()}`", column.meaning) for column in ALL_COLUMNS.values()]
