"""The seam between pipelines and tables: commit a batch once, read, compact.

A table is a folder of rows that writers append to in batches. `commit` is called again with the same writer and batch
id after any crash, and the rows are there once. Refusals are values; a pipeline turns them into its end.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct
from pyspark.sql import DataFrame

from driftq.spark.tables.compacting import Compaction
from driftq.spark.tables.ledger import Known, Refused


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


Outcome = Committed | Known | Refused


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

    def __init__(self, path: str, refused: Refused) -> None:
        super().__init__(f"{path}: {refused.message} [{refused.code}]")
        self.code = refused.code
