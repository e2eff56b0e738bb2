"""The live end of a log when readers join while records arrive: no reader misses one."""

from __future__ import annotations

import asyncio

from driftq.core.model import commands as c
from driftq.core.model.queries import ReadStream
from driftq.engine.engine import Engine
from driftq.server.streams.stream_body import Form
from driftq.server.streams.tails import Arrival, LiveTails
from driftq.wire.records import pack_one


class Reading:
    """A reader that takes everything."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.seen = b""

    def take(self, arrival: Arrival) -> bool:
        self.seen += arrival.chunk.body() if arrival.chunk is not None else b""
        self.offset = arrival.end
        return not arrival.closed

    def end(self) -> None:
        self.offset = -1


def append(text: bytes) -> c.AppendStream:
    return c.AppendStream("s", "text/plain", pack_one(text), 1, len(text))


def test_a_reader_that_joins_between_two_arrivals_of_one_turn_gets_the_second():
    async def story() -> tuple[Reading, Reading]:
        engine = Engine.in_memory()
        tails = LiveTails(engine, 1 << 20)
        made = await engine.submit(c.CreateStream("s", "text/plain"))
        tail = tails.enter(made.log_id, Form.BYTES)
        tail.know(await engine.submit(ReadStream("s")))
        early, late = Reading(0), Reading(1)
        tail.join(early)
        # Both become durable; the tail is notified of them one after the other, and a reader comes in between.
        advance = tail.advance
        heard: list[int] = []

        def advance_and_join(end: int = 0, *, closes: bool = False, gone: bool = False) -> None:
            advance(end, closes=closes, gone=gone)
            heard.append(end)
            if len(heard) == 1:
                tail.join(late)

        tail.advance = advance_and_join
        await asyncio.gather(engine.submit(append(b"a")), engine.submit(append(b"b")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert heard == [1, 2]
        tails.leave(tail)
        await engine.close()
        return early, late

    early, late = asyncio.run(story())
    assert early.seen == b"ab"
    assert late.seen == b"b"
