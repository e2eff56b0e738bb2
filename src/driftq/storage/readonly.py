"""A disk that can be looked at and not changed: for reading the folder of somebody else, perhaps of a running broker.

Whatever asks it to truncate, remove or make something is told that it happened, because readers that tidy up behind
themselves must get on; whatever would add bytes is a mistake and raises. The disk behind it sees reads only.
"""

from __future__ import annotations

from typing import NoReturn

from driftq.storage.disk import Disk, File


class ReadOnlyFile:
    """An open file that keeps its bytes."""

    __slots__ = ("_file", "path")

    def __init__(self, file: File) -> None:
        self._file = file
        self.path = file.path

    def size(self) -> int:
        return self._file.size()

    def read_at(self, position: int, size: int) -> bytes:
        return self._file.read_at(position, size)

    def write_at(self, label: str, position: int, data: bytes) -> None:
        _refuse(label, self.path)

    def sync(self, label: str) -> None:
        pass

    def truncate(self, label: str, size: int) -> None:
        pass

    def is_in_place(self) -> bool:
        return self._file.is_in_place()

    def close(self) -> None:
        self._file.close()


class ReadOnlyDisk:
    """The reading half of a disk."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def create(self, label: str, path: str, allocate_bytes: int = 0) -> File:
        _refuse(label, path)

    def open(self, path: str, *, write: bool = False) -> File:
        return ReadOnlyFile(self._disk.open(path))

    def rename(self, label: str, source: str, target: str) -> None:
        _refuse(label, source)

    def remove(self, label: str, path: str) -> None:
        pass

    def make_folder(self, label: str, path: str) -> None:
        pass

    def remove_folder(self, label: str, path: str) -> None:
        pass

    def sync_folder(self, label: str, path: str) -> None:
        pass

    def list(self, path: str) -> list[str]:
        return self._disk.list(path)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def free_bytes(self, path: str) -> int:
        return self._disk.free_bytes(path)


def _refuse(label: str, path: str) -> NoReturn:
    raise AssertionError(f"{label}: {path}: somebody who only reads wanted to write")
