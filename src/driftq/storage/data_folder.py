"""A data folder: what is in it, and which store it is.

Owns the FORMAT file: the format version and the store's uuid, readable by a person. It is written last when a folder is
made, so its presence means that everything else was there: a folder with a FORMAT file and without a journal has lost
it, and a folder without one was never finished.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from driftq.storage.corruption import Damaged, FilesMoved, FormatTooNew
from driftq.storage.disk import Disk, leads_to
from driftq.storage.journal_files import checksum

FORMAT_VERSION = 2  # 2: small logs share segments
TIERED_VERSION = 3  # 3: some segments are only in the archive; written when the first one leaves the disk
_FORMAT = "FORMAT"
_OWN_NAMES = frozenset(
    {"LOCK", "journal", "logs", "snapshots", "FORMAT", "access", "lost+found", "series"}
)  # up to the first dot
_TITLE = "driftq data folder"


class BadFormatFile(Damaged):
    """The FORMAT file is damaged, so the store cannot be identified."""


class ForeignFolder(Exception):
    """The folder holds files that are not DriftQ's."""

    def __init__(self, path: str, names: Sequence[str]) -> None:
        shown = ", ".join(names[:3]) + (" and more" if len(names) > 3 else "")
        super().__init__(
            f"{path} is no data folder of driftq and is not empty ({shown}). Name an empty or a new folder with --data."
        )


def check_free(path: str, names: Iterable[str]) -> None:
    """Raises `ForeignFolder` unless this is a data folder, or one can be made here. Leftovers of an interrupted start
    and what filesystems put into every volume do not count."""
    present = set(names)
    foreign = sorted(name for name in present if name.partition(".")[0] not in _OWN_NAMES)
    if foreign and _FORMAT not in present:
        raise ForeignFolder(path, foreign)


@dataclass(frozen=True, slots=True)
class DataFolder:
    """Where each part lives. `store` is the 16 bytes of the store's uuid, `version` that of the FORMAT file."""

    path: str
    store: bytes
    version: int = FORMAT_VERSION

    @property
    def journal(self) -> str:
        return f"{self.path}/journal"

    @property
    def logs(self) -> str:
        return f"{self.path}/logs"

    @property
    def snapshots(self) -> str:
        return f"{self.path}/snapshots"


def find_folder(disk: Disk, path: str) -> DataFolder | None:
    """The data folder at `path`; None if there is none yet. Refuses a later format."""
    file_path = f"{path}/{_FORMAT}"
    if not disk.exists(file_path):
        return None
    file = disk.open(file_path)
    try:
        text = file.read_at(0, 4096)
    finally:
        file.close()
    lines = text.split(b"\n")
    if len(lines) != 5 or lines[4] or text != _seal(b"\n".join(lines[:3]) + b"\n"):
        raise BadFormatFile(f"{file_path} is damaged. Restore it from a backup; nothing was changed.")
    title, version, store = (line.decode() for line in lines[:3])
    number = int(version.removeprefix("format "))
    if number > TIERED_VERSION:
        raise FormatTooNew(file_path, number, TIERED_VERSION)
    if title != _TITLE:
        raise BadFormatFile(f"{file_path} does not describe a data folder of driftq")
    return DataFolder(path, bytes.fromhex(store.removeprefix("store ")), number)


def new_folder(disk: Disk, path: str, store: bytes) -> DataFolder:
    """Begin a data folder. It counts only after `finish_folder`, to be called when its journal is durable."""
    disk.make_folder("folder.make", path)
    return DataFolder(path, store)


def finish_folder(disk: Disk, folder: DataFolder, version: int = FORMAT_VERSION) -> None:
    """Write the FORMAT file, durably."""
    target = f"{folder.path}/{_FORMAT}"
    if disk.exists(f"{target}.tmp"):
        disk.remove("folder.leftover.remove", f"{target}.tmp")
    file = disk.create("folder.create", f"{target}.tmp")
    text = f"{_TITLE}\nformat {version}\nstore {folder.store.hex()}\n"
    file.write_at("folder.write", 0, _seal(text.encode()))
    file.sync("folder.sync")
    file.close()
    disk.rename("folder.rename", f"{target}.tmp", target)
    sync_names(disk, folder)


def sync_names(disk: Disk, folder: DataFolder) -> None:
    """Make the names in the folder durable. Every start does it: the process that wrote the FORMAT file may have ended
    because this sync failed, and without that file the journal of the next run would be refused."""
    disk.sync_folder("folder.sync_folder", folder.path)
    disk.sync_folder("folder.parent.sync_folder", folder.path.rpartition("/")[0] or "/")


def _seal(text: bytes) -> bytes:
    return text + b"crc32c " + checksum(text).hex().encode() + b"\n"


# --- the lock: one process per data folder; the kernel releases it however the process ends ---

PRIVATE = 0o700


class FolderInUse(Exception):
    """Another process works in this folder."""

    def __init__(self, folder: str, pid: int | None) -> None:
        who = f"process {pid}" if pid else "another process"
        super().__init__(f"{folder} is in use by {who}; two brokers cannot share a data folder")
        self.folder = folder
        self.pid = pid


class FolderUnusable(Exception):
    """The data folder cannot be made or used."""

    def __init__(self, folder: str, error: OSError) -> None:
        super().__init__(f"the data folder {folder} cannot be used: {_hint(folder, error)}")
        self.errno = error.errno


def _hint(folder: str, error: OSError) -> str:
    path = str(error.filename or folder)
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return f"{path} is no folder, or lies below a file. Name another one with --data."
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"no permission for {path}. Give it to the user that runs the broker (user id {os.getuid()}), or name "
            "another folder with --data."
        )
    if error.errno == errno.EROFS:
        return f"{path} is on a filesystem that is mounted read-only. Name another folder with --data."
    if error.errno == errno.ENOENT:
        return f"{path} cannot be made there. Name another folder with --data."
    return f"{path}: {error.strerror}"


def _make_private(folder: str) -> None:
    """Other users must not read the records, even in a folder that existed before."""
    if stat.S_IMODE(os.stat(folder).st_mode) != PRIVATE:
        with contextlib.suppress(PermissionError):  # the folder is another user's, who gave us the right to write
            os.chmod(folder, PRIVATE)


def holder_pid(folder: str) -> int | None:
    """The process that holds the lock of this folder, read from the kernel's list of locks. None if there is none, or
    if the system has no such list."""
    try:
        inode = os.stat(f"{folder}/LOCK").st_ino
        with open("/proc/locks", encoding="ascii") as locks:
            rows = [line.split() for line in locks]
    except OSError:
        return None
    for row in rows:
        if len(row) > 5 and row[1] == "FLOCK" and row[5].rpartition(":")[2] == str(inode):
            return int(row[4])
    return None


class FolderLock:
    """Held from construction until `release` or the end of the process."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        try:
            os.makedirs(folder, mode=PRIVATE, exist_ok=True)
            check_free(folder, os.listdir(folder))
            _make_private(folder)
            self._fd = os.open(f"{folder}/LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise FolderUnusable(folder, error) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 32, 0).split(b"\n")[0]
            self._close()
            if not isinstance(error, BlockingIOError):
                raise
            raise FolderInUse(folder, int(holder) if holder.isdigit() else None) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, b"%d\n" % os.getpid(), 0)

    def check(self) -> None:
        """Raises `FilesMoved` if the lock file was removed or replaced, so that the lock protects nothing."""
        if not leads_to(f"{self.folder}/LOCK", self._fd):
            raise FilesMoved(f"{self.folder}/LOCK")

    def release(self) -> None:
        """The file stays: removing it would let two processes lock two files of the same name."""
        if self._fd >= 0:
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)
