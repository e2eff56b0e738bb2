"""Packed batches with many heads are read in slices, in the order in which they arrived."""

from __future__ import annotations

import asyncio

from driftq.server.http import Response, reply_of
from driftq.server.packed_batch import HEADS_AT_ONCE, PackedReader
from driftq.wire.records import Record, pack

HEAD = b'{"envelope":{"labels":{"a":"b"}}}'
MIB = 1 << 20


def batch_of(count: int, head: bytes = HEAD) -> bytes:
    return pack([Record(b"v", b"", head)] * count)


def test_a_batch_waits_for_a_slower_one_of_its_place_and_for_no_other():
    reader = PackedReader(MIB, 16 * MIB)
    stored: list[tuple[str, int]] = []

    def read(place: str, count: int, head: bytes = HEAD):
        def store(batch) -> Response:
            stored.append((place, batch.header.count))
            return Response(200)

        return asyncio.ensure_future(reply_of(reader.read(batch_of(count, head), place, store)))

    many = 4 * HEADS_AT_ONCE

    async def read_all() -> None:
        answers = [read("a", many), read("a", 1), read("b", 2), read("a", many + 1), read("a", 3)]
        assert [reply.status for reply in await asyncio.gather(*answers)] == [200] * 5

    asyncio.run(read_all())
    assert stored[0] == ("b", 2)
    assert stored[1:] == [("a", many), ("a", 1), ("a", many + 1), ("a", 3)]


def test_a_refused_batch_holds_up_nothing():
    reader = PackedReader(MIB, 16 * MIB)

    def store(batch) -> Response:
        return Response(200)

    wrong = pack([Record(b"v", b"", HEAD)] * 2 * HEADS_AT_ONCE + [Record(b"v", b"", b"no JSON")])

    async def read_both() -> None:
        first = asyncio.ensure_future(reply_of(reader.read(wrong, "a", store)))
        second = asyncio.ensure_future(reply_of(reader.read(batch_of(1), "a", store)))
        assert [reply.status for reply in await asyncio.gather(first, second)] == [400, 200]

    asyncio.run(read_both())
