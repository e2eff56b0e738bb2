"""Values as columns, with schemas from a registry file, in a real Spark."""

from __future__ import annotations

import datetime
import io
import json
import struct
from decimal import Decimal

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql import functions as F

from driftq.spark import values
from driftq.spark.source.options import BadOption

REGISTRY = """
[orders]
format = "json"
schema = "id BIGINT, tags ARRAY<STRING>"

[clicks]
format = "protobuf"
descriptors = "clicks.desc"
message = "shop.Click"

[payments]
format = "avro"
schema = "payment.avsc"
versions = { 7 = "payment.avsc" }

[plain]
format = "avro"
schema = "payment.avsc"

[wrong]
format = "xml"
"""
PAYMENT = {
    "type": "record",
    "name": "shop.Payment",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "total", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}]},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
    ],
}
P = descriptor_pb2.FieldDescriptorProto


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    """What protoc writes for a message with numbers, an enum, a nested message, a list and a map."""
    file = descriptor_pb2.FileDescriptorProto(name="clicks.proto", package="shop", syntax="proto3")
    file.enum_type.add(name="Kind").value.add(name="LEFT", number=0)
    file.enum_type[0].value.add(name="RIGHT", number=1)
    place = file.message_type.add(name="Place")
    place.field.add(name="x", number=1, type=P.TYPE_INT32, label=P.LABEL_OPTIONAL)
    click = file.message_type.add(name="Click")
    click.field.add(name="id", number=1, type=P.TYPE_UINT64, label=P.LABEL_OPTIONAL)
    click.field.add(name="kind", number=2, type=P.TYPE_ENUM, type_name=".shop.Kind", label=P.LABEL_OPTIONAL)
    click.field.add(name="places", number=3, type=P.TYPE_MESSAGE, type_name=".shop.Place", label=P.LABEL_REPEATED)
    click.field.add(name="home", number=4, type=P.TYPE_MESSAGE, type_name=".shop.Place", label=P.LABEL_OPTIONAL)
    click.field.add(name="raw", number=5, type=P.TYPE_BYTES, label=P.LABEL_OPTIONAL)
    entry = click.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=P.TYPE_STRING, label=P.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=P.TYPE_INT64, label=P.LABEL_OPTIONAL)
    click.field.add(
        name="counts", number=6, type=P.TYPE_MESSAGE, type_name=".shop.Click.CountsEntry", label=P.LABEL_REPEATED
    )
    return descriptor_pb2.FileDescriptorSet(file=[file])


@pytest.fixture
def registry(tmp_path):
    (tmp_path / "schemas.toml").write_text(REGISTRY)
    (tmp_path / "payment.avsc").write_text(json.dumps(PAYMENT))
    (tmp_path / "clicks.desc").write_bytes(descriptors().SerializeToString())
    return tmp_path / "schemas.toml"


def test_json_values_become_columns_and_bad_ones_null(spark, registry):
    texts = [b'{"id": 7, "tags": ["a"], "more": 1}', b"{}", b"{no", b"7", b'{"id": "seven"}']
    rows = spark.createDataFrame([(text,) for text in texts], "value BINARY")
    data = [row.data and tuple(row.data) for row in values.decoded(rows, registry, "orders").collect()]
    assert data == [(7, ["a"]), (None, None), None, None, None]


def test_protobuf_values_become_columns_and_bad_ones_null(spark, registry):
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptors().file[0])
    click = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Click"))
    full = click(id=2**64 - 1, kind=1, places=[{"x": 1}, {"x": 2}], raw=b"\xff", counts={"a": 5})
    rows = spark.createDataFrame([(full.SerializeToString(),), (b"",), (b"\xff\xff",)], "value BINARY")
    first, empty, bad = [row.data for row in values.decoded(rows, str(registry), "clicks").collect()]
    assert (first.id, first.kind, [place.x for place in first.places]) == (Decimal(2**64 - 1), "RIGHT", [1, 2])
    assert (first.home, bytes(first.raw), first.counts) == (None, b"\xff", {"a": 5})
    assert (empty.id, empty.kind, empty.places, empty.home) == (Decimal(0), "LEFT", [], None)
    assert bad is None


def test_avro_values_become_columns_and_bad_ones_null(spark, registry):
    written = io.BytesIO()
    at = datetime.datetime(2030, 1, 31, 12, tzinfo=datetime.UTC)
    payment = {"id": 1, "at": at, "total": Decimal("12.50"), "tags": {"a": "b"}}
    fastavro.schemaless_writer(written, fastavro.parse_schema(PAYMENT), payment)
    texts = [written.getvalue(), written.getvalue()[:-1], struct.pack(">bI", 0, 7) + written.getvalue(), None]
    rows = spark.createDataFrame([(text,) for text in texts], "value BINARY")

    plain = values.decoded(rows, registry, "plain").select("data.*", F.unix_millis("data.at").alias("ms")).collect()
    framed = [row.data for row in values.decoded(rows, registry, "payments").collect()]

    assert [row.id for row in plain] == [1, None, None, None]
    assert (plain[0].ms, plain[0].total, plain[0].tags) == (1_000 * at.timestamp(), Decimal("12.50"), {"a": "b"})
    assert [data and data.id for data in framed] == [None, None, 1, None]


def test_what_the_registry_lacks_is_named(spark, registry):
    rows = spark.createDataFrame([(b"",)], "value BINARY")
    with pytest.raises(BadOption, match=r"no table \[nowhere\]; it has orders, clicks, payments, plain, wrong"):
        values.decoded(rows, registry, "nowhere")
    with pytest.raises(BadOption, match='format = "json" with schema'):
        values.decoded(rows, registry, "wrong")
    with pytest.raises(BadOption, match="no message 'Click'"):
        values.protobuf_values(rows, registry.with_name("clicks.desc"), "Click")
