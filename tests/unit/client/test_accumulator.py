"""Messages on their way into batches: bounded, counted, and none left behind."""

from __future__ import annotations

import random

import pytest

from driftq.client.producer.accumulator import COUNT_MAX, OVERHEAD_BYTES, RESERVE_BYTES, Accumulator, Receipts

NOW_S = 1e12  # everything has lingered by then


def gathering(batch_bytes: int = 1 << 20, buffer_bytes: int = 64 << 20) -> Accumulator:
    return Accumulator(batch_bytes, buffer_bytes, lambda: None)


def taken(found: Accumulator) -> list[list[bytes]]:
    """Take and end everything; the values of each batch."""
    batches = []
    while partitions := found.partitions():
        for partition in partitions:
            while (batch := found.take(partition, NOW_S, 0.0)) is not None:
                batches.append(list(batch.values))
                batch.end(None, None)
                found.batch_ended(batch)
    return batches


def test_a_batch_is_sealed_when_it_is_large_enough():
    found = gathering(batch_bytes=1_000)
    for number in range(25):
        assert found.put(0, b"%099d" % number, b"", b"", None) is not None
    batches = taken(found)
    assert [len(batch) for batch in batches] == [6, 6, 6, 6, 1]
    assert [value for batch in batches for value in batch] == [b"%099d" % number for number in range(25)]


def test_a_batch_has_no_more_messages_than_a_broker_takes():
    found = gathering(batch_bytes=1 << 30, buffer_bytes=1 << 40)
    for _ in range(COUNT_MAX + 1_000):
        found.put(0, b"", b"", b"", None)
    sizes = [len(batch) for batch in taken(found)]
    assert sum(sizes) == COUNT_MAX + 1_000
    assert max(sizes) <= COUNT_MAX + RESERVE_BYTES // OVERHEAD_BYTES


@pytest.mark.parametrize("way", ["one", "plain", "many"])
@pytest.mark.parametrize("buffer_bytes", [1_000, 50_000])
def test_no_more_is_held_than_the_buffer_has(way, buffer_bytes):
    chance = random.Random(7)
    found = gathering(batch_bytes=4_000, buffer_bytes=buffer_bytes)
    for _ in range(300):
        partition, value = chance.randrange(3), b"x" * chance.randrange(400)
        if way == "many":
            found.put_many(partition, [value] * 3, b"k", 0, Receipts())
        elif way == "plain":
            found.put_plain(partition, value)
        else:
            found.put(partition, value, b"", b"", None)
        assert found.buffered_bytes <= buffer_bytes
        if chance.random() < 0.05:
            taken(found)
            assert found.buffered_bytes == 0
            assert found.is_empty
    taken(found)
    assert (found.buffered_bytes, found.pending) == (0, 0)


def test_a_message_larger_than_the_buffer_travels_alone():
    found = gathering(buffer_bytes=100)
    assert found.put(0, b"x" * 5_000, b"", b"", None) is not None
    assert found.put(0, b"y", b"", b"", None) is None
    assert taken(found) == [[b"x" * 5_000]]
    assert found.put(0, b"y", b"", b"", None) is not None


def test_what_lingers_makes_room_for_whoever_waits():
    found = gathering(buffer_bytes=300)
    assert found.put(0, b"x" * 100, b"", b"", None) is not None
    assert found.put(0, b"x" * 100, b"", b"", None) is None
    assert found.take(0, 0.0, 60.0) is None
    with found.lock:
        found.seal_lingering()
    assert found.take(0, 0.0, 60.0) is not None


def test_many_are_taken_up_to_where_the_room_ends_and_their_receipts_know_them():
    found = gathering(batch_bytes=1_000, buffer_bytes=2_500)
    values = [b"%099d" % number for number in range(30)]
    receipts = Receipts()
    end = found.put_many(0, values, b"", 0, receipts)
    assert 10 <= end < 30
    assert len(receipts) == end
    assert not receipts.done
    assert [receipt.batch.values[receipt.index] for receipt in receipts] == values[:end]
    taken(found)
    assert receipts.done
    assert receipts.result(0) is receipts


def test_keys_and_heads_are_columns_from_the_first_that_has_one():
    found = gathering()
    found.put(0, b"a", b"", b"", None)
    found.put(0, b"b", b"k", b"", None)
    found.put_plain(0, b"p")
    found.put_many(0, [b"c", b"d"], b"", 0, Receipts())
    found.put_many(0, [b"e"], b"m", 0, Receipts())
    batch = found.take(0, NOW_S, 0.0)
    assert batch is not None
    assert batch.values == [b"a", b"b", b"p", b"c", b"d", b"e"]
    assert batch.keys == [b"", b"k", b"", b"", b"", b"m"]
    assert batch.heads == [b""] * 6


def test_a_closed_gathering_takes_nothing():
    found = gathering()
    found.closed = True
    assert found.put(0, b"a", b"", b"", None) is None
    assert found.put_plain(0, b"a") is None
    assert found.put_many(0, [b"a"], b"", 0, Receipts()) == 0
