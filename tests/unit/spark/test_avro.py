"""Avro as columns: types, nested values, logical types, unions, versions of a schema, and bytes that are none."""

from __future__ import annotations

import datetime
import io
import json
import random
import struct
import uuid
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from driftq.spark.avro import AvroDecoder, decoder
from driftq.spark.source.options import BadOption

PLACE = {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "int"}]}
AT = datetime.datetime(2030, 1, 31, 12, tzinfo=datetime.UTC)


def record(*fields: tuple[str, Any], name: str = "shop.Payment") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def encoded(schema: Any, row: Any) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), row)
    return written.getvalue()


def decoded(schema: Any, *values: bytes | None, versions: dict[int, Any] | None = None) -> list[Any]:
    older = {number: json.dumps(version) for number, version in (versions or {}).items()}
    return AvroDecoder(json.dumps(schema), older).array(pa.array(values, pa.binary())).to_pylist()


def test_every_kind_of_field_becomes_a_column():
    schema = record(
        ("flag", "boolean"), ("small", "int"), ("large", "long"), ("real", "double"), ("text", "string"),
        ("raw", "bytes"),
        ("kind", {"type": "enum", "name": "Kind", "symbols": ["LEFT", "RIGHT"]}),
        ("hash", {"type": "fixed", "name": "Hash", "size": 2}),
        ("places", {"type": "array", "items": PLACE}), ("home", ["null", "Place"]), ("work", ["Place", "null"]),
        ("counts", {"type": "map", "values": ["null", "int"]}),
    )  # fmt: skip
    row = {
        "flag": True, "small": -1, "large": 2**40, "real": 0.5, "text": "é", "raw": b"\xff", "kind": "RIGHT",
        "hash": b"ab",
        "places": [{"x": 1}, {"x": 2}], "home": {"x": 3}, "work": None, "counts": {"a": 5, "b": None},
    }  # fmt: skip

    rows = decoded(schema, encoded(schema, row))

    assert rows == [{**row, "counts": [("a", 5), ("b", None)]}]
    assert AvroDecoder(json.dumps(schema), {}).type.simpleString() == (
        "struct<flag:boolean,small:int,large:bigint,real:double,text:string,raw:binary,kind:string,hash:binary,"
        "places:array<struct<x:int>>,home:struct<x:int>,work:struct<x:int>,counts:map<string,int>>"
    )


def test_logical_types_are_those_of_spark_and_others_stay_numbers():
    schema = record(
        ("at", logical("long", "timestamp-millis")), ("local", logical("long", "local-timestamp-micros")),
        ("day", logical("int", "date")), ("price", logical("bytes", "decimal", precision=6, scale=2)),
        ("id", logical("string", "uuid")), ("noon", logical("int", "time-millis")),
        ("odd", logical("long", "not-known")),
        ("huge", logical("bytes", "decimal", precision=60, scale=0)),
    )  # fmt: skip
    number = uuid.UUID(int=7)
    sent = {
        "at": AT, "local": AT.replace(tzinfo=None), "day": AT.date(), "price": Decimal("12.50"), "id": number,
        "noon": datetime.time(12), "odd": 3, "huge": Decimal(9),
    }  # fmt: skip

    (row,) = decoded(schema, encoded(schema, sent))

    assert row == {**sent, "id": str(number), "noon": 12 * 3_600_000, "huge": b"\x09"}


def test_a_union_of_several_types_is_a_struct_with_a_field_for_each():
    schema = record(("either", ["null", "long", "string", PLACE, record(("x", "int"), name="Other")]))
    other = ("shop.Other", {"x": 2})
    values = [encoded(schema, {"either": one}) for one in (None, 7, "seven", ("shop.Place", {"x": 1}), other)]

    rows = [row["either"] for row in decoded(schema, *values)]

    empty = dict.fromkeys(("member0", "member1", "member2", "member3"))
    assert rows[0] is None
    assert rows[1:] == [
        {**empty, "member0": 7}, {**empty, "member1": "seven"}, {**empty, "member2": {"x": 1}},
        {**empty, "member3": {"x": 2}},
    ]  # fmt: skip


def test_values_of_older_versions_get_the_fields_of_the_schema():
    first, second = record(("id", "int")), record(("id", "long"), ("note", "string"))
    schema = record(("id", "long"))
    schema["fields"].append({"name": "total", "type": "double", "default": 0.0})
    values = [
        struct.pack(">bI", 0, 1) + encoded(first, {"id": 1}),
        struct.pack(">bI", 0, 2) + encoded(second, {"id": 2, "note": "new"}),
        struct.pack(">bI", 0, 3) + encoded(first, {"id": 3}),  # an unknown version
        struct.pack(">bI", 1, 1) + encoded(first, {"id": 4}),
        b"\0\0",
    ]

    rows = decoded(schema, *values, versions={1: first, 2: second})

    assert rows == [{"id": 1, "total": 0.0}, {"id": 2, "total": 0.0}, None, None, None]


def test_what_is_no_value_is_null_and_spoils_no_other():
    schema = record(("text", "string"), ("price", logical("bytes", "decimal", precision=4, scale=0)))
    good, many = ({"text": "a", "price": Decimal(digits)} for digits in ("1234", "0"))
    huge = encoded(schema, many)[:-2] + b"\x08\x7f\xff\xff\xff"  # more digits than the schema allows
    value = encoded(schema, good)

    rows = decoded(schema, value, b"", value[:-1], value + b"\0", None, b"\xff" * 9, huge, value)

    assert rows == [good, None, None, None, None, None, None, good]


def test_damaged_bytes_never_fail(seed: int):
    schema = record(
        ("text", "string"), ("at", logical("long", "timestamp-millis")), ("day", logical("int", "date")),
        ("either", ["null", "int", PLACE]), ("list", {"type": "array", "items": "Place"}),
        ("price", logical("bytes", "decimal", precision=6, scale=2)), ("id", logical("string", "uuid")),
    )  # fmt: skip
    row = {
        "text": "text", "at": AT, "day": AT.date(), "either": 7, "list": [{"x": 1}], "price": Decimal(1),
        "id": uuid.UUID(int=1),
    }  # fmt: skip
    value, chance = encoded(schema, row), random.Random(seed)
    damaged = []
    for _ in range(2_000):
        changed = bytearray(value[: chance.randrange(len(value)) if chance.random() < 0.3 else None])
        for _ in range(min(len(changed), chance.randint(1, 3))):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        damaged.append(bytes(changed))

    assert len(decoded(schema, *damaged, value)) == 2_001


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (
            '{"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}',
            "contains itself",
        ),
        ("{no", "no Avro schema"),
        ('{"type": "nothing"}', "no Avro schema"),
    ],
)
def test_a_schema_without_columns_is_refused(schema: str, says: str):
    with pytest.raises(BadOption, match=says):
        decoder(schema, ())
