"""Who may touch a table's folder: one writer's turn at a time, a door for short changes, and readers who stay.

Locks are `flock` on small files, so they end with the process that holds them, however it ends. They keep order among
processes that share the folder; that a batch is committed once does not rest on them but on the commit file, which
only one can create.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from msgspec import MsgspecError, json
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from driftq.spark.tables.ledger import CHECKSUM_MODULUS, FORMAT, Commit, FileSpan, Ledger, fold

POLL_S = 0.02


class TableBusy(RuntimeError):
    """Somebody else had the table for longer than the caller was ready to wait."""


@contextmanager
def held(path: Path, *, shared: bool = False, wait_s: float = 0.0) -> Iterator[None]:
    """Hold a lock for the time of a block. Raises `TableBusy` after `wait_s`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _take(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, path, wait_s)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, how: int, path: Path, wait_s: float) -> None:
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise TableBusy(f"{path.parent.parent}: somebody else is at it ({path.name})") from None
            time.sleep(POLL_S)
        else:
            return


# --- A table's commits on disk: one file for each version, created once and durable before any data file is shown ---


SNAPSHOT_EVERY = 64
DOOR_WAIT_S = 60.0
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}

Strike = Callable[[str], None]
T = TypeVar("T", Commit, Ledger)


class TableDamaged(RuntimeError):
    """The folder does not hold what its commits say, or was written by a newer version."""


class NoTable(TableDamaged):
    """Nothing was ever committed here."""


def _nothing(_: str) -> None: ...


class CommitLog:
    """The commits of the table in one folder."""

    def __init__(self, root: Path, *, strike: Strike = _nothing, snapshot_every: int = SNAPSHOT_EVERY) -> None:
        self.root = root
        self.home = root / "_driftq"
        self.commits = self.home / "commits"
        self.staging = self.home / "staging"
        self.snapshot = self.home / "snapshot.json"
        self._strike = strike
        self._snapshot_every = snapshot_every

    @property
    def exists(self) -> bool:
        return self.commits.is_dir()

    @contextmanager
    def turn(self, wait_s: float) -> Iterator[Ledger]:
        """A writer's turn: nobody else stages or commits meanwhile. What others left behind is finished or removed."""
        for folder in (self.commits, self.staging):
            folder.mkdir(parents=True, exist_ok=True)
        with held(self.home / "turn", wait_s=wait_s):
            ledger = self.load()
            self._strike("sweep")
            for left in self.staging.iterdir():
                _remove(left)
            yield ledger

    def load(self) -> Ledger:
        """The table as it is, with the last commit's files in their places."""
        if not self.exists:
            return Ledger()
        with self.door():
            return self.peek()

    @contextmanager
    def door(self) -> Iterator[None]:
        """While it is held no file comes or goes."""
        with held(self.home / "door", wait_s=DOOR_WAIT_S):
            yield

    def staged(self, attempt: str) -> Path:
        return self.staging / attempt

    def commit(self, ledger: Ledger, commit: Commit) -> Ledger:
        """Make it so: durable when the commit's file exists, seen by all when this returns. Within a turn only."""
        self._strike("stage.sync")
        _sync_tree(self.staged(commit.attempt))
        _sync(self.staging)
        with self.door():
            self._create(commit)
            after = fold(ledger, commit)
            self._place(commit)
            self._trim(after)
        return after

    # ------------------------------------------------------------------------------------------------------------ load

    def peek(self) -> Ledger:
        """Like `load`, for whoever holds the door."""
        ledger = self._read(self.snapshot, Ledger) if self.snapshot.exists() else Ledger()
        last: Commit | None = None
        for path in sorted(self.commits.glob("*.json")):
            if int(path.stem) <= ledger.version:
                continue  # Folded into the snapshot; the trimming after it was cut short.
            last = self._read(path, Commit)
            if last.version != ledger.version + 1:
                raise TableDamaged(f"{self.root}: version {ledger.version + 1} is missing before {path.name}")
            ledger = fold(ledger, last)
        if last is not None and self.staged(last.attempt).exists():
            self._place(last)
        return ledger

    def _read(self, path: Path, kind: type[T]) -> T:
        try:
            found = json.decode(path.read_bytes(), type=kind)
        except MsgspecError as error:
            raise TableDamaged(f"{path}: {error}") from error
        if found.format != FORMAT:
            raise TableDamaged(f"{path}: written in format {found.format}, this version knows {FORMAT}")
        return found

    # ---------------------------------------------------------------------------------------------------------- commit

    def _create(self, commit: Commit) -> None:
        """The moment of the commit: a whole, synced file gets its name, which nobody may have taken."""
        newest = max((int(path.stem) for path in self.commits.glob("*.json")), default=-1)
        if newest != commit.version - 1:
            raise TableBusy(f"{self.root}: somebody committed version {newest} during our turn; nothing was changed")
        name = self.commits / f"{commit.version:020d}.json"
        fresh = self.commits / f".{commit.version:020d}.{commit.attempt}"
        self._strike("commit.write")
        _write(fresh, json.encode(commit))
        self._strike("commit.link")
        try:
            os.link(fresh, name)
        except OSError as error:
            if error.errno not in _NO_LINKS or name.exists():
                raise
            fresh.rename(name)  # No hard links here; the door is the only guard then.
        self._strike("commit.sync")
        _sync(self.commits)
        fresh.unlink(missing_ok=True)

    def _place(self, commit: Commit) -> None:
        """Move a commit's files to where everybody looks. Repeatable. Removed ones go first: a stranger may miss rows
        for a moment, and never sees a row twice."""
        touched = {self.root}
        for path in commit.removed:
            self._strike("place.remove")
            (self.root / path).unlink(missing_ok=True)
            touched.add((self.root / path).parent)
        for file in commit.added:
            source, target = self.staged(commit.attempt) / file.path, self.root / file.path
            self._strike("place.move")
            if source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                source.rename(target)
            elif not target.exists():
                raise TableDamaged(f"{self.root}: {file.path} of version {commit.version} is neither staged nor placed")
            touched.update(parent for parent in target.parents if parent.is_relative_to(self.root))
        self._strike("place.sync")
        for folder in touched:
            if folder.exists():
                _sync(folder)
        self._strike("place.forget")
        _remove(self.staged(commit.attempt))

    def _trim(self, ledger: Ledger) -> None:
        """Now and then the fold is written down and the commits before it are let go. The last one stays: it is what
        keeps its number taken."""
        if (ledger.version + 1) % self._snapshot_every:
            return
        fresh = self.home / ".snapshot"
        self._strike("snapshot.write")
        _write(fresh, json.encode(ledger))
        self._strike("snapshot.rename")
        fresh.replace(self.snapshot)
        _sync(self.home)
        for path in sorted(self.commits.iterdir()):
            if path.name.startswith(".") or int(path.stem) < ledger.version:
                self._strike("snapshot.trim")
                path.unlink()


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_tree(root: Path) -> None:
    for folder, _, names in os.walk(root):
        for name in names:
            _sync(Path(folder, name))
        _sync(Path(folder))


def _remove(path: Path) -> None:
    """Whatever it is. A task of a driver that died may still write there: what it leaves, the next turn removes."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# --- One number for many rows, whatever their order: the sum of a 64-bit hash of offset, key and value ---


LOG_COLUMNS = ("topic", "partition", "offset")


def row_hash(columns: Sequence[str]) -> Column:
    """The hash of one row, of those of offset, key and value that are there."""
    parts: list[Column] = [F.col("offset")]
    for name in ("key", "value"):
        if name in columns:
            parts += [F.col(name).isNull(), F.col(name)]
    return F.xxhash64(*parts)


def totals(rows: DataFrame, by: Sequence[Column]) -> DataFrame:
    """For each group: `first`, `last`, `rows` and the two halves of the checksum. Halves are summed apart because a
    sum of 64-bit numbers would overflow, and decimals are slow."""
    hashed = rows.withColumn("_hash", row_hash(rows.columns))
    return hashed.groupBy(*by).agg(
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
        F.count(F.lit(1)).alias("rows"),
        F.sum(F.shiftright("_hash", 32)).alias("high"),
        F.sum(F.col("_hash").bitwiseAND(F.lit(0xFFFFFFFF))).alias("low"),
    )


def checksum_of(row: Any) -> int:
    """The checksum in a row that `totals` made."""
    return ((int(row["high"]) << 32) + int(row["low"])) % CHECKSUM_MODULUS


def span_of(row: Any) -> FileSpan:
    return FileSpan(row["topic"], row["partition"], row["first"], row["last"], row["rows"], checksum_of(row))
