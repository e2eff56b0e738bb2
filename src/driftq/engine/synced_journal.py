"""A journal whose appends wait for the archive: `archive.mode = "sync"`.

An append returns when its block is durable here and its chunk is stored there. So everything that waits for the
journal, replies and reads, waits for both. The archive's thread ships; this one waits for it, so one chunk is in flight
at a time. If the archive was taken over by another broker, the append ends as `AppendUnknown`, and the broker stops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driftq.engine.archiver import Archiver
    from driftq.storage.journal import Journal


class SyncedJournal:
    """A journal whose appends are durable when they are in the archive, too."""

    def __init__(self, journal: Journal, archiver: Archiver) -> None:
        self._journal = journal
        self._archiver = archiver

    def append(self, expected_lsn: int, frames: Sequence[bytes]) -> int:
        lsn = self._journal.append(expected_lsn, frames)
        self._archiver.wait_shipped(lsn)
        return lsn

    def first_lsn(self) -> int:
        return self._journal.first_lsn()

    def tail_lsn(self) -> int:
        return self._journal.tail_lsn()

    def closed_lsn(self) -> int:
        return self._journal.closed_lsn()

    def close_segment(self) -> None:
        self._journal.close_segment()

    def crc_at(self, lsn: int) -> int | None:
        return self._journal.crc_at(lsn)

    def replay(self, after_lsn: int) -> Iterator[tuple[int, bytes]]:
        return self._journal.replay(after_lsn)

    def trim(self, before_lsn: int) -> None:
        self._journal.trim(before_lsn)

    def maintain(self) -> None:
        self._journal.maintain()

    def room_bytes(self) -> int:
        return self._journal.room_bytes()

    def close(self) -> None:
        self._journal.close()
