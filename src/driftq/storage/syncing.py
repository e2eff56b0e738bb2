"""The syncs that make a log store's appends durable, as a piece of work that any thread may run.

What is to be synced, and the index files to be written, were noted by the store's thread. Nothing but the disk is
touched here, so the store goes on appending meanwhile; what it appends then is the next work's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from driftq.storage.disk import Disk, DiskFull


class LogSync:
    """Files to sync, each with its index beside it, and folders whose names changed."""

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
        """Folders of new logs must be found again, too."""
        self._new_folders = True

    def run(self) -> None:
        for stage in self.stages():
            for call in stage:
                call()

    def stages(self) -> Iterator[list[Callable[[], None]]]:
        """The work as calls. Those of one stage may run at the same time, each in its own thread: syncs of many small
        files that wait together cost the filesystem little more than one. The next stage begins when all are done."""
        yield [partial(self._sync_file, *each) for each in self._files]
        yield [partial(self._sync_folder, path) for path in self._folders]
        if self._new_folders:
            yield [self._sync_root]

    def _sync_file(self, path: str, index_path: str, index: bytes) -> None:
        if not self._disk.exists(path):
            return  # its log was dropped meanwhile
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
        """Without a sync of its own: it is a cache with a checksum, and a torn one is rebuilt."""
        try:
            known = self._disk.exists(path)
            file = self._disk.open(path, write=True) if known else self._disk.create("index.create", path)
        except DiskFull:
            return
        try:
            file.write_at("index.write", 0, data)
        except DiskFull:
            return
        finally:
            file.close()
