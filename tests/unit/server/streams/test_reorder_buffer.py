"""Appends of a producer that arrive out of order wait for the batch before them."""

from __future__ import annotations

import asyncio

from driftq.core.model import commands as c
from driftq.core.model.facts import ProducerSequence
from driftq.core.model.replies import Rejected, StreamAppended
from driftq.engine.engine import Engine
from driftq.server.streams.reorder_buffer import PER_PRODUCER_MAX, ReorderBuffer
from driftq.wire.records import pack_one


def append(seq: int, producer: str = "p", epoch: int = 0, path: str = "s") -> c.AppendStream:
    value = b"%d" % seq
    return c.AppendStream(
        path, "text/plain", pack_one(value), 1, len(value), ProducerSequence(producer, epoch, seq, seq)
    )


async def replies_to(sequence: list[c.AppendStream], park_ms: int = 50) -> list[object]:
    """The replies of appends that are submitted in this order."""
    engine = Engine.in_memory()
    await engine.submit(c.CreateStream("s", "text/plain"))
    buffer = ReorderBuffer(engine, park_ms)
    futures = []
    for command in sequence:
        reply = asyncio.get_running_loop().create_future()
        buffer.submit(command, reply.set_result)
        futures.append(reply)
    replies = await asyncio.gather(*futures)
    assert not buffer._parked
    assert not buffer._bytes
    await engine.close()
    return replies


def test_early_batches_are_appended_after_the_batch_before_them():
    replies = asyncio.run(replies_to([append(seq) for seq in (2, 4, 1, 3, 0)], 60_000))
    assert [reply.first_offset for reply in replies] == [2, 4, 1, 3, 0]


def test_producers_do_not_wait_for_each_other():
    replies = asyncio.run(replies_to([append(1, "a"), append(0, "b"), append(0, "a")], 60_000))
    assert [reply.first_offset for reply in replies] == [2, 0, 1]


def test_the_second_batch_of_a_new_epoch_waits_for_its_first():
    order = [append(0), append(1, epoch=1), append(0, epoch=1)]
    replies = asyncio.run(replies_to(order, 60_000))
    assert [reply.first_offset for reply in replies] == [0, 2, 1]


def test_two_copies_of_an_early_batch_are_one_append():
    replies = asyncio.run(replies_to([append(1), append(1), append(0)], 60_000))
    assert sorted(reply.duplicate for reply in replies) == [False, False, True]


def test_a_batch_that_waits_too_long_or_finds_no_room_is_refused():
    late = asyncio.run(replies_to([append(1)], 20))
    assert isinstance(late[0], Rejected)
    replies = asyncio.run(replies_to([append(seq) for seq in range(1, PER_PRODUCER_MAX + 3)] + [append(0)], 60_000))
    assert [isinstance(reply, Rejected) for reply in replies] == [False] * PER_PRODUCER_MAX + [True, True, False]
    assert isinstance(asyncio.run(replies_to([append(1)], 0))[0], Rejected)


def test_an_append_to_a_missing_stream_is_refused_at_once():
    (reply,) = asyncio.run(replies_to([append(3, path="none")], 60_000))
    assert isinstance(reply, Rejected)
    assert isinstance(asyncio.run(replies_to([append(0)]))[0], StreamAppended)
