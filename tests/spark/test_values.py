"""Values as columns, with schemas from a registry file, in a real Spark."""

from __future__ import annotations

from decimal import Decimal

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

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

[wrong]
format = "xml"
"""
F = descriptor_pb2.FieldDescriptorProto


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    """What protoc writes for a message with numbers, an enum, a nested message, a list and a map."""
    file = descriptor_pb2.FileDescriptorProto(name="clicks.proto", package="shop", syntax="proto3")
    file.enum_type.add(name="Kind").value.add(name="LEFT", number=0)
    file.enum_type[0].value.add(name="RIGHT", number=1)
    place = file.message_type.add(name="Place")
    place.field.add(name="x", number=1, type=F.TYPE_INT32, label=F.LABEL_OPTIONAL)
    click = file.message_type.add(name="Click")
    click.field.add(name="id", number=1, type=F.TYPE_UINT64, label=F.LABEL_OPTIONAL)
    click.field.add(name="kind", number=2, type=F.TYPE_ENUM, type_name=".shop.Kind", label=F.LABEL_OPTIONAL)
    click.field.add(name="places", number=3, type=F.TYPE_MESSAGE, type_name=".shop.Place", label=F.LABEL_REPEATED)
    click.field.add(name="home", number=4, type=F.TYPE_MESSAGE, type_name=".shop.Place", label=F.LABEL_OPTIONAL)
    click.field.add(name="raw", number=5, type=F.TYPE_BYTES, label=F.LABEL_OPTIONAL)
    entry = click.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=F.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=F.TYPE_INT64, label=F.LABEL_OPTIONAL)
    click.field.add(
        name="counts", number=6, type=F.TYPE_MESSAGE, type_name=".shop.Click.CountsEntry", label=F.LABEL_REPEATED
    )
    return descriptor_pb2.FileDescriptorSet(file=[file])


@pytest.fixture
def registry(tmp_path):
    (tmp_path / "schemas.toml").write_text(REGISTRY)
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


def test_what_the_registry_lacks_is_named(spark, registry):
    rows = spark.createDataFrame([(b"",)], "value BINARY")
    with pytest.raises(BadOption, match=r"no table \[nowhere\]; it has orders, clicks, wrong"):
        values.decoded(rows, registry, "nowhere")
    with pytest.raises(BadOption, match='format = "json" with schema'):
        values.decoded(rows, registry, "wrong")
    with pytest.raises(BadOption, match="no message 'Click'"):
        values.protobuf_values(rows, registry.with_name("clicks.desc"), "Click")
