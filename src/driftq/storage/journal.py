"""The journal seam: a numbered sequence of frames that survives the process. `FileJournal` keeps it in local files,
`MemoryJournal` in memory; a replicated journal is to follow.

A frame holds the encoded facts of one command. Its number is its lsn: dense, from 1.

    first_lsn                      closed_lsn          tail_lsn
        |                               |                  |
    [ frame | frame | ... | frame | frame | frame | frame ]   <- append(tail_lsn, frames)
        trim(before_lsn) removes        only checkpoints
        from this end                   up to here

An append ends in one of four ways. Only the second and the fourth end the owner's turn.

    returns the new tail       stored     every frame up to it is durable
    raises WrongTail           not stored another owner has written; this one must stop
    raises JournalUnavailable  not stored there is no room, or no quorum; the same append may be repeated later
    raises AppendUnknown       unknown    all frames are stored or none is; only the next owner's replay can tell

What the owner of a journal must do:

1. Read everything above its snapshot with `replay`, once, before the first `append`.
2. Call `append` with the tail it knows, one append at a time. After `AppendUnknown`, never append again: stop, answer
   nothing that waits, and let the next start find out.
3. About once a second call `maintain`, never while an append runs.
4. After a checkpoint, call `trim` with the first lsn that a kept snapshot still needs.

Nothing outside `storage` and `engine.folder_storage` may assume that a journal is a local file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import google_crc32c

from driftq.storage.corruption import CorruptJournal

ROOM_BYTES = 1 << 62  # the room of a journal that never fills up


class WrongTail(Exception):
    """Another writer moved the tail. Certainly not stored."""

    def __init__(self, expected_lsn: int, tail_lsn: int) -> None:
        super().__init__(f"expected the journal to end at lsn {expected_lsn}, it ends at {tail_lsn}")
        self.expected_lsn = expected_lsn
        self.tail_lsn = tail_lsn


class JournalUnavailable(Exception):
    """The journal cannot take this append now, for example because there is no space. Certainly not stored."""


class AppendUnknown(Exception):
    """The append failed part way: its frames may be stored, all of them, or not. This owner can append nothing more."""


class Journal(Protocol):
    """Frames in, in order; the same frames out after a restart. Calls come from one thread at a time."""

    def first_lsn(self) -> int:
        """The lowest lsn that is still stored; `tail_lsn() + 1` if none is."""

    def tail_lsn(self) -> int:
        """The lsn of the last durable frame; 0 for an empty journal."""

    def closed_lsn(self) -> int:
        """The last lsn that a checkpoint may fold up to: another process can read the frames up to here."""

    def close_segment(self) -> None:
        """Let the next checkpoint fold everything up to the tail, although there is room for more before it. May have
        no effect: for lack of room, or because no checkpoint can fold this journal."""

    def crc_at(self, lsn: int) -> int | None:
        """A checksum over the whole history up to `lsn`; None where the journal does not know it. Two histories of the
        same length differ in it. Known at the tail, and at the closed lsn where there is one."""

    def append(self, expected_lsn: int, frames: Sequence[bytes]) -> int:
        """Store all frames or none after `expected_lsn`. Returns the new tail; everything up to it is durable.

        Raises `WrongTail` or `JournalUnavailable` if certainly nothing was stored, and `AppendUnknown` if that cannot
        be known; after that, every call that writes raises.
        """

    def replay(self, after_lsn: int) -> Iterator[tuple[int, bytes]]:
        """Every frame above `after_lsn` up to the present tail, in order, with its lsn. Raises `CorruptJournal` if one
        of them is damaged, missing or trimmed."""

    def trim(self, before_lsn: int) -> None:
        """Frames below `before_lsn` are no longer needed. May keep some of them: whole segments go."""

    def maintain(self) -> None:
        """What must happen now and then: reserve space ahead of need, note how far the journal is durable, and check
        that it still belongs to this process. Raises `OwnershipLost` if it was moved, replaced or taken over."""

    def room_bytes(self) -> int:
        """How many more bytes of frames can be stored in space that is already reserved. While there is too little,
        refuse new work."""

    def close(self) -> None:
        """Release everything. Nothing can be appended afterwards; the next owner finds every frame up to the tail."""


class MemoryJournal:
    """A journal in memory: for brokers that keep nothing, and for tests.

    With `retains=False` it counts frames and drops them at once. A broker in memory never restarts, so there is nothing
    to replay them for.
    """

    def __init__(self, *, retains: bool = True) -> None:
        self._retains = retains
        self._first_lsn = 1
        self._tail_lsn = 0
        self._frames: list[bytes] = []  # those from `_first_lsn` to `_tail_lsn`
        self._tail_crc = 0
        self._closed = False

    def first_lsn(self) -> int:
        return self._first_lsn

    def tail_lsn(self) -> int:
        return self._tail_lsn

    def closed_lsn(self) -> int:
        """No other process can read this memory, so there is nothing to fold."""
        return 0

    def close_segment(self) -> None:
        pass

    def crc_at(self, lsn: int) -> int | None:
        return self._tail_crc if self._retains and lsn == self._tail_lsn else None

    def append(self, expected_lsn: int, frames: Sequence[bytes]) -> int:
        if self._closed:
            raise ValueError("the journal is closed")
        if expected_lsn != self._tail_lsn:
            raise WrongTail(expected_lsn, self._tail_lsn)
        self._tail_lsn += len(frames)
        if self._retains:
            self._frames += frames
            for frame in frames:
                self._tail_crc = google_crc32c.extend(self._tail_crc, len(frame).to_bytes(4, "little") + frame)
        else:
            self._first_lsn = self._tail_lsn + 1
        return self._tail_lsn

    def replay(self, after_lsn: int) -> Iterator[tuple[int, bytes]]:
        if after_lsn + 1 < self._first_lsn:
            reason = f"lsn {after_lsn + 1} was requested; the journal begins at {self._first_lsn}"
            raise CorruptJournal("memory", 0, after_lsn + 1, self._first_lsn - 1, reason)
        return iter(list(enumerate(self._frames[after_lsn + 1 - self._first_lsn :], after_lsn + 1)))

    def trim(self, before_lsn: int) -> None:
        count = min(before_lsn, self._tail_lsn + 1) - self._first_lsn
        if count > 0:
            del self._frames[:count]
            self._first_lsn += count

    def maintain(self) -> None:
        pass

    def room_bytes(self) -> int:
        return ROOM_BYTES

    def reopen(self) -> MemoryJournal:
        """The journal as the next owner finds it."""
        self._closed = False
        return self

    def close(self) -> None:
        self._closed = True
