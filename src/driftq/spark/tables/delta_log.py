"""The log of a Delta table: read it, commit the next version, write checkpoints, find unused files.

Theory of operation. A table is its files and `_delta_log`; a data file that no version names is not part of it:

    orders/
      topic=orders/date=2030-01-31/9f2c…-0.parquet     data files, whole and synced before they are committed
      _delta_log/
        00000000000000000007.json                      one file for each version: see `actions`
        00000000000000000063.checkpoint.parquet        the fold of all versions up to one
        _last_checkpoint                               which one is the newest

1. `load` reads the newest checkpoint and the versions after it, one by one, until there is no next one. A log object
   remembers what it has read, so that the next `load` only looks for new versions. Nothing is listed.
2. `commit` creates the file of the next version. If it exists, another writer was first: nothing happened, and the
   caller looks at the new state and decides again.
3. Every 64th version delta-rs writes a checkpoint and removes versions that are older than a day.

A crash before 2 leaves data files that no version names; `unused_files` finds them after a day. A crash in 3 leaves
nothing: on a local disk delta-rs works on a private copy of the log, and the checkpoint is synced before it is linked.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
from deltalake import DeltaTable as DeltaReader
from msgspec import MsgspecError, json

from driftq.spark.tables.actions import (
    CHECKPOINT_EVERY,
    Action,
    TableDamaged,
    TableState,
    decoded,
    encoded,
    fold,
)
from driftq.spark.tables.storage import LOG, LocalFiles, TableFiles, sync

HINT = "_last_checkpoint"
CHECKPOINT_COLUMNS = ("protocol", "metaData", "txn", "add")
_MAPS = ("partitionValues", "tags", "configuration", "options")


class DeltaLog:
    """The log of one table."""

    def __init__(self, files: TableFiles, *, checkpoint_every: int = CHECKPOINT_EVERY) -> None:
        self.files = files
        self._checkpoint_every = checkpoint_every
        self._state = TableState()

    def load(self) -> TableState:
        """The newest version. Its ledger has version -1 if there is no table yet."""
        if self._state.metadata is None:
            self._state = self._from_checkpoint()
        while (data := self.files.read(_version_path(self._state.ledger.version + 1))) is not None:
            self._state = self._folded(self._state.ledger.version + 1, _actions_of(data, self.files.uri))
        if self._state.metadata is None and any(name.endswith(".json") for name in self._names()):
            raise TableDamaged(f"{self.files.uri}: the log has versions, but neither the first one nor a checkpoint")
        return self._state

    def commit(self, state: TableState, actions: Iterable[Action]) -> bool:
        """Make the version after `state`. False if another writer has made it; then nothing was changed."""
        version = state.ledger.version + 1
        if not self.files.create(_version_path(version), encoded(actions)):
            return False
        if version and version % self._checkpoint_every == 0:
            self.checkpoint()
        return True

    # ------------------------------------------------------------------------------------------------------ checkpoints

    def checkpoint(self) -> None:
        """Write the fold of all versions, and remove versions that are no longer kept."""
        if isinstance(self.files, LocalFiles):
            self._local_checkpoint(self.files)
        else:
            self._reader().create_checkpoint()
        self._reader().cleanup_metadata()

    def _local_checkpoint(self, files: LocalFiles) -> None:
        """delta-rs writes in a private copy; a file gets its name here once it is durable."""
        version = self.load().ledger.version
        first = self._hint()
        needed = [HINT, _checkpoint_name(first)] if first >= 0 else []
        needed += [_version_name(number) for number in range(first + 1, version + 1)]
        with files.private_log(needed) as copy:
            DeltaReader(copy).create_checkpoint()
            fresh = copy / LOG / _checkpoint_name(version)
            sync(fresh)
            files.link(fresh, f"{LOG}/{fresh.name}")
            files.replace(f"{LOG}/{HINT}", (copy / LOG / HINT).read_bytes())

    def _from_checkpoint(self) -> TableState:
        version = self._hint()
        if version < 0:
            return TableState()
        data = self.files.read(f"{LOG}/{_checkpoint_name(version)}")
        if data is None:
            raise TableDamaged(f"{self.files.uri}: {HINT} names version {version}, and there is no such checkpoint")
        return self._folded(version, _checkpoint_actions(data))

    def _hint(self) -> int:
        """The version of the newest checkpoint; -1 if there is none."""
        data = self.files.read(f"{LOG}/{HINT}")
        if data is None:
            return -1
        hint = json.decode(data)
        if "parts" in hint or "v2Checkpoint" in hint:
            raise TableDamaged(f"{self.files.uri}: its last checkpoint is of a kind that DriftQ does not read")
        return int(hint["version"])

    def _folded(self, version: int, actions: Iterable[Action]) -> TableState:
        try:
            return fold(self._state, version, actions)
        except TableDamaged as error:
            raise TableDamaged(f"{self.files.uri}: {error}") from None

    # ------------------------------------------------------------------------------------------------------------ files

    def unused_files(self) -> list[str]:
        """Files that no version of the last day names: replaced ones, and those of commits that never happened."""
        return self._reader().vacuum(dry_run=True, full=True)

    def paths_by_another_reader(self, version: int) -> set[str]:
        """The data files of a version as delta-rs reads the log."""
        reader = DeltaReader(self.files.uri, version=version, storage_options=self.files.options or None)
        actions: Any = reader.get_add_actions()
        return {unquote(path) for path in actions.column("path").to_pylist()}

    def _names(self) -> list[str]:
        return [path.rpartition("/")[2] for path in self.files.sizes(LOG)]

    def _reader(self) -> DeltaReader:
        return DeltaReader(self.files.uri, storage_options=self.files.options or None)


def _version_name(version: int) -> str:
    return f"{version:020d}.json"


def _version_path(version: int) -> str:
    return f"{LOG}/{_version_name(version)}"


def _checkpoint_name(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def _actions_of(data: bytes, uri: str) -> list[Action]:
    try:
        return decoded(data)
    except MsgspecError as error:
        raise TableDamaged(f"{uri}: a version in its log cannot be read: {error}") from error


def _checkpoint_actions(data: bytes) -> Iterator[Action]:
    """The rows of a checkpoint as actions. Parquet has maps as lists of pairs."""
    table = pq.read_table(io.BytesIO(data), columns=list(CHECKPOINT_COLUMNS))
    for name in CHECKPOINT_COLUMNS:
        for body in table.column(name).drop_null().to_pylist():
            yield {name: _with_maps(body)}


def _with_maps(body: dict[str, Any]) -> dict[str, Any]:
    return {
        key: dict(value) if key in _MAPS and value is not None
        else _with_maps(value) if isinstance(value, dict)
        else value
        for key, value in body.items()
        if value is not None
    }  # fmt: skip
