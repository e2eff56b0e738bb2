"""Where the files of a table are: a folder, or a prefix in an object store. A file gets its name only when it is whole.

    LocalFiles     write and sync a hidden file, link it to its name, sync the folder: durable before anyone sees it
    ObjectFiles    one conditional put: the store makes it durable before it answers

Both refuse a name that exists, which is what makes a version of a table be committed once. delta-rs gives a file its
name before it is durable (docs/decisions/0018-delta-tables.md), so what it writes locally is written beside the table
and linked by us, too. Knows no table format and no Spark.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, NotFoundError, PreconditionError

from driftq.spark.object_stores import store_at

LOG = "_delta_log"
PRIVATE = "_driftq"  # Readers of Delta and of Parquet ignore names that begin with `_`.
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class TableFiles(Protocol):
    """The files of one table, by their path in it."""

    uri: str  # as delta-rs wants it
    options: dict[str, str]  # as delta-rs wants them

    def read(self, path: str) -> bytes | None:
        """None if there is no such file."""

    def create(self, path: str, data: bytes) -> bool:
        """Make a file, durably. False if it exists."""

    def replace(self, path: str, data: bytes) -> None:
        """Make a file, or another content for it, durably."""

    def sync_folders(self, paths: Iterable[str]) -> None:
        """Make the names of these files durable."""

    def sizes(self, under: str = "") -> dict[str, int]:
        """All files and their sizes, or those in a folder."""

    def delete(self, paths: Iterable[str]) -> None: ...


def files_at(path: str, options: Mapping[str, str] | None = None) -> TableFiles:
    """The files at a path or URL. Raises ValueError for a URL that is not supported."""
    parts = urlsplit(path)
    if "://" in path and parts.scheme != "file":
        return ObjectFiles(path, dict(options or {}))
    return LocalFiles(Path(unquote(parts.path) if parts.scheme == "file" else path).expanduser().absolute())


class LocalFiles:
    """A folder on this machine, or on a mount that all machines of a cluster share."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.uri = str(root)
        self.options: dict[str, str] = {}

    def read(self, path: str) -> bytes | None:
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, path: str, data: bytes) -> bool:
        with self._written(path, data) as fresh:
            return self.link(fresh, path)

    def link(self, fresh: Path, path: str) -> bool:
        """Give a synced file its name in the table. False if the name exists."""
        try:
            os.link(fresh, self.root / path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise OSError(
                    error.errno, f"{self.root}: a table needs a file system with hard links: {error.strerror}"
                ) from None
            raise
        self.sync_folders([path])
        return True

    def replace(self, path: str, data: bytes) -> None:
        with self._written(path, data) as fresh:
            fresh.replace(self.root / path)
            self.sync_folders([path])

    @contextmanager
    def _written(self, path: str, data: bytes) -> Iterator[Path]:
        """A synced file beside the place where its name will be."""
        target = self.root / path
        if not target.parent.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            sync(self.root)
            sync(self.root.parent)
        fresh = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with fresh.open("xb") as file:
                file.write(data)
            sync(fresh)
            yield fresh
        finally:
            fresh.unlink(missing_ok=True)

    def sync_folders(self, paths: Iterable[str]) -> None:
        folders = {parent for path in paths for parent in Path(path).parents}
        for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
            sync(self.root / folder)

    def sizes(self, under: str = "") -> dict[str, int]:
        sizes: dict[str, int] = {}
        for folder, _, names in os.walk(self.root / under):
            for path in (Path(folder, name) for name in names):
                sizes[str(path.relative_to(self.root))] = path.stat().st_size
        return sizes

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            (self.root / path).unlink(missing_ok=True)

    @contextmanager
    def private_log(self, names: Iterable[str]) -> Iterator[Path]:
        """A table beside this one with some files of its log and no data, in which delta-rs can write."""
        copy = self.root / PRIVATE / uuid.uuid4().hex
        (copy / LOG).mkdir(parents=True)
        try:
            for name in names:
                os.link(self.root / LOG / name, copy / LOG / name)
            yield copy
        finally:
            shutil.rmtree(copy, ignore_errors=True)


class ObjectFiles:
    """A prefix in S3, Google Cloud Storage, Azure or anything that speaks like one of them."""

    def __init__(self, url: str, options: dict[str, str]) -> None:
        self.uri = url.rstrip("/")
        self.options = options
        self._store = store_at(self.uri, options)

    def read(self, path: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._store, path).bytes())
        except (NotFoundError, FileNotFoundError):
            return None

    def create(self, path: str, data: bytes) -> bool:
        try:
            obstore.put(self._store, path, data, mode="create")
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    def replace(self, path: str, data: bytes) -> None:
        obstore.put(self._store, path, data)

    def sync_folders(self, paths: Iterable[str]) -> None:
        """There are none."""

    def sizes(self, under: str = "") -> dict[str, int]:
        return {meta["path"]: meta["size"] for page in obstore.list(self._store, under or None) for meta in page}

    def delete(self, paths: Iterable[str]) -> None:
        names = list(paths)
        if names:
            obstore.delete(self._store, names)


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
