"""The syncs that make a file log store's appends durable, as a piece of work that any thread may run.

`FileLogStore.begin_sync` notes on the event loop what has to be synced; the work itself touches nothing but the disk.

    1. each changed segment file: fdatasync, then write its index (a cache, not synced)
    2. each folder of a log in which a segment was created or removed
    3. the root folder, if a log is new
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from driftq.storage.disk import DiskFull

if TYPE_CHECKING:
    from driftq.storage.disk import Disk


class LogSync:
    """Files to sync, each with its index, and folders whose entries changed."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root
        self._files: list[tuple[str, str, bytes]] = []
        self._folders: list[str] = []
        self._new_folders = False

    def add_file(self, path: str, index_path: str, index: bytes) -> None:
        self._files.append((path, index_path, index))

    def add_folder(self, path: str) -> None:
        self._folders.append(path)

    def add_root(self) -> None:
        """New logs have folders whose names must survive, too."""
        self._new_folders = True

    def __len__(self) -> int:
        return len(self._files) + len(self._folders)

    def run(self) -> None:
        for stage in self.stages():
            for call in stage:
                call()

    def stages(self) -> Iterator[list[Callable[[], None]]]:
        """The work as calls, in stages. The calls of one stage may run at the same time, each in a thread of its own:
        many small files that sync together cost the filesystem little more than one. A stage starts when the one
        before it is done."""
        yield [partial(self._sync_file, *entry) for entry in self._files]
        yield [partial(self._sync_folder, path) for path in self._folders]
        if self._new_folders:
            yield [self._sync_root]

    def _sync_file(self, path: str, index_path: str, index: bytes) -> None:
        if not self._disk.exists(path):
            return  # its log was dropped in the meantime
        file = self._disk.open(path, write=True)
        try:
            file.sync("log.sync")
        finally:
            file.close()
        self._write_index(index_path, index)

    def _sync_folder(self, path: str) -> None:
        if self._disk.exists(path):
            self._disk.sync_folder("log.sync_folder", path)

    def _sync_root(self) -> None:
        self._disk.sync_folder("log.root.sync_folder", self._root)
        self._disk.sync_folder("log.parent.sync_folder", self._root.rpartition("/")[0] or "/")

    def _write_index(self, path: str, data: bytes) -> None:
        """Not synced: the index is a cache with a checksum, and a torn one is rebuilt."""
        try:
            is_there = self._disk.exists(path)
            file = self._disk.open(path, write=True) if is_there else self._disk.create("index.create", path)
        except DiskFull:
            return
        try:
            file.write_at("index.write", 0, data)
        except DiskFull:
            return
        finally:
            file.close()
