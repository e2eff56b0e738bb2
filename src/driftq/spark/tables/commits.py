"""The commit log of a table: how a batch becomes visible, once, whatever process dies and when.

Theory of operation. A table is a folder that any Parquet reader can read; `_driftq` is the part that only we look into:

    orders/                                     the table
      topic=orders/date=2030-01-31/v00000007-0000-1a2b3c4d.parquet      data files: what a plain reader sees
      _driftq/
        staging/<attempt>/...                   data files that are not committed yet
        commits/00000000000000000007.json       one file for each version: see `ledger.Commit`
        snapshot.json                           the fold of all commits up to a version: see `ledger.Ledger`
        turn, door, readers                     lock files

A commit takes these steps. A crash leaves what is listed; the next process that opens the table finishes or removes it.

    1. stage    Spark writes the files under staging/<attempt>      crash: removed by the next writer
    2. sync     files and folders are made durable                  crash: the same
    3. commit   write .<version>.<attempt>, sync it, link it to     THE COMMIT: before the link nothing happened,
                commits/<version>.json, sync the folder             after it the batch is in the table
    4. move     files that a compaction replaces are removed,       crash: `load` sees that the staging folder of the
                new files are renamed to their final paths          last commit still exists, and moves what is left
    5. trim     every 64th version: write snapshot.json, delete     crash: commits up to the snapshot's version are
                the commits that it contains                        ignored, and deleted later

A version is committed once because `link` fails if the name exists; no lock is needed for that. The locks keep order
among processes that share the folder. They are `flock` locks, so they end with their process:

- *writer lock* (file `turn`): one writer stages and commits at a time. Held for minutes.
- *move lock* (file `door`): no data file appears or disappears. Held for the moment of steps 3 to 5, and by readers who
  list the folder.
- *reader lock* (file `readers`): shared by long reads, exclusive for a compaction, which removes files.

What a reader sees: `Ledger` readers (our own) see whole versions. A plain Parquet reader sees the files that are in
place: between 3 and the end of 4 it may miss rows of the last version, and never sees a row twice.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from msgspec import MsgspecError, json

from driftq.spark.tables.ledger import FORMAT, Commit, Ledger, fold

SNAPSHOT_EVERY = 64
MOVE_LOCK_WAIT_S = 60.0
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}

FaultHook = Callable[[str], None]  # called with the name of each step, so that a test can end the process there
T = TypeVar("T", Commit, Ledger)


class TableBusy(RuntimeError):
    """Another process held the table for longer than the caller wanted to wait."""


class TableDamaged(RuntimeError):
    """The folder does not contain what its commits list, or was written by a newer version."""


class NoTable(TableDamaged):
    """Nothing was committed here yet."""


def _no_fault(_: str) -> None: ...


class CommitLog:
    """The commits of the table in one folder."""

    def __init__(self, root: Path, *, fault_hook: FaultHook = _no_fault, snapshot_every: int = SNAPSHOT_EVERY) -> None:
        self.root = root
        self.home = root / "_driftq"
        self.commits = self.home / "commits"
        self.staging = self.home / "staging"
        self.snapshot = self.home / "snapshot.json"
        self.readers_lock = self.home / "readers"
        self._fault_hook = fault_hook
        self._snapshot_every = snapshot_every

    @property
    def exists(self) -> bool:
        return self.commits.is_dir()

    @contextmanager
    def writer_lock(self, wait_s: float) -> Iterator[Ledger]:
        """Be the only process that stages and commits. What dead processes left behind is finished or removed."""
        for folder in (self.commits, self.staging):
            folder.mkdir(parents=True, exist_ok=True)
        with file_lock(self.home / "turn", wait_s=wait_s):
            ledger = self.load()
            self._fault_hook("sweep")
            for leftover in self.staging.iterdir():
                _remove(leftover)
            yield ledger

    def load(self) -> Ledger:
        """The table as it is now. Finishes moving the files of the last commit if that was interrupted."""
        if not self.exists:
            return Ledger()
        with self.move_lock():
            return self.load_locked()

    @contextmanager
    def move_lock(self) -> Iterator[None]:
        """While it is held, no data file appears or disappears."""
        with file_lock(self.home / "door", wait_s=MOVE_LOCK_WAIT_S):
            yield

    def staged(self, attempt: str) -> Path:
        return self.staging / attempt

    def commit(self, ledger: Ledger, commit: Commit) -> Ledger:
        """Commit a version: durable once its commit file exists, visible when this returns. Needs the writer lock."""
        self._fault_hook("stage.sync")
        _sync_tree(self.staged(commit.attempt))
        _sync(self.staging)
        with self.move_lock():
            self._create_commit_file(commit)
            after = fold(ledger, commit)
            self._move_files(commit)
            self._trim(after)
        return after

    # ------------------------------------------------------------------------------------------------------------ load

    def load_locked(self) -> Ledger:
        """Like `load`, for a caller that holds the move lock."""
        ledger = self._read(self.snapshot, Ledger) if self.snapshot.exists() else Ledger()
        last: Commit | None = None
        for path in sorted(self.commits.glob("*.json")):
            if int(path.stem) <= ledger.version:
                continue  # Part of the snapshot; the trim after it was interrupted.
            last = self._read(path, Commit)
            if last.version != ledger.version + 1:
                raise TableDamaged(f"{self.root}: version {ledger.version + 1} is missing before {path.name}")
            ledger = fold(ledger, last)
        if last is not None and self.staged(last.attempt).exists():
            self._move_files(last)
        return ledger

    def _read(self, path: Path, kind: type[T]) -> T:
        try:
            decoded = json.decode(path.read_bytes(), type=kind)
        except MsgspecError as error:
            raise TableDamaged(f"{path}: {error}") from error
        if decoded.format != FORMAT:
            raise TableDamaged(f"{path}: written in format {decoded.format}; this version reads format {FORMAT}")
        return decoded

    # ---------------------------------------------------------------------------------------------------------- commit

    def _create_commit_file(self, commit: Commit) -> None:
        """Step 3: a complete, synced file gets its name, unless another process has taken the name."""
        newest = max((int(path.stem) for path in self.commits.glob("*.json")), default=-1)
        if newest != commit.version - 1:
            raise TableBusy(
                f"{self.root}: another process committed version {newest} in the meantime; nothing was changed"
            )
        name = self.commits / f"{commit.version:020d}.json"
        fresh = self.commits / f".{commit.version:020d}.{commit.attempt}"
        self._fault_hook("commit.write")
        _write(fresh, json.encode(commit))
        self._fault_hook("commit.link")
        try:
            os.link(fresh, name)
        except OSError as error:
            if error.errno not in _NO_LINKS or name.exists():
                raise
            fresh.rename(name)  # No hard links on this file system: only the move lock protects the name.
        self._fault_hook("commit.sync")
        _sync(self.commits)
        fresh.unlink(missing_ok=True)

    def _move_files(self, commit: Commit) -> None:
        """Step 4: move the files of a commit to their final paths. Idempotent. Replaced files are removed first: a
        plain reader may miss rows for a moment, and never sees a row twice."""
        touched = {self.root}
        for path in commit.removed:
            self._fault_hook("place.remove")
            (self.root / path).unlink(missing_ok=True)
            touched.add((self.root / path).parent)
        for file in commit.added:
            source, target = self.staged(commit.attempt) / file.path, self.root / file.path
            self._fault_hook("place.move")
            if source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                source.rename(target)
            elif not target.exists():
                raise TableDamaged(
                    f"{self.root}: {file.path} of version {commit.version} is neither staged nor in its final place"
                )
            touched.update(parent for parent in target.parents if parent.is_relative_to(self.root))
        self._fault_hook("place.sync")
        for folder in touched:
            if folder.exists():
                _sync(folder)
        self._fault_hook("place.forget")
        _remove(self.staged(commit.attempt))

    def _trim(self, ledger: Ledger) -> None:
        """Step 5: now and then write the fold as a snapshot and delete the commits before it. The last one stays,
        because its name keeps the version from being committed again."""
        if (ledger.version + 1) % self._snapshot_every:
            return
        fresh = self.home / ".snapshot"
        self._fault_hook("snapshot.write")
        _write(fresh, json.encode(ledger))
        self._fault_hook("snapshot.rename")
        fresh.replace(self.snapshot)
        _sync(self.home)
        for path in sorted(self.commits.iterdir()):
            if path.name.startswith(".") or int(path.stem) < ledger.version:
                self._fault_hook("snapshot.trim")
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
    """Remove a file or folder. A task of a dead driver may still write there; the next writer cleans up."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# --- locks ------------------------------------------------------------------------------------------------------------

POLL_S = 0.02


@contextmanager
def file_lock(path: Path, *, shared: bool = False, wait_s: float = 0.0) -> Iterator[None]:
    """Hold a lock for the time of a block. Raises `TableBusy` after `wait_s`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _acquire(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, path, wait_s)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, mode: int, path: Path, wait_s: float) -> None:
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise TableBusy(f"{path.parent.parent}: another process holds the lock {path.name}") from None
            time.sleep(POLL_S)
        else:
            return
