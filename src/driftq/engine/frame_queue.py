"""The frames that are decided and not yet durable: a queue between the sequencer and the journal.

    append(frame) ──▶ | frame | frame | frame | ──take_batch()──▶ | taken: one append |  ──on_durable()──▶ gone
                      └────────── unsynced_bytes, with the taken ones ─────────────┘

One batch is taken at a time. It is at most one block of the journal, unless a single frame is larger. This class does
not know what a frame holds.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from driftq.storage.blocks import LENGTH

_LENGTH_BYTES = LENGTH.size  # a block puts it before each frame


class CommitBatch(NamedTuple):
    """Frames for one append to the journal, after `expected_lsn`."""

    expected_lsn: int
    frames: list[bytes]


class FrameQueue:
    """The frames of one sequencer on their way to the journal."""

    __slots__ = ("_block_bytes", "_frames", "_taken_bytes", "largest_bytes", "last_lsn", "unsynced_bytes")

    def __init__(self, tail_lsn: int, block_bytes: int) -> None:
        self.last_lsn = tail_lsn  # of the last frame that exists
        self.unsynced_bytes = 0  # waiting or taken, with the length that a block puts before each frame
        self.largest_bytes = 0  # the largest waiting frame that needs a block of its own; 0: none does
        self._block_bytes = block_bytes  # what one batch holds, unless a single frame is larger
        self._frames: deque[bytes] = deque()  # not yet taken
        self._taken_bytes = 0  # taken, not yet durable; 0: no append is under way

    def __len__(self) -> int:
        """How many frames wait to be taken."""
        return len(self._frames)

    def append(self, frame: bytes) -> int:
        """Add a frame; returns its lsn."""
        size_bytes = len(frame)
        self._frames.append(frame)
        self.unsynced_bytes += size_bytes + _LENGTH_BYTES
        if size_bytes > self._block_bytes:
            self.largest_bytes = max(self.largest_bytes, size_bytes)
        lsn = self.last_lsn = self.last_lsn + 1
        return lsn

    def take_batch(self, frames_max: int) -> CommitBatch | None:
        """The frames of the next append, up to `frames_max` and as many as one block holds; None if there are none, or
        an append is under way."""
        if not self._frames or self._taken_bytes:
            return None
        frames: list[bytes] = []
        size = 0
        if self.unsynced_bytes <= self._block_bytes and len(self._frames) <= frames_max:
            frames, size = list(self._frames), self.unsynced_bytes
            self._frames.clear()
        while self._frames and (not frames or size + _LENGTH_BYTES + len(self._frames[0]) <= self._block_bytes):
            if len(frames) == frames_max:
                break
            size += _LENGTH_BYTES + len(self._frames[0])
            frames.append(self._frames.popleft())
        self._taken_bytes = size
        return CommitBatch(self.last_lsn - len(self._frames) - len(frames), frames)

    def on_durable(self) -> None:
        """The batch that was taken is durable."""
        self.unsynced_bytes -= self._taken_bytes
        self._taken_bytes = 0
        if not self._frames:
            self.largest_bytes = 0
