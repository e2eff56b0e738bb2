"""The room rule: whether the journal has room for what a command may write, checked before the command is decided.

A full disk refuses work, it never fails a write. Two limits are checked:

- **Unsynced bytes.** When too much waits for the disk, new work is refused until the disk has caught up.
- **Room.** Frames are never split. A block that does not fit into the rest of a segment goes to the next one and wastes
  that rest, which is smaller than the block. So there are two ways to be sure that everything fits:

      (a) the room takes all of it and the waste once more, or
      (b) an empty segment is ready that takes all of it alone, whatever is left of the current one.

A part of the room is the reserve: only work that ends old work (claims, acks, deletes, sweeps) may use it, so that a
full broker can still be emptied.

Pure: the sequencer passes what waits, the driver sets `free_bytes` after every append.
"""

from __future__ import annotations

from driftq.core.model import commands as c
from driftq.core.model import interventions as v
from driftq.core.model.access import CreateAccessToken
from driftq.core.model.replies import Rejected
from driftq.core.model.schedules import CreateSchedule, FireSchedules, RunSchedule
from driftq.wire.errors import Code

# Refused when the disk is nearly full. What ends old work may use the reserve.
NEW_WORK = frozenset(
    (
        c.Produce,
        c.CreateTopic,
        c.CreateStream,
        c.AppendStream,
        c.Stage,
        c.Publish,
        c.CommitOutcome,
        c.CreateGroup,
        v.MoveMessages,
        c.BeginEffect,
        CreateAccessToken,
        CreateSchedule,
        FireSchedules,
        RunSchedule,
    )
)

_WITH_BATCH = (c.Produce, c.AppendStream, c.CreateStream, c.Stage)


class JournalRoom:
    """What one journal can take."""

    __slots__ = ("_reserve_bytes", "_segment_bytes", "block_bytes", "free_bytes", "unsynced_bytes_max")

    def __init__(
        self,
        free_bytes: int,
        *,
        block_bytes: int = 4 << 20,
        reserve_bytes: int = 8 << 20,
        segment_bytes: int = 0,
        unsynced_bytes_max: int = 64 << 20,
    ) -> None:
        self.free_bytes = free_bytes  # what the journal can take; the driver updates it after every append
        self.block_bytes = block_bytes  # what one append takes, unless a single frame is larger
        self.unsynced_bytes_max = unsynced_bytes_max  # more than this waiting for the disk: new work is refused
        self._reserve_bytes = reserve_bytes  # room that only the end of old work may use
        self._segment_bytes = segment_bytes  # what an empty segment of the journal takes; 0: it has no segments

    def refusal(self, is_new: bool, size_bytes: int, unsynced_bytes: int, largest_bytes: int) -> Rejected | None:
        """The refusal of a command whose frame has about `size_bytes`; None if there is room. `largest_bytes` is the
        largest waiting frame that needs a block of its own."""
        if is_new and unsynced_bytes > self.unsynced_bytes_max:
            details = {"reason": "slow_disk", "retry_after_ms": 1_000}
            return Rejected(Code.OVERLOADED, "the disk does not keep up; nothing was changed", details)
        wasted_bytes = self.block_bytes + (size_bytes if size_bytes > largest_bytes else largest_bytes)
        needed_bytes = unsynced_bytes + wasted_bytes + (self._reserve_bytes if is_new else 0)
        free_bytes = self.free_bytes
        if needed_bytes + wasted_bytes <= free_bytes or needed_bytes <= self._segment_bytes <= free_bytes:
            return None
        return disk_full()


def disk_full() -> Rejected:
    return Rejected(
        Code.DISK_FULL,
        "the disk is full: nothing was changed; free some space, service resumes by itself",
        {"reason": "disk_full", "retry_after_ms": 1_000},
    )


def size_of(command: c.Command) -> int:
    """About how large a command's frame is, beyond its fixed part."""
    if isinstance(command, _WITH_BATCH):
        return len(command.batch)
    if isinstance(command, c.CommitOutcome):
        batches = [part.batch for part in command.produces] + [part.batch for part in command.appends]
        return sum(map(len, batches))
    if isinstance(command, v.Redrive | v.MoveMessages):
        return sum(len(part.produce.batch) for part in command.parts)
    return 0
