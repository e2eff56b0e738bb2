"""Streams through the client: append, read, follow in both ways, fenced producers, conditional appends."""

from __future__ import annotations

import asyncio
import threading

import pytest

import driftq


def test_a_stream_is_created_written_read_and_closed(broker):
    stream = broker.stream("plain/1", "text/plain")
    assert stream.create(ttl_s=3_600).created
    assert not stream.create(ttl_s=3_600).created
    stream.append("one\n")
    end = stream.append("two\n").next_offset
    assert stream.read().text == "one\ntwo\n"
    assert stream.read(end).empty
    assert stream.close("three\n").closed
    described = broker.stream("plain/1").describe()
    assert (described.content_type, described.closed, described.ttl_s) == ("text/plain", True, 3_600)
    with pytest.raises(driftq.errors.StreamClosed):
        stream.append("four")
    assert "plain/1" in [entry.stream for entry in broker.streams.list("plain/").streams]
    stream.delete()
    with pytest.raises(driftq.errors.NotFound):
        stream.read()


def test_a_json_stream_keeps_message_boundaries(broker):
    stream = broker.stream("json/1", "application/json")
    stream.create(data=[{"n": 0}])
    stream.append({"n": 1}, [2, 3])
    stream.append(b'{"n":4}')
    assert broker.stream("json/1").read_all().json() == [{"n": 0}, {"n": 1}, [2, 3], {"n": 4}]


@pytest.mark.parametrize("live", ["sse", "long-poll"])
@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/octet-stream"])
def test_a_follower_sees_everything_in_order_until_the_end(broker, live, kind):
    path = f"follow/{live}/{kind}"
    stream = broker.stream(path, kind)
    stream.create()
    values = [{"n": number} if "json" in kind else f"line {number}\n" for number in range(30)]
    stream.append(*values[:10])

    def write() -> None:
        with broker.stream(path, kind).producer(linger_ms=0) as producer:
            for value in values[10:]:
                producer.append(value).result(10)
        broker.stream(path, kind).close()

    writer = threading.Thread(target=write)
    writer.start()
    chunks = list(broker.stream(path).follow(live=live))
    writer.join()
    if "json" in kind:
        assert [value for chunk in chunks for value in chunk.json()] == values
    else:
        assert b"".join(chunk.data for chunk in chunks) == "".join(values).encode()


def test_a_follower_can_stop_in_the_middle_and_resume(broker):
    stream = broker.stream("follow/resume", "application/json")
    stream.create(data=[1, 2])
    first = next(iter(stream.follow()))
    assert first.json() == [1, 2]
    stream.append(3)
    stream.close()
    assert [value for chunk in stream.follow(first.next_offset) for value in chunk.json()] == [3]


def test_an_append_can_depend_on_where_the_stream_ends(broker):
    stream = broker.stream("cas/1", "application/json")
    end = stream.create().next_offset
    moved = stream.append(1, if_match=end).next_offset
    with pytest.raises(driftq.errors.TailMoved) as caught:
        stream.append(2, if_match=end)
    assert caught.value.offset == moved


def test_an_update_decides_again_after_a_conflict(broker):
    stream = broker.stream("cas/2", "application/json")
    stream.create()
    asked = []

    def decide(chunk):
        asked.append(chunk.json())
        if len(asked) == 1:
            broker.stream("cas/2", "application/json").append("another writer")
        return {"seen": len(chunk.json())}

    stream.update(decide)
    assert asked == [[], ["another writer"]]
    assert stream.read().json() == ["another writer", {"seen": 1}]
    end = stream.update(lambda chunk: None)
    assert end == stream.describe().next_offset


def test_what_a_message_writes_is_fenced_by_its_lease(broker):
    broker.topics.create("fenced")
    broker.stream("fenced/out", "text/plain").create()
    broker.send("fenced", "work")
    (first,) = broker.claim("fenced", "g")
    zombie = first.stream("fenced/out")
    zombie.append("first ").result(10)
    first.nack(delay_ms=0)
    (second,) = broker.claim("fenced", "g", wait_ms=5_000)
    assert second.lease_version > first.lease_version
    with second.stream("fenced/out") as output:
        output.append("second ")
    with pytest.raises(driftq.errors.StaleEpoch):
        zombie.append("too late").result(10)
    with pytest.raises(driftq.errors.NotWritten):
        zombie.close()
    assert broker.stream("fenced/out").read().text == "first second "


def test_the_async_stream_has_the_same_methods(server):
    async def talk() -> None:
        async with driftq.connect_async(f"http://127.0.0.1:{server.port}") as broker:
            stream = broker.stream("async/1", "application/json")
            await stream.create()
            async with stream.producer("writer") as producer:
                for number in range(200):
                    await producer.append({"n": number})
                await producer.flush()
                assert (producer.pending_count, producer.in_flight_count, producer.written_count) == (0, 0, 200)
            await stream.close()
            seen = [value["n"] async for chunk in broker.stream("async/1").follow() for value in chunk.json()]
            assert seen == list(range(200))

    asyncio.run(talk())


def test_a_closed_stream_ends_its_producer_with_a_reason(broker):
    stream = broker.stream("closed/1", "text/plain")
    stream.create()
    producer = stream.producer(linger_ms=0)
    producer.append("a").result(10)
    stream.close()
    with pytest.raises(driftq.errors.StreamClosed):
        producer.append("b").result(10)
    with pytest.raises(driftq.errors.NotWritten):
        producer.close()
