"""Values as columns: JSON, Protobuf and Avro, with the schemas of topics in one registry file.

    [orders]                                # schemas.toml: a table for each topic
    format = "json"
    schema = "id BIGINT, total DOUBLE"      # as Spark writes schemas

    [clicks]
    format = "protobuf"
    descriptors = "clicks.desc"             # protoc --include_imports --descriptor_set_out=clicks.desc clicks.proto
    message = "shop.Click"

    [payments]
    format = "avro"
    schema = "payment.avsc"

Each function adds a column `data` to rows of the source and keeps the others. It is null where the value cannot be
decoded, so that one bad message does not stop a query: `where("data IS NULL")` finds them.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from pyspark.sql import functions as F
from pyspark.sql import types as t
from pyspark.sql.pandas.functions import arrow_udf

from driftq.spark.source.options import BadOption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TYPES: dict[int, t.DataType] = {
    FieldDescriptor.CPPTYPE_INT32: t.IntegerType(),
    FieldDescriptor.CPPTYPE_INT64: t.LongType(),
    FieldDescriptor.CPPTYPE_UINT32: t.LongType(),
    FieldDescriptor.CPPTYPE_UINT64: t.DecimalType(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: t.DoubleType(),
    FieldDescriptor.CPPTYPE_FLOAT: t.FloatType(),
    FieldDescriptor.CPPTYPE_BOOL: t.BooleanType(),
    FieldDescriptor.CPPTYPE_ENUM: t.StringType(),
}


def decoded(rows: DataFrame, registry: str | Path, topic: str) -> DataFrame:
    """The rows of a topic with `data`, decoded as the registry file says."""
    path = Path(registry)
    schemas = tomllib.loads(path.read_text(encoding="utf-8"))
    entry = schemas.get(topic)
    if not isinstance(entry, dict):
        raise BadOption(f"{path} has no table [{topic}]; it has {', '.join(schemas) or 'none'}")
    match entry:
        case {"format": "json", "schema": str(schema)}:
            return json_values(rows, schema)
        case {"format": "protobuf", "descriptors": str(descriptors), "message": str(message)}:
            return protobuf_values(rows, path.parent / descriptors, message)
        case {"format": "avro", "schema": str(schema), **more}:
            versions = more.get("versions", {})
            if isinstance(versions, dict) and all(number.isdecimal() for number in versions):
                paths = {int(number): path.parent / str(version) for number, version in versions.items()}
                return avro_values(rows, path.parent / schema, paths)
    raise BadOption(
        f'{path}: [{topic}] has format = "json" with schema, format = "protobuf" with descriptors and message, or '
        'format = "avro" with schema and perhaps versions'
    )


def json_values(rows: DataFrame, schema: str) -> DataFrame:
    """Values that are JSON objects. Fields that the schema does not name are left out; missing ones are null."""
    text = F.col("value").cast("string")
    parsed = F.from_json(text, f"{schema}, _bad STRING", {"columnNameOfCorruptRecord": "_bad"})
    is_good = parsed["_bad"].isNull() & text.rlike(r"^\s*\{")
    return rows.withColumn("data", F.when(is_good, parsed.dropFields("_bad")))


def protobuf_values(rows: DataFrame, descriptors: str | Path, message: str) -> DataFrame:
    """Values that are messages of one Protobuf type, from a file that protoc wrote with `--descriptor_set_out`. Enums
    are their names, and a number that has none; a field that was not set is null if Protobuf can tell, else its default
    value."""
    described = Path(descriptors).read_bytes()
    schema = _struct(_message(described, message).DESCRIPTOR, ())
    return rows.withColumn("data", F.udf(functools.partial(_decode, described, message), schema)("value"))


def avro_values(rows: DataFrame, schema: str | Path, versions: Mapping[int, str | Path] | None = None) -> DataFrame:
    """Values that are Avro of the schema in a file. With `versions`, each value begins with the five bytes of a schema
    registry: it is read by the version with that number, and its fields become those of `schema`. Needs the extra
    `avro`."""
    from driftq.spark import avro  # noqa: PLC0415  # needs fastavro

    text = Path(schema).read_text(encoding="utf-8")
    older = {number: Path(file).read_text(encoding="utf-8") for number, file in (versions or {}).items()}
    arguments = text, tuple(sorted(older.items()))
    kind: t.DataType = avro.decoder(*arguments).type
    decode = arrow_udf(avro.column_decoder(*arguments), kind)  # type: ignore[call-overload]  # its stubs lack structs
    return rows.withColumn("data", decode("value"))


def _decode(described: bytes, name: str, value: bytes) -> tuple[Any, ...] | None:
    try:
        return _row(_message(described, name).FromString(bytes(value)))
    except DecodeError:
        return None


@functools.lru_cache(16)
def _message(described: bytes, name: str) -> Any:
    """The class of a message. A Python worker makes it once."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(described).file:
        pool.Add(file)
    try:
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except KeyError:
        raise BadOption(f"the descriptors have no message {name!r}; its name includes its package") from None


def _struct(message: Descriptor, above: tuple[str, ...]) -> t.StructType:
    if message.full_name in above:
        raise BadOption(f"{message.full_name} contains itself; such a message has no columns")
    fields = [(field.name, _type(field, (*above, message.full_name))) for field in message.fields]
    return t.StructType([t.StructField(name, kind) for name, kind in fields])


def _type(field: FieldDescriptor, above: tuple[str, ...]) -> t.DataType:
    if _is_map(field):
        key, value = (_type(field.message_type.fields_by_name[part], above) for part in ("key", "value"))
        return t.MapType(key, value)
    kind = _single_type(field, above)
    return t.ArrayType(kind) if field.is_repeated else kind


def _single_type(field: FieldDescriptor, above: tuple[str, ...]) -> t.DataType:
    if field.message_type is not None:
        return _struct(field.message_type, above)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return t.BinaryType()
    return _TYPES.get(field.cpp_type, t.StringType())


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _row(message: Any) -> tuple[Any, ...]:
    return tuple(_field(message, field) for field in message.DESCRIPTOR.fields)


def _field(message: Any, field: FieldDescriptor) -> Any:
    content = getattr(message, field.name)
    if _is_map(field):
        value = field.message_type.fields_by_name["value"]
        return {key: _single(value, one) for key, one in content.items()}
    if field.is_repeated:
        return [_single(field, one) for one in content]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _single(field, content)


def _single(field: FieldDescriptor, content: Any) -> Any:
    if field.message_type is not None:
        return _row(content)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(content)
        return known.name if known is not None else str(content)
    if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64:
        return Decimal(content)
    return content
