"""Avro schemas as Spark types, and Avro values as Arrow arrays. Needs no jar.

Records become structs, enums and UUIDs strings, and dates, timestamps and decimals those of Spark. A logical type that
Spark does not have, such as a time of day, is the number or the bytes that was sent. A union of null and one type is
that type; one of several types is a struct with a field for each, `member0`, `member1` and so on, as Spark's own reader
of Avro has it.

A decoder is made from schemas as text, so that a task can be sent what it needs, and is kept by the worker.
"""

from __future__ import annotations

import datetime
import functools
import io
import json
import struct
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from driftq.extras import require
from driftq.spark.source.options import BadOption

require("decoding Avro", "avro")

import fastavro  # noqa: E402
from fastavro.schema import SchemaParseException  # noqa: E402

Schema = Any  # as parsed from JSON: a name, a dict, or a list for a union
Convert = Callable[[Any], Any]  # from what fastavro returns to what Arrow takes

DECIMAL_DIGITS_MAX = 38
# What a registry of schemas puts before a value: a zero and the number of the schema.
_HEADER = struct.Struct(">bI")

_TYPES: Mapping[str, t.DataType] = {
    "null": t.NullType(),
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "bytes": t.BinaryType(),
    "fixed": t.BinaryType(),
    "string": t.StringType(),
    "enum": t.StringType(),
}
_LOGICAL_TYPES: Mapping[tuple[str, str], t.DataType] = {
    ("int", "date"): t.DateType(),
    ("long", "timestamp-millis"): t.TimestampType(),
    ("long", "timestamp-micros"): t.TimestampType(),
    ("long", "local-timestamp-millis"): t.TimestampNTZType(),
    ("long", "local-timestamp-micros"): t.TimestampNTZType(),
    ("string", "uuid"): t.StringType(),
}
# Which members of a union a Python value can be of.
_MEMBERS: Mapping[type, frozenset[str]] = {
    bool: frozenset({"boolean"}),
    int: frozenset({"int", "long"}),
    float: frozenset({"float", "double"}),
    str: frozenset({"string", "enum"}),
    bytes: frozenset({"bytes", "fixed"}),
    list: frozenset({"array"}),
    dict: frozenset({"map"}),
    datetime.date: frozenset({"int"}),
    datetime.datetime: frozenset({"long"}),
    Decimal: frozenset({"bytes", "fixed"}),
    uuid.UUID: frozenset({"string"}),
}
# What fastavro raises for bytes that are no value of the schema, or one that Python's types cannot hold.
_BAD = (EOFError, ValueError, TypeError, LookupError, ArithmeticError, fastavro.read.SchemaResolutionError)


class AvroDecoder:
    """Decodes values of a schema. With `versions`, a value begins with the number of the schema by which it was
    written."""

    def __init__(self, schema: str, versions: Mapping[int, str]) -> None:
        self._schema = _parsed(schema)
        self._versions = {number: _parsed(text) for number, text in versions.items()}
        columns = _Columns(self._schema)
        self.type, self._convert = columns.type_of(self._schema, ())
        self._arrow_type = to_arrow_type(self.type, timezone="UTC")

    def array(self, values: pa.Array) -> pa.Array:
        """The values as Spark's type; null where one cannot be decoded."""
        rows = [None if value is None else self._row(value) for value in values.to_pylist()]
        try:
            return pa.array(rows, self._arrow_type)
        except _BAD:  # a decimal with too many digits, say: find the row
            return pa.concat_arrays([self._single(row) for row in rows])

    def _single(self, row: Any) -> pa.Array:
        try:
            return pa.array([row], self._arrow_type)
        except _BAD:
            return pa.nulls(1, self._arrow_type)

    def _row(self, value: bytes) -> Any:
        """None if it is not a whole value and nothing else."""
        content = io.BytesIO(value)
        try:
            if self._versions:
                magic, number = _HEADER.unpack(content.read(_HEADER.size))
                if magic or number not in self._versions:
                    return None
                row = fastavro.schemaless_reader(content, self._versions[number], self._schema, return_named_type=True)
            else:
                row = fastavro.schemaless_reader(content, self._schema, None, return_named_type=True)
            return self._convert(row) if content.tell() == len(value) else None
        except (*_BAD, struct.error):
            return None


@functools.lru_cache(16)
def decoder(schema: str, versions: tuple[tuple[int, str], ...]) -> AvroDecoder:
    """The decoder of these schemas. A Python worker makes it once."""
    return AvroDecoder(schema, dict(versions))


def column_decoder(schema: str, versions: tuple[tuple[int, str], ...]) -> Callable[[pa.Array], pa.Array]:
    """What a Python worker runs for the values of a column. It is sent the schemas."""

    def decode(values: pa.Array) -> pa.Array:
        return decoder(schema, versions).array(values)

    return decode


def _parsed(text: str) -> Schema:
    try:
        return fastavro.parse_schema(_without_unknown(json.loads(text)))
    except (SchemaParseException, ValueError, LookupError, TypeError) as error:
        raise BadOption(f"this is no Avro schema: {type(error).__name__}: {error}") from None


def _without_unknown(schema: Schema) -> Schema:
    """The schema without the logical types that have none in Spark: their values are read as they were sent."""
    if isinstance(schema, list):
        return [_without_unknown(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {name: _without_unknown(part) for name, part in schema.items() if name != "default"}
    if "default" in schema:
        parts["default"] = schema["default"]
    if "logicalType" in parts and _logical_type(parts) is None:
        del parts["logicalType"]
    return parts


def _logical_type(schema: Schema) -> t.DataType | None:
    kind, logical = schema.get("type"), schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision = schema.get("precision", 0)
        return t.DecimalType(precision, schema.get("scale", 0)) if 0 < precision <= DECIMAL_DIGITS_MAX else None
    return _LOGICAL_TYPES.get((kind, logical)) if isinstance(kind, str) and isinstance(logical, str) else None


def _same(value: Any) -> Any:
    return value


class _Columns:
    """The type of each part of a schema, and how its values are converted."""

    def __init__(self, schema: Schema) -> None:
        self._named: Mapping[str, Schema] = schema["__named_schemas"] if isinstance(schema, dict) else {}

    def type_of(self, schema: Schema, above: tuple[str, ...]) -> tuple[t.DataType, Convert]:
        """`above` are the records that this is a part of."""
        if isinstance(schema, list):
            return self._union(schema, above)
        if isinstance(schema, str):
            if schema not in self._named:
                return _TYPES[schema], _same
            schema = self._named[schema]
        match schema["type"]:
            case "record" | "error":
                return self._record(schema, above)
            case "array":
                item, convert = self.type_of(schema["items"], above)
                return t.ArrayType(item), _same if convert is _same else lambda items: [*map(convert, items)]
            case "map":
                value, convert = self.type_of(schema["values"], above)
                return t.MapType(t.StringType(), value), lambda entries: [
                    (key, convert(one)) for key, one in entries.items()
                ]
            case str(kind) if kind in _TYPES:
                return _logical_type(schema) or _TYPES[kind], str if schema.get("logicalType") == "uuid" else _same
        return self.type_of(schema["type"], above)

    def _record(self, schema: Schema, above: tuple[str, ...]) -> tuple[t.DataType, Convert]:
        name = schema["name"]
        if name in above:
            raise BadOption(f"{name} contains itself; such a record has no columns")
        fields = {field["name"]: self.type_of(field["type"], (*above, name)) for field in schema["fields"]}
        changes = {name: convert for name, (_, convert) in fields.items() if convert is not _same}

        def convert(row: dict[str, Any]) -> dict[str, Any]:
            for name, change in changes.items():
                row[name] = change(row[name])
            return row

        kind = t.StructType([t.StructField(name, kind) for name, (kind, _) in fields.items()])
        return kind, convert if changes else _same

    def _union(self, schema: list[Schema], above: tuple[str, ...]) -> tuple[t.DataType, Convert]:
        parts = [part for part in schema if part != "null"]
        if not parts:
            return _TYPES["null"], _same
        members = [self.type_of(part, above) for part in parts]
        if len(members) == 1:
            kind, convert = members[0]
            return kind, lambda value: None if value is None else convert(_unnamed(value))
        names = [self._name(part) for part in parts]

        def choose(value: Any) -> dict[str, Any] | None:
            """The struct with the member that the value is of. A value of a named type comes with its name."""
            if value is None:
                return None
            fits = {value[0]} if isinstance(value, tuple) else _MEMBERS[type(value)]
            index = next((index for index, name in enumerate(names) if fits & name), None)
            if index is None:
                raise ValueError("the union has no such member")
            return {f"member{index}": members[index][1](_unnamed(value))}

        return t.StructType([t.StructField(f"member{index}", kind) for index, (kind, _) in enumerate(members)]), choose

    def _name(self, part: Schema) -> set[str]:
        """What the member of a union is recognised by: its kind, and its name if it has one."""
        schema = self._named.get(part, part) if isinstance(part, str) else part
        return {schema} if isinstance(schema, str) else {schema["type"], schema.get("name", schema["type"])}


def _unnamed(value: Any) -> Any:
    return value[1] if isinstance(value, tuple) else value
