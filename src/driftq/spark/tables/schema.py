"""How the schema of a table may change: columns are added, at the top or inside structs, and nothing else changes.

Schemas are Spark's JSON as text. Pure: knows no Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import json

from driftq.spark.tables.ledger import BatchRefused

# What a Delta table can have without features that most readers lack.
SIMPLE_TYPES = frozenset(
    ("string", "long", "integer", "short", "byte", "float", "double", "boolean", "binary", "date", "timestamp")
)
PARTITION_TYPES = frozenset(("string", "long", "integer", "short", "byte", "boolean", "date"))
FORBIDDEN_CHARACTERS = " ,;{}()\n\t="


def merge_schemas(old: str, new: str) -> str | BatchRefused:
    """The schema with the columns of both: the old ones in their order, then the new ones. The same text if nothing is
    new."""
    added = _nullable(json.decode(new))
    try:
        _check_struct(added, "")
        if not old:
            return json.encode(added).decode()
        before = json.decode(old)
        merged = _merge_structs(before, added, "")
    except _Conflict as conflict:
        return BatchRefused("SCHEMA_CHANGED", str(conflict))
    return old if merged == before else json.encode(merged).decode()


def check_partitions(schema: str, by: Sequence[str]) -> BatchRefused | None:
    """Check the columns that a new table is partitioned by."""
    kinds = {field["name"]: field["type"] for field in json.decode(schema)["fields"]}
    for name in by:
        if kinds.get(name) not in PARTITION_TYPES:
            problem = f"is {_type_name(kinds[name])}" if name in kinds else "is not a column of the batch"
            return BatchRefused("SCHEMA_CHANGED", f"the table cannot be partitioned by {name}: it {problem}.")
    return None


class _Conflict(Exception):
    """Carries the message up through the recursion; never leaves this module."""


def _check_struct(struct: dict[str, Any], path: str) -> None:
    for field in struct["fields"]:
        name = path + field["name"]
        if any(char in FORBIDDEN_CHARACTERS for char in field["name"]):
            raise _Conflict(f"column {name!r}: a name cannot have spaces or any of ,;{{}}()= in it. Give it an alias.")
        _check_type(field["type"], name)


def _check_type(kind: Any, path: str) -> None:
    if not isinstance(kind, dict):
        if kind not in SIMPLE_TYPES and not kind.startswith("decimal("):
            raise _Conflict(f"column {path} is {kind}, which a table cannot have. Cast it to another type.")
    elif kind["type"] == "struct":
        _check_struct(kind, path + ".")
    elif kind["type"] in ("array", "map"):
        for part, mark in (("elementType", "[]"), ("keyType", "{}"), ("valueType", "{}")):
            if part in kind:
                _check_type(kind[part], path + mark)
    else:
        raise _Conflict(f"column {path} is {_type_name(kind)}, which a table cannot have. Cast it to another type.")


def _nullable(kind: Any) -> Any:
    """The same type with every part nullable, and without metadata."""
    if not isinstance(kind, dict):
        return kind
    nullable = {name: _nullable(part) if name in ("type", "elementType", "valueType", "keyType") else part
             for name, part in kind.items()}  # fmt: skip
    for key in ("nullable", "containsNull", "valueContainsNull"):
        if key in nullable:
            nullable[key] = True
    if "fields" in nullable:
        nullable["fields"] = [_nullable(field) for field in nullable["fields"]]
    if "metadata" in nullable:
        nullable["metadata"] = {}  # notes of the query, such as its watermark
    return nullable


def _merge_structs(old: dict[str, Any], new: dict[str, Any], path: str) -> dict[str, Any]:
    new_fields = {field["name"]: field for field in new["fields"]}
    fields = [_merge_fields(field, new_fields.pop(field["name"], None), path) for field in old["fields"]]
    # Spark ignores the case of column names, so two that differ in nothing else cannot be in one table.
    names = {field["name"].lower(): field["name"] for field in fields}
    for name in new_fields:
        if name.lower() in names:
            raise _Conflict(f"column {path}{name} differs from {path}{names[name.lower()]} in case only.")
    return {**old, "fields": [*fields, *new_fields.values()]}


def _merge_fields(old: dict[str, Any], new: dict[str, Any] | None, path: str) -> dict[str, Any]:
    if new is None:
        return old
    return {**old, "type": _merge_types(old["type"], new["type"], path + old["name"])}


def _merge_types(old: Any, new: Any, path: str) -> Any:
    if isinstance(old, dict) and isinstance(new, dict) and old["type"] == new["type"]:
        if old["type"] == "struct":
            return _merge_structs(old, new, path + ".")
        if old["type"] == "array":
            return {**old, "elementType": _merge_types(old["elementType"], new["elementType"], path + "[]")}
        if old["type"] == "map" and old["keyType"] == new["keyType"]:
            return {**old, "valueType": _merge_types(old["valueType"], new["valueType"], path + "{}")}
    if old != new:
        raise _Conflict(
            f"column {path} is {_type_name(old)} in the table and {_type_name(new)} in the batch. Columns may be "
            "added; for another type use another name, or another table."
        )
    return old


def _type_name(kind: Any) -> str:
    return str(kind["type"]) if isinstance(kind, dict) else str(kind)
