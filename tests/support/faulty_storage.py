"""Journals and disks that fail when a test asks for it: outcomes of an append that a healthy machine never shows."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import cast

from driftq.storage.disk import DiskFailed, DiskFull, File, OsDisk
from driftq.storage.journal import AppendUnknown, JournalUnavailable, MemoryJournal


class Outcome(Enum):
    """How the next append ends. It returns normally if nothing was asked for."""

    UNAVAILABLE = "there is no room"
    UNKNOWN_STORED = "the error came after the frames were stored"
    UNKNOWN_LOST = "the error came before the frames were stored"


class FaultyMemoryJournal(MemoryJournal):
    """A journal in memory whose next append ends as a test wishes."""

    def __init__(self) -> None:
        super().__init__()
        self.next_outcome: Outcome | None = None
        self._unknown: AppendUnknown | None = None

    def append(self, expected_lsn: int, frames: Sequence[bytes]) -> int:
        if self._unknown is not None:
            raise self._unknown
        outcome, self.next_outcome = self.next_outcome, None
        if outcome is Outcome.UNAVAILABLE:
            raise JournalUnavailable(outcome.value)
        if outcome is not Outcome.UNKNOWN_LOST:
            super().append(expected_lsn, frames)
        if outcome is not None:
            self._unknown = AppendUnknown(outcome.value)
            raise self._unknown
        return self.tail_lsn()

    def reopen(self) -> MemoryJournal:
        self._unknown = None
        return super().reopen()


class FaultyDisk(OsDisk):
    """The real disk, except that the next call with the label `fail_label` fails; `is_full` says how."""

    fail_label: str | None = None
    is_full = False

    def open(self, path: str, *, write: bool = False) -> File:
        return cast("File", _FaultyFile(super().open(path, write=write), self))

    def create(self, label: str, path: str, allocate_bytes: int = 0) -> File:
        self.enter(label, path)
        return cast("File", _FaultyFile(super().create(label, path, allocate_bytes), self))

    def enter(self, label: str, path: str) -> None:
        if label == self.fail_label:
            self.fail_label = None
            if self.is_full:
                raise DiskFull(f"{label}: {path}: No space left on device")
            raise DiskFailed(label, path, "Input/output error")


class _FaultyFile:
    """The real file; its disk may make a write or a sync fail."""

    def __init__(self, file: File, disk: FaultyDisk) -> None:
        self._file = file
        self._disk = disk

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    @property
    def path(self) -> str:
        return self._file.path

    @path.setter
    def path(self, path: str) -> None:
        """The journal sets it after a rename."""
        self._file.path = path

    def write_at(self, label: str, position: int, data: bytes) -> None:
        if label == self._disk.fail_label:
            self._file.write_at(label, position, data[: len(data) // 2])
        self._disk.enter(label, self._file.path)
        self._file.write_at(label, position, data)

    def sync(self, label: str) -> None:
        self._disk.enter(label, self._file.path)
        self._file.sync(label)
