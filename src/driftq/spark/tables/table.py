"""What a table is to a pipeline: commit a batch once, read, compact. `DeltaTable` implements it.

Writers append rows in batches. After a crash `commit` is called again with the same writer and batch id, and the rows
are in the table once. Rows with topic, partition and offset are recognised by these, also in a batch that is cut
otherwise. Refusals are values; a pipeline turns them into an error that ends it.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct
from pyspark.sql import DataFrame

from driftq.spark.tables.ledger import BatchKnown, BatchRefused, Compaction


class Committed(Struct, frozen=True):
    """The batch is in the table, durably. A batch without rows makes no new version. `rows_held` were in the table
    before, and were left out."""

    version: int
    rows: int
    files: int
    size_bytes: int
    rows_held: int = 0


class Compacted(Struct, frozen=True):
    """`files` small files became `into` files; 0 if there was nothing to do."""

    files: int = 0
    into: int = 0
    size_bytes: int = 0


class TableBusy(RuntimeError):
    """Other writers were faster, again and again."""


class NoTable(RuntimeError):
    """Nothing was committed here yet."""


Outcome = Committed | BatchKnown | BatchRefused


class Table(Protocol):
    """Rows that are appended exactly once."""

    path: str

    @property
    def exists(self) -> bool:
        """Whether anything was committed."""

    def commit(self, writer: str, batch_id: int, rows: DataFrame, content: str = "") -> Outcome:
        """Append the rows that are not in the table. Without the columns of a log, a batch is recognised by the writer
        and its id, which only grows; `content` identifies what it was made from, if that is known."""

    def committed(self, writer: str) -> int | None:
        """The last batch of a writer; None if it never wrote."""

    def positions(self) -> dict[str, dict[int, int]]:
        """For each topic and partition the offset after the last one in the table; empty if offsets are not tracked."""

    def read(self) -> DataFrame:
        """All committed rows, in no particular order."""

    def compact(self, rule: Compaction) -> Compacted:
        """Rewrite small files as larger ones; the rows stay the same."""

    def vacuum(self) -> int:
        """Delete files that are no longer needed, or never were. Returns how many."""


class TableRefused(RuntimeError):
    """A refusal as an exception, where only an exception ends the query."""

    def __init__(self, path: str, refused: BatchRefused) -> None:
        super().__init__(f"{path}: {refused.message} [{refused.code}]")
        self.code = refused.code
