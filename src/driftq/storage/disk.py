"""The disk seam: every access to the filesystem goes through it.

Every call that changes something carries a label (`"journal.sync"`, `"snapshot.rename"`), so that a test can fail or
crash exactly that call. The implementation is the operating system (`OsDisk`) or, in the tests, a disk that
forgets unsynced writes. Nothing here knows what the bytes mean. Calls that only read raise the system's `OSError`.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import NoReturn, Protocol

_NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_sync_data = getattr(os, "fdatasync", os.fsync)


class DiskFull(Exception):
    """The filesystem has no room. The call had no effect; new work is refused until there is room."""


class NoDescriptors(DiskFull):
    """No file can be opened: this process, or the machine, has no file descriptor left. The disk is fine."""


class DiskFailed(Exception):
    """A write, sync, truncate or rename failed. Nothing after it can be trusted: the process stops."""

    def __init__(self, label: str, path: str, reason: str) -> None:
        super().__init__(f"{label}: {path}: {reason}")
        self.label = label
        self.path = path
        self.reason = reason


class File(Protocol):
    """One open file. Positions are byte indexes; there is no cursor."""

    path: str

    def size(self) -> int: ...

    def read_at(self, position: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def write_at(self, label: str, position: int, data: bytes) -> None:
        """All of `data` or an exception: `DiskFull` when there is no room, `DiskFailed` for anything else.

        After either, the bytes from `position` to `position + len(data)` may be old, new or both; no others changed.
        """

    def sync(self, label: str) -> None:
        """Returns when the bytes are on the device (fdatasync). Never retried: any failure is `DiskFailed`."""

    def truncate(self, label: str, size: int) -> None: ...

    def is_in_place(self) -> bool:
        """Whether its path still leads to this file: it was neither removed nor replaced."""

    def close(self) -> None: ...


class Disk(Protocol):
    """Files and folders by path."""

    def create(self, label: str, path: str, allocate_bytes: int = 0) -> File:
        """A new file, which must not exist; allocated bytes read as zeros and writing them cannot run out of room."""

    def open(self, path: str, *, write: bool = False) -> File: ...

    def rename(self, label: str, source: str, target: str) -> None: ...

    def remove(self, label: str, path: str) -> None: ...

    def make_folder(self, label: str, path: str) -> None:
        """A folder that exists already is fine."""

    def remove_folder(self, label: str, path: str) -> None:
        """The folder must be empty."""

    def sync_folder(self, label: str, path: str) -> None:
        """Makes created, renamed and removed names of this folder durable."""

    def list(self, path: str) -> list[str]:
        """The names in a folder, sorted; empty when the folder does not exist."""

    def exists(self, path: str) -> bool: ...

    def free_bytes(self, path: str) -> int: ...


def _failed(label: str, path: str, error: OSError) -> NoReturn:
    if error.errno in _NO_DESCRIPTORS:
        raise NoDescriptors(f"{label}: {path}: {error.strerror}") from error
    if error.errno in _NO_ROOM:
        raise DiskFull(f"{label}: {path}: {error.strerror}") from error
    raise DiskFailed(label, path, error.strerror or str(error)) from error


def leads_to(path: str, descriptor: int) -> bool:
    """Whether a path is the name of an open file."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


class OsFile:
    """A file descriptor and its path."""

    __slots__ = ("_fd", "_reserve", "path")

    def __init__(self, fd: int, path: str, reserve: DescriptorReserve) -> None:
        self._fd = fd
        self._reserve = reserve
        self.path = path

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read_at(self, position: int, size: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size and (more := os.pread(self._fd, size - got, position + got)):
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def write_at(self, label: str, position: int, data: bytes) -> None:
        try:
            written = os.pwrite(self._fd, data, position)
            # A disk that fills up writes a part first and reports the reason on the next call.
            while written < len(data):
                step = os.pwrite(self._fd, memoryview(data)[written:], position + written)
                if step == 0:
                    raise OSError(errno.EIO, "the system wrote nothing and gave no reason")
                written += step
        except OSError as error:
            _failed(label, self.path, error)

    def sync(self, label: str) -> None:
        try:
            _sync_data(self._fd)
        except OSError as error:
            # Even "no space" is final here: the kernel may have dropped the pages and would report success next time.
            raise DiskFailed(label, self.path, error.strerror or str(error)) from error

    def truncate(self, label: str, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            _failed(label, self.path, error)

    def is_in_place(self) -> bool:
        return leads_to(self.path, self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
            self._reserve.take_back()


class OsDisk:
    """The real filesystem. Files are 0600, folders 0700, and a symbolic link is never followed into a file.

    Files use the descriptors that `reserve` sets aside. Where those are used up, too, opening one is `NoDescriptors`.
    """

    def __init__(self, reserve: DescriptorReserve | None = None) -> None:
        self._reserve = reserve or DescriptorReserve(0)

    def create(self, label: str, path: str, allocate_bytes: int = 0) -> File:
        try:
            fd = self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
        except OSError as error:
            _failed(label, path, error)
        file = OsFile(fd, path, self._reserve)
        if allocate_bytes:
            try:
                _allocate(fd, allocate_bytes)
            except OSError as error:
                file.close()
                os.unlink(path)
                _failed(label, path, error)
        return file

    def open(self, path: str, *, write: bool = False) -> File:
        mode = os.O_RDWR if write else os.O_RDONLY
        try:
            return OsFile(self._open(path, mode | os.O_NOFOLLOW), path, self._reserve)
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                _failed("open", path, error)
            raise

    def _open(self, path: str, flags: int) -> int:
        """A descriptor from the reserve. If another thread takes the freed one for a socket, the next is freed."""
        reserve = self._reserve
        lent = reserve.lend()
        while True:
            try:
                return os.open(path, flags | os.O_CLOEXEC, 0o600)
            except OSError as error:
                if error.errno in _NO_DESCRIPTORS and lent and (lent := reserve.lend()):
                    continue
                reserve.take_back()
                raise

    def rename(self, label: str, source: str, target: str) -> None:
        try:
            os.rename(source, target)
        except OSError as error:
            _failed(label, source, error)

    def remove(self, label: str, path: str) -> None:
        try:
            os.unlink(path)
        except OSError as error:
            _failed(label, path, error)

    def make_folder(self, label: str, path: str) -> None:
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
        except OSError as error:
            _failed(label, path, error)

    def remove_folder(self, label: str, path: str) -> None:
        try:
            os.rmdir(path)
        except OSError as error:
            _failed(label, path, error)

    def sync_folder(self, label: str, path: str) -> None:
        try:
            fd = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
                self._reserve.take_back()
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                _failed(label, path, error)
            raise DiskFailed(label, path, error.strerror or str(error)) from error

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def list(self, path: str) -> list[str]:
        self._reserve.lend()
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                _failed("list", path, error)
            raise
        finally:
            self._reserve.take_back()


def _allocate(fd: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    zeros = bytes(1 << 20)
    for position in range(0, size, len(zeros)):
        os.pwrite(fd, zeros[: size - position], position)


# --- a read-only disk, for the folder of another process, perhaps of a running broker ---


class DescriptorReserve:
    """File descriptors set aside for files, so that sockets cannot use them up: a process has one limit for both.

    Holds placeholders (`/dev/null`) for up to `size` open files. One is given up each time a file is opened and taken
    back when it is closed, so a file can be opened however many clients are connected. Safe to use from several
    threads: every step is one list operation.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._placeholders: list[int] = []
        for _ in range(size):
            self._hold_one()

    def lend(self) -> bool:
        """Free one descriptor for a file that is opened next. False if none is left."""
        try:
            placeholder = self._placeholders.pop()
        except IndexError:
            return False
        os.close(placeholder)
        return True

    def take_back(self) -> None:
        """A file was closed: hold its descriptor again, unless something else was quicker."""
        if len(self._placeholders) < self._size:
            self._hold_one()

    def close(self) -> None:
        while self.lend():
            pass

    def _hold_one(self) -> None:
        with contextlib.suppress(OSError):
            self._placeholders.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


class ReadOnlyFile:
    """An open file that refuses writes."""

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
    """A disk that refuses changes. Removing and syncing have no effect."""

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
    raise AssertionError(f"{label}: {path}: a read-only disk was asked to write")
