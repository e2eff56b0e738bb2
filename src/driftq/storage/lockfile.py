"""One process per data folder: a lock that the system lets go when the process ends, however it ends.

The lock file also names its holder, so that the refused process can say whom to ask. Its content means nothing else:
only the lock counts, and a stopped (not ended) holder still holds it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat

from driftq.storage.damage import FilesMoved
from driftq.storage.disk import leads_to
from driftq.storage.folder import check_free

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
    place = str(error.filename or folder)
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return f"{place} is no folder, or lies below a file. Name another one with --data."
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"no permission for {place}. Give it to the user that runs the broker (user id {os.getuid()}), or name "
            "another folder with --data."
        )
    if error.errno == errno.EROFS:
        return f"{place} is on a filesystem that is mounted read-only. Name another folder with --data."
    if error.errno == errno.ENOENT:
        return f"{place} cannot be made there. Name another folder with --data."
    return f"{place}: {error.strerror}"


def _make_private(folder: str) -> None:
    """The records are nobody else's business, also in a folder that was there before."""
    if stat.S_IMODE(os.stat(folder).st_mode) != PRIVATE:
        with contextlib.suppress(PermissionError):  # the folder is another user's, who gave us the right to write
            os.chmod(folder, PRIVATE)


def holder_pid(folder: str) -> int | None:
    """Who works in this folder, without touching the lock: the system's own list is read. None if nobody does, or if
    the system keeps no such list."""
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
        """Raises `FilesMoved` if the lock protects nothing any more."""
        if not leads_to(f"{self.folder}/LOCK", self._fd):
            raise FilesMoved(f"{self.folder}/LOCK")

    def release(self) -> None:
        """The file stays: removing it would let two processes lock two files of the same name."""
        if self._fd >= 0:
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        os.close(fd)
