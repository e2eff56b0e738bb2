"""Objects in a local folder: a second disk, or a share of another machine.

    <root>/<key>          one file per object
    <root>/.tmp/          objects that are being written
    <root>/.lock          held while an object is replaced

An object gets its name by a hard link, which fails if the name is taken, and only when its bytes are on the device: a
reply that waits for the archive must survive a power cut. Replacing an object takes a lock of the folder, because a
file system has no conditional rename; its version is a digest of its bytes.

The folder must be there: a disk that is not mounted must not be taken for an empty archive.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import mmap
import os
import secrets
from collections.abc import Iterator

from driftq.storage.archive.object_store import (
    ObjectExists,
    ObjectMissing,
    ObjectStoreError,
    Reason,
    StoredObject,
    VersionChanged,
    Versioned,
)

_REASONS: dict[int, Reason] = {
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EROFS: "denied",
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.ENOENT: "no_bucket",
    errno.ENOTDIR: "no_bucket",
}
_TEMPORARY = ".tmp"
DIRECT_BYTES = 256 << 10  # objects from this size on are written past the page cache
PIECE_BYTES = 1 << 20  # with one write
ALIGNED_BYTES = 4_096  # such writes begin and end at blocks of the device
_DIRECT = getattr(os, "O_DIRECT", 0)


class FolderObjects:
    """Objects as files below one folder."""

    def __init__(self, root: str) -> None:
        self.url = root
        self._root = root

    def put_new(self, key: str, data: bytes) -> None:
        path = self._path(key)
        with _translated(), self._written(data) as temporary:
            self._make_folder(os.path.dirname(path))
            try:
                os.link(temporary, path)
            except FileExistsError:
                _sync_folder(os.path.dirname(path))  # an earlier attempt may have ended before it did
                raise ObjectExists(key) from None
            _sync_folder(os.path.dirname(path))

    def get(self, key: str) -> bytes:
        with _translated(key), open(self._path(key), "rb") as file:
            return file.read()

    def get_range(self, key: str, position: int, size: int) -> bytes:
        with _translated(key), open(self._path(key), "rb") as file:
            return os.pread(file.fileno(), size, position)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        with _translated():
            os.stat(self._root)
            yield from self._walk(prefix.rstrip("/"))

    def _walk(self, folder: str) -> Iterator[StoredObject]:
        try:
            with os.scandir(self._path(folder)) as entries:
                rows = sorted(entries, key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        for row in rows:
            key = f"{folder}/{row.name}" if folder else row.name
            if row.name.startswith("."):
                continue
            if row.is_dir():
                yield from self._walk(key)
            else:
                with contextlib.suppress(FileNotFoundError):  # deleted in the meantime
                    yield StoredObject(key, row.stat().st_size)

    def delete(self, key: str) -> None:
        with _translated():
            os.stat(self._root)
            with contextlib.suppress(FileNotFoundError):
                os.remove(self._path(key))

    def get_versioned(self, key: str) -> Versioned:
        data = self.get(key)
        return Versioned(data, _version(data))

    def replace(self, key: str, data: bytes, version: str | None) -> str:
        path = self._path(key)
        with _translated(), self._locked():
            try:
                present = self.get_versioned(key).version
            except ObjectMissing:
                present = None
            if present != version:
                raise VersionChanged(key)
            with self._written(data) as temporary:
                self._make_folder(os.path.dirname(path))
                os.replace(temporary, path)
                _sync_folder(os.path.dirname(path))
        return _version(data)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root

    @contextlib.contextmanager
    def _written(self, data: bytes) -> Iterator[str]:
        """A temporary file with these bytes, on the device. Removed at the end if it has not got another name."""
        os.stat(self._root)
        folder = self._path(_TEMPORARY)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = f"{folder}/{os.getpid()}-{secrets.token_hex(8)}"
        try:
            if not _DIRECT or len(data) < DIRECT_BYTES or not _write_direct(path, data):
                _write(path, data)
            yield path
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        os.stat(self._root)
        descriptor = os.open(self._path(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _make_folder(self, folder: str) -> None:
        """Make a folder and those above it, durably, up to the root."""
        if os.path.isdir(folder):
            return
        parent = os.path.dirname(folder)
        self._make_folder(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        _sync_folder(parent)


def _write(path: str, data: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        view = memoryview(data)
        while view:
            view = view[file.write(view) :]
        os.fsync(file.fileno())


def _write_direct(path: str, data: bytes) -> bool:
    """Past the page cache, in which these bytes would only be in the way of others: that takes less than half
    of the CPU, and the broker's own syncs do not wait for them. False if it cannot be done here, or not to the end."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | _DIRECT, 0o666)
    except OSError:
        return False
    try:
        if not _fill_direct(descriptor, data):
            return False
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True


def _fill_direct(descriptor: int, data: bytes) -> bool:
    try:
        with mmap.mmap(-1, PIECE_BYTES) as piece, memoryview(data) as whole:  # a mapping begins with a page
            for start in range(0, len(whole), PIECE_BYTES):
                part = whole[start : start + PIECE_BYTES]
                piece[: len(part)] = part
                size = -(-len(part) // ALIGNED_BYTES) * ALIGNED_BYTES
                with memoryview(piece)[:size] as view:
                    if os.pwrite(descriptor, view, start) != size:
                        return False
        os.ftruncate(descriptor, len(data))
    except OSError:
        return False
    return True


def _version(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _translated(key: str | None = None) -> Iterator[None]:
    """Errors of the system as errors of the seam. `key` is what a missing file means."""
    try:
        yield
    except FileNotFoundError as error:
        if key is not None:
            raise ObjectMissing(key) from None
        reason = "it is not made here, because a disk that is not mounted must not be taken for an empty archive"
        raise ObjectStoreError("no_bucket", f"mkdir -p {error.filename}; {reason}") from error
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, "failed")
        raise ObjectStoreError(reason, f"{error.filename or 'write'}: {error.strerror}") from error
