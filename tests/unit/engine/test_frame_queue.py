"""The queue of frames: one batch at a time, at most one block of them, and an exact count of what is not durable."""

from __future__ import annotations

from driftq.engine.frame_queue import CommitBatch, FrameQueue
from driftq.storage.blocks import LENGTH

MANY = 1_000


def queue_of(*sizes: int, block_bytes: int = 1_000, tail_lsn: int = 0) -> FrameQueue:
    frames = FrameQueue(tail_lsn, block_bytes)
    for size in sizes:
        frames.append(bytes(size))
    return frames


def test_frames_are_numbered_after_the_tail_and_taken_in_order():
    frames = FrameQueue(7, 1_000)
    assert [frames.append(frame) for frame in (b"a", b"b", b"c")] == [8, 9, 10]
    assert frames.take_batch(2) == CommitBatch(7, [b"a", b"b"])
    frames.on_durable()
    assert frames.take_batch(MANY) == CommitBatch(9, [b"c"])


def test_nothing_is_taken_while_a_batch_is_not_durable():
    frames = queue_of(10)
    assert frames.take_batch(MANY) is not None
    frames.append(b"next")
    assert frames.take_batch(MANY) is None
    frames.on_durable()
    assert frames.take_batch(MANY) == CommitBatch(1, [b"next"])


def test_a_batch_fills_one_block_exactly_and_no_more():
    size = 1_000 // 4 - LENGTH.size
    frames = queue_of(*[size] * 9)
    counts = []
    while (batch := frames.take_batch(MANY)) is not None:
        counts.append(len(batch.frames))
        frames.on_durable()
    assert counts == [4, 4, 1]


def test_a_frame_larger_than_a_block_is_taken_alone_and_remembered_until_nothing_waits():
    frames = queue_of(10, 5_000, 10)
    assert frames.largest_bytes == 5_000
    batch = frames.take_batch(MANY)
    assert batch is not None
    assert list(map(len, batch.frames)) == [10]
    frames.on_durable()
    batch = frames.take_batch(MANY)
    assert batch is not None
    assert list(map(len, batch.frames)) == [5_000]
    frames.on_durable()
    assert frames.largest_bytes == 5_000, "a frame still waits"
    frames.take_batch(MANY)
    frames.on_durable()
    assert frames.largest_bytes == 0


def test_bytes_count_as_unsynced_until_they_are_durable():
    frames = queue_of(10, 20)
    assert frames.unsynced_bytes == 30 + 2 * LENGTH.size
    frames.take_batch(1)
    frames.append(bytes(5))
    assert (len(frames), frames.unsynced_bytes) == (2, 35 + 3 * LENGTH.size)
    frames.on_durable()
    assert frames.unsynced_bytes == 25 + 2 * LENGTH.size
