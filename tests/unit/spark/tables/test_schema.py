"""Schemas of tables: columns may be added, and nothing else may change."""

from __future__ import annotations

import json
from typing import Any

import pytest

from driftq.spark.tables.ledger import BatchRefused
from driftq.spark.tables.schema import merge_schemas


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
