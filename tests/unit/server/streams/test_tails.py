"""The live end of a log: what readers receive, and when; no reader that joins while records arrive misses one."""

from __future__ import annotations

import asyncio

from driftq.core.model import commands as c
from driftq.core.model.queries import ReadStream
from driftq.engine.engine import Engine
from driftq.server.streams.stream_body import Form
from driftq.server.streams.tails import Arrival, LiveTails
from driftq.wire.records import pack_one


class CollectingReader:
    """A reader that takes everything."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.arrivals: list[tuple[bytes, bool]] = []
        self.gone = False

    def take(self, arrival: Arrival) -> bool:
        self.arrivals.append((arrival.chunk.body() if arrival.chunk is not None else b"", arrival.closed))
        self.offset = arrival.end
        return not arrival.closed

    def end(self) -> None:
        self.gone = True


async def followed(commands: list[c.Command], max_bytes: int = 1 << 20) -> CollectingReader:
    """What a reader at the end of an empty stream receives of commands that become durable together."""
    engine = Engine.in_memory()
    tails = LiveTails(engine, max_bytes)
    ready = await engine.submit(c.CreateStream("s", "text/plain"))
    tail = tails.enter(ready.log_id, Form.BYTES)
    tail.know(await engine.submit(ReadStream("s")))
    reader = CollectingReader(0)
    tail.join(reader)
    await asyncio.gather(*(engine.submit(command) for command in commands))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    tails.leave(tail)
    await engine.close()
    return reader


def append(text: bytes, *, close: bool = False) -> c.AppendStream:
    return c.AppendStream("s", "text/plain", pack_one(text) if text else b"", bool(text), len(text), close=close)


def test_appends_that_became_durable_together_arrive_together():
    reader = asyncio.run(followed([append(b"a"), append(b"b"), append(b"c", close=True)]))
    assert reader.arrivals == [(b"abc", True)]


def test_the_close_arrives_with_the_last_chunk_and_not_before():
    reader = asyncio.run(followed([append(b"a"), append(b"b"), append(b"c"), append(b"", close=True)], 1))
    assert reader.arrivals == [(b"a", False), (b"b", False), (b"c", True)]


def test_a_close_without_data_arrives_alone():
    assert asyncio.run(followed([append(b"", close=True)])).arrivals == [(b"", True)]


def test_a_deleted_log_ends_its_readers():
    reader = asyncio.run(followed([append(b"a"), c.DeleteStream("s")]))
    assert reader.gone


def test_a_reader_that_joins_between_two_arrivals_of_one_turn_gets_the_second():
    async def follow() -> tuple[CollectingReader, CollectingReader]:
        engine = Engine.in_memory()
        tails = LiveTails(engine, 1 << 20)
        ready = await engine.submit(c.CreateStream("s", "text/plain"))
        tail = tails.enter(ready.log_id, Form.BYTES)
        tail.know(await engine.submit(ReadStream("s")))
        early, late = CollectingReader(0), CollectingReader(1)
        tail.join(early)
        # Both become durable; the tail is notified of them one after the other, and a reader comes in between.
        advance = tail.advance
        ends: list[int] = []

        def advance_and_join(end: int = 0, *, closes: bool = False, gone: bool = False) -> None:
            advance(end, closes=closes, gone=gone)
            ends.append(end)
            if len(ends) == 1:
                tail.join(late)

        tail.advance = advance_and_join
        await asyncio.gather(engine.submit(append(b"a")), engine.submit(append(b"b")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert ends == [1, 2]
        tails.leave(tail)
        await engine.close()
        return early, late

    early, late = asyncio.run(follow())
    assert early.arrivals == [(b"a", False), (b"b", False)]
    assert late.arrivals == [(b"b", False)]
