"""The columns of the source, for Spark and for Arrow, in one table.

A query may name its own schema: any of the columns, in any order. That is how a Python source reads less, because
Spark does not tell it which columns are used. Knows no broker and no bytes.
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
    Column("timestamp", TimestampType(), _TIME, "when the broker took it, to the millisecond"),
    Column("key", BinaryType(), pa.binary(), "null when there is none"),
    Column("value", BinaryType(), pa.binary(), "the payload; never null"),
)
ENVELOPE: tuple[Column, ...] = (
    Column("run_id", StringType(), pa.string(), "the run that the message belongs to"),
    Column("step_id", StringType(), pa.string(), "the step of the run"),
    Column("parent_step_id", StringType(), pa.string(), "the step that caused this one"),
    Column("tenant_id", StringType(), pa.string(), "whose message it is"),
    Column("idempotency_key", StringType(), pa.string(), "what makes a repeat known as one"),
    Column("labels", _TEXTS, _ARROW_TEXTS, "words of its sender; null when there are none"),
    Column("deadline", TimestampType(), _TIME, "when it is of no use any more"),
    Column("routing_label", StringType(), pa.string(), "what the router said"),
    Column("routing_meta", _TEXTS, _ARROW_TEXTS, "what else the router said"),
    Column("task", StringType(), pa.string(), "the handler of a job"),
    Column("priority", IntegerType(), pa.int32(), "of a job; null for a message that is no job"),
)
HEAD: tuple[Column, ...] = (
    Column("head", StringType(), pa.string(), "the JSON beside key and value, as text; null when there is none"),
)
STATE: tuple[Column, ...] = (
    Column("queue_state", StringType(), pa.string(), "what became of the message in the group"),
    Column("attempts", IntegerType(), pa.int32(), "deliveries so far; null where the broker keeps no count any more"),
    Column("last_error", StringType(), pa.string(), "why the last attempt failed"),
)
KNOWN = {column.name: column for column in (*BASE, *ENVELOPE, *HEAD, *STATE)}


def wanted(options: ReadOptions) -> tuple[Column, ...]:
    """The columns that a read with these options has."""
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


def chosen(schema: StructType, options: ReadOptions) -> tuple[Column, ...]:
    """The columns of a schema that a query named itself. Raises `BadOption` for one that the source does not have."""
    have = {column.name: column for column in wanted(options)}
    found = []
    for field in schema.fields:
        column = have.get(field.name)
        if column is None:
            known = KNOWN.get(field.name)
            hint = f"; it needs the option {_needs(known)}" if known else f"; there are {', '.join(have)}"
            raise BadOption(f"the driftq source has no column {field.name}{hint}")
        if field.dataType != column.spark:
            told = f"{column.spark.simpleString()}, not {field.dataType.simpleString()}"
            raise BadOption(f"the column {field.name} is {told}: read it as it is and cast it")
        found.append(column)
    return tuple(found)


def _needs(column: Column) -> str:
    if column in ENVELOPE:
        return "includeEnvelope=true"
    return "includeHead=true" if column in HEAD else "queueState=<group>"


def table() -> list[tuple[str, str, str]]:
    """For docs/reference/spark.md."""
    return [(f"`{column.name}`", f"`{column.spark.simpleString()}`", column.meaning) for column in KNOWN.values()]
