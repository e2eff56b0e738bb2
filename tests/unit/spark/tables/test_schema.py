"""Schemas of tables: columns may be added, and nothing else may change."""

from __future__ import annotations

import json
from typing import Any

import pytest

from driftq.spark.tables.ledger import BatchRefused
from driftq.spark.tables.schema import check_partitions, merge_schemas


def schema(**columns: Any) -> str:
    fields = [{"name": name, "type": kind, "nullable": False, "metadata": {}} for name, kind in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


def names_of(text: str | BatchRefused) -> list[str]:
    assert isinstance(text, str), text
    return [field["name"] for field in json.loads(text)["fields"]]


def test_columns_are_added_after_the_old_ones_and_are_nullable() -> None:
    first = merge_schemas("", schema(a="long"))
    second = merge_schemas(str(first), schema(b="string", a="long"))

    assert names_of(second) == ["a", "b"]
    assert names_of(merge_schemas(str(second), schema(a="long"))) == ["a", "b"]
    assert all(field["nullable"] for field in json.loads(str(second))["fields"])


def test_fields_are_added_inside_a_struct() -> None:
    def body(**columns: Any) -> dict[str, Any]:
        return dict(json.loads(schema(**columns)))

    both = merge_schemas(str(merge_schemas("", schema(body=body(x="long")))), schema(body=body(x="long", y="string")))

    assert [field["name"] for field in json.loads(str(both))["fields"][0]["type"]["fields"]] == ["x", "y"]
    refused = merge_schemas(str(both), schema(body=body(x="string")))
    assert isinstance(refused, BatchRefused)
    assert "body.x is long in the table and string in the batch" in refused.message


@pytest.mark.parametrize("other", [schema(a="string"), schema(A="long")])
def test_another_type_and_another_case_are_refused(other: str) -> None:
    refused = merge_schemas(str(merge_schemas("", schema(a="long"))), other)

    assert isinstance(refused, BatchRefused)
    assert refused.code == "SCHEMA_CHANGED"


@pytest.mark.parametrize(
    "columns",
    [{"a": "void"}, {"a": "timestamp_ntz"}, {"a b": "long"}, {"a": {"type": "array", "elementType": "interval day"}}],
)
def test_what_most_readers_of_delta_cannot_read_is_refused(columns: dict[str, Any]) -> None:
    assert isinstance(merge_schemas("", schema(**columns)), BatchRefused)


def test_a_schema_without_news_stays_the_same_text() -> None:
    first = str(merge_schemas("", schema(a="long", b="decimal(10)")))

    assert merge_schemas(first.replace(",", ", "), schema(b="decimal(10)")) == first.replace(",", ", ")


def test_a_table_is_partitioned_by_columns_that_it_has() -> None:
    text = str(merge_schemas("", schema(a="long", b="double")))

    assert check_partitions(text, ("a",)) is None
    assert isinstance(check_partitions(text, ("b",)), BatchRefused)
    assert isinstance(check_partitions(text, ("c",)), BatchRefused)
