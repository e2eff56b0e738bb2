"""The syncs that make a log store's appends durable, as a piece of work that any thread may run.

What is to be synced, and the index files to be written, were noted by the store's thread. Nothing but the disk is
touched here, so the store goes on appending meanwhile; what it appends then is the next work's business.
"""

from __future__ import annotations

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
        for path, index_path, index in self._files:
            if not self._disk.exists(path):
                continue  # its log was dropped meanwhile
            file = self._disk.open(path, write=True)
            try:
                file.sync("log.sync")
            finally:
                file.close()
            self._write_index(index_path, index)
        for path in self._folders:
            if self._disk.exists(path):
                self._disk.sync_folder("log.sync_folder", path)
        if self._new_folders:
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
