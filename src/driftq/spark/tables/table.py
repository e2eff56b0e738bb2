"""The seam between pipelines and tables: commit a batch once, read, compact.

A table is a folder of rows that writers append to in batches. `commit` is called again with the same writer and batch
id after any crash, and the rows are there once. Refusals are values; a pipeline turns them into its end.
"""

from __future__ import annotations

from typing import Any, Protocol

from msgspec import Struct, json
from pyspark.sql import DataFrame

from driftq.spark.tables.ledger import BatchKnown, BatchRefused, Compaction


class Committed(Struct, frozen=True):
    """The batch is in the table, durably. Without rows there is no new version."""

    version: int
    rows: int
    files: int
    size_bytes: int


class Compacted(Struct, frozen=True):
    """`files` small ones became `into`; none when there was nothing to do or somebody was reading."""

    files: int = 0
    into: int = 0
    size_bytes: int = 0


Outcome = Committed | BatchKnown | BatchRefused


class Table(Protocol):
    """Rows that are appended exactly once."""

    path: str

    def commit(self, writer: str, batch_id: int, rows: DataFrame) -> Outcome:
        """Append the rows unless this writer's batch is there. Batch ids of a writer only grow."""

    def committed(self, writer: str) -> int | None:
        """The last batch of a writer, None when it never wrote."""

    def positions(self) -> dict[str, dict[int, int]]:
        """For each topic and partition the offset after the last one in the table; empty when not tracked."""

    def read(self) -> DataFrame:
        """All committed rows, in no order."""

    def compact(self, rule: Compaction) -> Compacted:
        """Rewrite small files as larger ones; the rows stay the same."""


class TableRefused(RuntimeError):
    """A refusal, where only an exception can end what is going on."""

    def __init__(self, path: str, refused: BatchRefused) -> None:
        super().__init__(f"{path}: {refused.message} [{refused.code}]")
        self.code = refused.code


# --- How a table's schema may grow: columns are added, at the top or inside structs, and nothing else changes ---


def grown(old: str, new: str) -> str | BatchRefused:
    """The schema that holds both: the old columns in their order, then the new ones."""
    if not old:
        return json.encode(_loose(json.decode(new))).decode()
    try:
        both = _struct(json.decode(old), _loose(json.decode(new)), "")
    except _Differs as differs:
        return BatchRefused("SCHEMA_CHANGED", str(differs))
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
