"""The room rule: both conditions under which a command may be decided, at their exact limits."""

from __future__ import annotations

import pytest

from driftq.core.model import commands as c
from driftq.engine.journal_room import NEW_WORK, JournalRoom, size_of
from driftq.wire.errors import Code

BLOCK_BYTES = 100
RESERVE_BYTES = 1_000


def code_of(room: JournalRoom, *, is_new: bool = True, size: int = 0, unsynced: int = 0, largest: int = 0):
    refused = room.refusal(is_new, size, unsynced, largest)
    return refused.code if refused is not None else None


def room_of(free_bytes: int, segment_bytes: int = 0) -> JournalRoom:
    return JournalRoom(
        free_bytes, block_bytes=BLOCK_BYTES, reserve_bytes=RESERVE_BYTES, segment_bytes=segment_bytes,
        unsynced_bytes_max=5_000,
    )  # fmt: skip


def test_the_room_must_take_everything_that_waits_and_the_waste_twice():
    needed_bytes = 300 + 2 * (BLOCK_BYTES + 40) + RESERVE_BYTES
    assert code_of(room_of(needed_bytes), size=40, unsynced=300) is None
    assert code_of(room_of(needed_bytes - 1), size=40, unsynced=300) is Code.DISK_FULL


def test_the_largest_waiting_frame_wastes_as_much_as_the_command():
    needed_bytes = 2 * (BLOCK_BYTES + 700) + RESERVE_BYTES
    assert code_of(room_of(needed_bytes), size=40, largest=700) is None
    assert code_of(room_of(needed_bytes - 1), size=40, largest=700) is Code.DISK_FULL


def test_an_empty_segment_that_takes_everything_alone_is_enough():
    needed_bytes = 300 + BLOCK_BYTES + 40 + RESERVE_BYTES
    room = room_of(needed_bytes, segment_bytes=needed_bytes)
    assert code_of(room, size=40, unsynced=300) is None
    assert code_of(room, size=41, unsynced=300) is Code.DISK_FULL, "the segment is too small"
    room.free_bytes -= 1
    assert code_of(room, size=40, unsynced=300) is Code.DISK_FULL, "the segment is not empty"


def test_only_the_end_of_old_work_may_use_the_reserve():
    room = room_of(2 * BLOCK_BYTES)
    assert code_of(room) is Code.DISK_FULL
    assert code_of(room, is_new=False) is None


def test_new_work_waits_for_a_slow_disk_and_old_work_does_not():
    room = room_of(1 << 40)
    assert code_of(room, unsynced=5_000) is None
    assert code_of(room, unsynced=5_001) is Code.OVERLOADED
    assert code_of(room, unsynced=5_001, is_new=False) is None


@pytest.mark.parametrize("kind", [c.Claim, c.Ack, c.Nack, c.DeleteTopic, c.Sweep, c.Extend])
def test_what_ends_old_work_is_not_new_work(kind):
    assert kind not in NEW_WORK


def test_the_size_of_a_command_is_that_of_its_batches():
    assert size_of(c.Produce("t", b"x" * 30, 1, 30)) == 30
    assert size_of(c.CreateTopic("t")) == 0
