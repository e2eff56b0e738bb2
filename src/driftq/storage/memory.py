"""A journal that keeps nothing: for brokers in memory and for tests. Frames are counted, given back by nobody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from driftq.storage.journal import WrongTail

ROOM_BYTES = 1 << 62


class MemoryJournal:
    """The twin of `FileJournal` without files."""

    def __init__(self) -> None:
        self._tail_lsn = 0

    def tail_lsn(self) -> int:
        return self._tail_lsn

    def append(self, expected_lsn: int, frames: Sequence[bytes]) -> int:
        if expected_lsn != self._tail_lsn:
            raise WrongTail(expected_lsn, self._tail_lsn)
        self._tail_lsn += len(frames)
        return self._tail_lsn

    def replay(self, after_lsn: int) -> Iterator[tuple[int, bytes]]:
        return iter(())

    def trim(self, before_lsn: int) -> None:
        pass

    def room_bytes(self) -> int:
        return ROOM_BYTES

    def close(self) -> None:
        pass
