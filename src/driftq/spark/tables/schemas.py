"""How a table's schema may grow: columns are added, at the top or inside structs, and nothing else changes.

Works on the JSON text that Spark gives for a schema, so that a ledger can be judged without Spark. A column that a
batch lacks is null in its rows; every column of a table may be null for that reason.
"""

from __future__ import annotations

from typing import Any

from msgspec import json

from driftq.spark.tables.ledger import Refused


def grown(old: str, new: str) -> str | Refused:
    """The schema that holds both: the old columns in their order, then the new ones."""
    if not old:
        return json.encode(_loose(json.decode(new))).decode()
    try:
        both = _struct(json.decode(old), _loose(json.decode(new)), "")
    except _Differs as differs:
        return Refused("SCHEMA_CHANGED", str(differs))
    return json.encode(both).decode()


class _Differs(Exception):
    """Carries the sentence up through the recursion; never leaves this module."""


def _loose(kind: Any) -> Any:
    """The same type with everything allowed to be null."""
    if not isinstance(kind, dict):
        return kind
    loose = {name: _loose(part) if name in ("type", "elementType", "valueType", "keyType") else part
             for name, part in kind.items()}  # fmt: skip
    for word in ("nullable", "containsNull", "valueContainsNull"):
        if word in loose:
            loose[word] = True
    if "fields" in loose:
        loose["fields"] = [_loose(each) for each in loose["fields"]]
    return loose


def _struct(old: dict[str, Any], new: dict[str, Any], place: str) -> dict[str, Any]:
    arriving = {each["name"]: each for each in new["fields"]}
    fields = [_field(each, arriving.pop(each["name"], None), place) for each in old["fields"]]
    # Spark tells columns apart without regard to case, so two that differ in nothing else cannot both be there.
    taken = {each["name"].lower(): each["name"] for each in fields}
    for name in arriving:
        if name.lower() in taken:
            raise _Differs(f"column {place}{name} differs from {place}{taken[name.lower()]} in case only.")
    return {**old, "fields": [*fields, *arriving.values()]}


def _field(old: dict[str, Any], new: dict[str, Any] | None, place: str) -> dict[str, Any]:
    if new is None:
        return old
    return {**old, "type": _type(old["type"], new["type"], place + old["name"])}


def _type(old: Any, new: Any, place: str) -> Any:
    if isinstance(old, dict) and isinstance(new, dict) and old["type"] == new["type"]:
        if old["type"] == "struct":
            return _struct(old, new, place + ".")
        if old["type"] == "array":
            return {**old, "elementType": _type(old["elementType"], new["elementType"], place + "[]")}
        if old["type"] == "map" and old["keyType"] == new["keyType"]:
            return {**old, "valueType": _type(old["valueType"], new["valueType"], place + "{}")}
    if old != new:
        raise _Differs(f"column {place} is {_named(old)} in the table and {_named(new)} in the batch. Columns may be "
                       "added; for another type use another name, or another table.")  # fmt: skip
    return old


def _named(kind: Any) -> str:
    return str(kind["type"]) if isinstance(kind, dict) else str(kind)
