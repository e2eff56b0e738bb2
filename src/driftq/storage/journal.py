"""The seam between the broker and whatever keeps its frames: a local file, later a replicated log.

A journal is a numbered sequence of frames. A frame is the encoded facts of one command; its number is its lsn, dense
from 1. Nothing outside `storage.file_journal` may assume that a journal is a local file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol


class WrongTail(Exception):
    """Another writer moved the tail: certainly not stored."""

    def __init__(self, expected_lsn: int, tail_lsn: int) -> None:
        super().__init__(f"expected the journal to end at lsn {expected_lsn}, it ends at {tail_lsn}")
        self.expected_lsn = expected_lsn
        self.tail_lsn = tail_lsn


class Unavailable(Exception):
    """Refused before a byte was sent: certainly not stored."""


class OutcomeUnknown(Exception):
    """Stored now, stored later, or never: only a successful later append can tell."""


class Journal(Protocol):
    """Frames in, in order; the same frames out after a restart."""

    def tail_lsn(self) -> int:
        """The lsn of the last durable frame; 0 for an empty journal."""

    def append(self, expected_lsn: int, frames: Sequence[bytes]) -> int:
        """Store all frames or none behind `expected_lsn` and return the new tail, durable.

        Called with one append in flight at a time, from any one thread.
        """

    def replay(self, after_lsn: int) -> Iterator[tuple[int, bytes]]:
        """Every frame with a greater lsn, in order."""

    def trim(self, before_lsn: int) -> None:
        """Forget frames below `before_lsn` where that is cheap (whole segments)."""

    def room_bytes(self) -> int:
        """How many more bytes of frames can be stored without asking for space."""

    def close(self) -> None: ...


# --- A journal that keeps nothing: for brokers in memory and for tests. Frames are counted, given back by nobody ---


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
