"""A claim with `max_bytes`: where it ends, what it always takes, and that neither retries nor new messages starve."""

from __future__ import annotations

import pytest

from driftq.core.model import commands as c
from driftq.core.transitions.claim_selection import MESSAGE_BYTES
from tests.support.broker_fixture import BrokerFixture, held, offsets

SIZE = 10_000
COST = SIZE + MESSAGE_BYTES


def fixture(count: int, partitions: int = 1, size: int = SIZE) -> BrokerFixture:
    at = BrokerFixture()
    at.topic(partitions=partitions)
    for partition in range(partitions):
        for _ in range(count):
            at.produce(b"x" * size, partition=partition)
    return at


@pytest.mark.parametrize(
    ("max_bytes", "count"),
    [(0, 10), (1, 1), (COST, 1), (2 * COST - 1, 1), (2 * COST, 2), (7 * COST, 7), (99 * COST, 10)],
)
def test_a_claim_ends_where_the_bytes_do_and_takes_at_least_one_message(max_bytes, count):
    at = fixture(10)
    assert offsets(at.claim(10, max_bytes=max_bytes)) == list(range(count))
    assert offsets(at.claim(10)) == list(range(count, 10))


def test_a_run_inside_of_one_batch_is_cut():
    at = BrokerFixture()
    at.topic()
    at.produce(*[b"x" * SIZE] * 10)
    assert offsets(at.claim(10, max_bytes=3 * COST)) == [0, 1, 2]


def test_the_bytes_are_those_of_all_partitions_together():
    at = fixture(5, partitions=3)
    claimed = at.claim(100, max_bytes=7 * COST)
    assert len(offsets(claimed)) == 7
    assert len({delivery.partition for delivery in claimed.deliveries}) == 2


def test_a_large_message_after_small_ones_waits_for_the_next_claim():
    at = fixture(3, size=10)
    at.produce(b"x" * 1_000_000)
    at.produce(b"y")
    assert offsets(at.claim(10, max_bytes=100_000)) == [0, 1, 2]
    assert offsets(at.claim(10, max_bytes=100_000)) == [3]
    assert offsets(at.claim(10, max_bytes=100_000)) == [4]


@pytest.mark.parametrize("fitting", [1, 2, 5, 10])
def test_due_retries_and_new_messages_share_the_bytes(fitting):
    """With a ratio of 0.2, a fifth of what is delivered are retries, however few messages fit into a claim."""
    at = fixture(200)
    failed = at.claim(50)
    at.do(c.Nack("t", "g", "w", held((0, 50), token=failed.token), "no", 0))
    at.clock.move(60_000)
    retries = fresh = 0
    while retries + fresh < 40:
        claimed = at.claim(40, max_bytes=fitting * COST)
        assert 1 <= len(offsets(claimed)) <= fitting
        retries += sum(delivery.attempts == 2 for delivery in claimed.deliveries)
        fresh += sum(offset >= 50 for offset in offsets(claimed))
    assert 5 <= retries <= 12, (retries, fresh)


def test_a_retry_that_does_not_fit_is_not_lost():
    at = fixture(3)
    failed = at.claim(3)
    at.do(c.Nack("t", "g", "w", held((0, 3), token=failed.token), "no", 0))
    at.clock.move(60_000)
    delivered = [offsets(at.claim(10, max_bytes=COST)) for _ in range(3)]
    assert sorted(delivered) == [[0], [1], [2]]
