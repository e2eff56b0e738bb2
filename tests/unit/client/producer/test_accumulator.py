"""The accumulator: batches are bounded and counted, and no message stays behind."""

from __future__ import annotations

import random

import pytest

from driftq.client.producer.accumulator import COUNT_MAX, OVERHEAD_BYTES, RESERVE_BYTES, Accumulator
from driftq.client.producer.producer_batch import Receipts

NOW_S = 1e12  # everything has lingered by then


def new_accumulator(batch_bytes: int = 1 << 20, buffer_bytes: int = 64 << 20) -> Accumulator:
    return Accumulator(batch_bytes, buffer_bytes, lambda: None)


def take_all(accumulator: Accumulator) -> list[list[bytes]]:
    """Take and end everything; the values of each batch."""
    batches = []
    while partitions := accumulator.partitions():
        for partition in partitions:
            while (batch := accumulator.take(partition, NOW_S, 0.0)) is not None:
                batches.append(list(batch.values))
                batch.end(None, None)
                accumulator.batch_ended(batch)
    return batches


def test_a_batch_is_sealed_when_it_is_large_enough():
    accumulator = new_accumulator(batch_bytes=1_000)
    for number in range(25):
        assert accumulator.put(0, b"%099d" % number, b"", b"", None) is not None
    batches = take_all(accumulator)
    assert [len(batch) for batch in batches] == [6, 6, 6, 6, 1]
    assert [value for batch in batches for value in batch] == [b"%099d" % number for number in range(25)]


def test_a_batch_has_no_more_messages_than_a_broker_takes():
    accumulator = new_accumulator(batch_bytes=1 << 30, buffer_bytes=1 << 40)
    for _ in range(COUNT_MAX + 1_000):
        accumulator.put(0, b"", b"", b"", None)
    sizes = [len(batch) for batch in take_all(accumulator)]
    assert sum(sizes) == COUNT_MAX + 1_000
    assert max(sizes) <= COUNT_MAX + RESERVE_BYTES // OVERHEAD_BYTES


@pytest.mark.parametrize("way", ["one", "plain", "many"])
@pytest.mark.parametrize("buffer_bytes", [1_000, 50_000])
def test_no_more_is_buffered_than_the_limit(way, buffer_bytes):
    chance = random.Random(7)
    accumulator = new_accumulator(batch_bytes=4_000, buffer_bytes=buffer_bytes)
    for _ in range(300):
        partition, value = chance.randrange(3), b"x" * chance.randrange(400)
        if way == "many":
            accumulator.put_many(partition, [value] * 3, b"k", 0, Receipts())
        elif way == "plain":
            accumulator.put_plain(partition, value)
        else:
            accumulator.put(partition, value, b"", b"", None)
        assert accumulator.buffered_bytes <= buffer_bytes
        if chance.random() < 0.05:
            take_all(accumulator)
            assert accumulator.buffered_bytes == 0
            assert accumulator.is_empty
    take_all(accumulator)
    assert (accumulator.buffered_bytes, accumulator.pending) == (0, 0)


def test_a_message_larger_than_the_buffer_is_sent_alone():
    accumulator = new_accumulator(buffer_bytes=100)
    assert accumulator.put(0, b"x" * 5_000, b"", b"", None) is not None
    assert accumulator.put(0, b"y", b"", b"", None) is None
    assert take_all(accumulator) == [[b"x" * 5_000]]
    assert accumulator.put(0, b"y", b"", b"", None) is not None


def test_lingering_batches_are_sealed_for_a_caller_that_waits_for_room():
    accumulator = new_accumulator(buffer_bytes=300)
    assert accumulator.put(0, b"x" * 100, b"", b"", None) is not None
    assert accumulator.put(0, b"x" * 100, b"", b"", None) is None
    assert accumulator.take(0, 0.0, 60.0) is None
    with accumulator.lock:
        accumulator.seal_lingering()
    assert accumulator.take(0, 0.0, 60.0) is not None


def test_put_many_takes_what_fits_and_its_receipts_know_their_messages():
    accumulator = new_accumulator(batch_bytes=1_000, buffer_bytes=2_500)
    values = [b"%099d" % number for number in range(30)]
    receipts = Receipts()
    end = accumulator.put_many(0, values, b"", 0, receipts)
    assert 10 <= end < 30
    assert len(receipts) == end
    assert not receipts.done
    assert [receipt.batch.values[receipt.index] for receipt in receipts] == values[:end]
    take_all(accumulator)
    assert receipts.done
    assert receipts.result(0) is receipts


def test_keys_and_heads_are_columns_from_the_first_message_that_has_one():
    accumulator = new_accumulator()
    accumulator.put(0, b"a", b"", b"", None)
    accumulator.put(0, b"b", b"k", b"", None)
    accumulator.put_plain(0, b"p")
    accumulator.put_many(0, [b"c", b"d"], b"", 0, Receipts())
    accumulator.put_many(0, [b"e"], b"m", 0, Receipts())
    batch = accumulator.take(0, NOW_S, 0.0)
    assert batch is not None
    assert batch.values == [b"a", b"b", b"p", b"c", b"d", b"e"]
    assert batch.keys == [b"", b"k", b"", b"", b"", b"m"]
    assert batch.heads == [b""] * 6


def test_a_closed_accumulator_takes_nothing():
    accumulator = new_accumulator()
    accumulator.closed = True
    assert accumulator.put(0, b"a", b"", b"", None) is None
    assert accumulator.put_plain(0, b"a") is None
    assert accumulator.put_many(0, [b"a"], b"", 0, Receipts()) == 0
