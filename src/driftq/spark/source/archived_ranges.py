"""Reads records that are only in the broker's archive from there, and not through the broker.

    executor ── fetch?locate=true ──▶ broker          where they are: an object, a position, sizes and checksums
             ── ranged get ─────────▶ object store    the same bytes that the broker would have sent

The broker decides what is read; the archive only has the bytes, and each part of them is compared with the checksum
that the broker keeps. What differs is refused. If the archive cannot be read from here, the broker is asked for the
records themselves. Knows nothing of Spark and does not look into records.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import google_crc32c

if TYPE_CHECKING:
    from driftq.wire.topics import ArchivedRange

logger = logging.getLogger("driftq.spark")

AWAY_S = 30.0  # after a failure, the broker is asked for so long


class ArchiveDiffers(Exception):
    """The archive has other bytes than were archived."""


class ArchiveAddress(NamedTuple):
    """Where a reader finds the archive of a broker: a folder, or a URL with options of the object store."""

    url: str
    options: tuple[tuple[str, str], ...] = ()


class _Objects(Protocol):
    def read(self, key: str, position: int, size: int) -> bytes: ...


class ArchiveReader:
    """Reads from one archive. May be used by several threads."""

    def __init__(self, address: ArchiveAddress) -> None:
        self._address = address
        self._objects: _Objects | None = None
        self._away_until_s = 0.0

    @property
    def is_away(self) -> bool:
        """Whether the archive could not be read a moment ago."""
        return time.monotonic() < self._away_until_s

    def read(self, place: ArchivedRange) -> bytes | None:
        """The bytes of a range; None if they cannot be had from here. Raises `ArchiveDiffers`."""
        try:
            if self._objects is None:
                self._objects = _objects_at(self._address)
            data = self._objects.read(place.key, place.position, place.size_bytes)
        except Exception as error:  # whatever a library, a disk or a network may raise: the broker has another way
            reason = str(error).partition("\n")[0] or type(error).__name__
            logger.warning("archive %s: %s; the broker is asked instead", self._address.url, reason)
            self._away_until_s = time.monotonic() + AWAY_S
            return None
        self._compare(place, data)
        return data

    def _compare(self, place: ArchivedRange, data: bytes) -> None:
        start = 0
        for size, crc in place.runs:
            part = data[start : start + size]
            if len(part) != size or google_crc32c.value(part) != crc:
                raise ArchiveDiffers(
                    f"{place.key} in the archive {self._address.url} is not what the broker archived to "
                    f"{place.archive}, at byte {place.position + start}; see `driftq archive verify`"
                )
            start += size


_readers: dict[ArchiveAddress, ArchiveReader] = {}


def archive_reader(address: ArchiveAddress) -> ArchiveReader:
    """The reader of an archive, one for each process: a Python worker keeps it from task to task."""
    return _readers.setdefault(address, ArchiveReader(address))


class _Folder:
    def __init__(self, root: str) -> None:
        self._root = root

    def read(self, key: str, position: int, size: int) -> bytes:
        with Path(self._root, key).open("rb") as file:
            return os.pread(file.fileno(), size, position)


def _objects_at(address: ArchiveAddress) -> _Objects:
    if "://" not in address.url:
        return _Folder(address.url)
    # Needed by queries that name an archive in an object store, and by no other.
    from driftq.spark.object_stores import BucketRanges  # noqa: PLC0415

    return BucketRanges(address.url, dict(address.options))
