"""Keys of produces and job ids: forgotten bucket by bucket, and never while a job is unfinished."""

from __future__ import annotations

import time

import pytest

from driftq.core.model.commands import ProduceKey
from driftq.core.model.snapshot_facts import KeyState
from driftq.core.state.idempotency_keys import (
    BUCKET_LOOKS_MAX,
    BUCKET_MS,
    SWEPT_AT_ONCE,
    ProducedKey,
    ProducedKeyTable,
    job_key,
    produce_scope,
)


class Jobs:
    """A tenure in which a test says what is unfinished."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.ended = 0
        self.topic = "t"

    def is_unfinished(self, log_id: int, offset: int) -> bool:
        return offset in self.open

    def ended_ms(self, log_id: int) -> int:
        return self.ended

    def topic_of(self, log_id: int) -> str:
        return self.topic


def plain(offset: int, expires_ms: int) -> ProducedKey:
    return ProducedKey(1, offset, 1, 0, expires_ms)


def job(offset: int, at_ms: int, ttl_ms: int = 1_000) -> ProducedKey:
    return ProducedKey(1, offset, 1, 0, at_ms + ttl_ms, ttl_ms)


def scope(job_id: str, topic: str = "t") -> str:
    return produce_scope(ProduceKey("", topic, job_key(job_id)))


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def keys(jobs: Jobs) -> ProducedKeyTable:
    return ProducedKeyTable(jobs)


def swept(keys: ProducedKeyTable, now_ms: int) -> None:
    """Every sweep that is due."""
    while until_ms := keys.due_ms(now_ms):
        keys.sweep(until_ms, now_ms)


def test_a_key_is_known_until_its_time_and_not_at_it(keys):
    keys.remember("k", plain(7, 100))
    assert keys.find("k", 99) == plain(7, 100)
    assert keys.find("k", 100) is None


def test_keys_that_are_over_go_when_their_bucket_does(keys):
    for number in range(1_000):
        keys.remember(f"k{number}", plain(number, 10 * number))
    assert keys.next_ms() == BUCKET_MS
    swept(keys, 5_000)
    assert len(keys) == 500
    assert keys.next_ms() == 5_000 + BUCKET_MS
    swept(keys, 20_000)
    assert (len(keys), keys.next_ms(), keys.due_ms(10**9)) == (0, None, 0)


def test_the_count_of_live_keys_does_not_wait_for_the_sweep(keys):
    for number in range(100):
        keys.remember(f"k{number}", plain(number, 1_000 if number < 60 else 9_000))
    assert keys.live(900) == 100
    assert keys.live(1_000 + BUCKET_MS) == 40
    assert len(keys) == 100


def test_one_sweep_drops_a_bounded_number(keys):
    for number in range(3 * SWEPT_AT_ONCE):
        keys.remember(f"k{number}", plain(number, number))
    keys.sweep(keys.due_ms(10**6), 10**6)
    assert 2 * SWEPT_AT_ONCE <= len(keys) < 3 * SWEPT_AT_ONCE
    swept(keys, 10**6)
    assert len(keys) == 0


def test_a_key_that_is_repeated_is_stored_once(keys):
    for now_ms in range(0, 100_000, 100):
        keys.remember("k", plain(now_ms, now_ms + 100))
    assert len(keys) == 1
    assert len(list(keys.snapshot())) == 1


def test_a_job_id_is_taken_while_the_job_is_unfinished(keys, jobs):
    jobs.open = {5}
    keys.remember(scope("j"), job(5, 0))
    for now_ms in range(0, 100_000, 700):
        swept(keys, now_ms)
        assert keys.find(scope("j"), now_ms) is not None
    assert len(keys) == 1


def test_a_job_id_is_taken_for_its_time_after_the_end(keys, jobs):
    jobs.open = {5}
    keys.remember(scope("j"), job(5, 0))
    swept(keys, 50_000)
    jobs.open = set()
    keys.end_jobs(1, ((5, 6),), 50_100)
    swept(keys, 51_000)
    assert keys.find(scope("j"), 51_099) is not None
    assert keys.find(scope("j"), 51_400) is None
    swept(keys, 52_000)
    assert len(keys) == 0


def test_a_job_that_ended_without_being_settled_stays_known_for_its_time(keys, jobs):
    jobs.open = {5}
    keys.remember(scope("j"), job(5, 0))
    jobs.open, jobs.ended = set(), 30_000
    swept(keys, 30_500)
    assert keys.find(scope("j"), 30_999) is not None
    assert keys.find(scope("j"), 31_000) is None or keys.find(scope("j"), 31_200) is None
    swept(keys, 40_000)
    assert len(keys) == 0


def test_very_many_unfinished_jobs_are_looked_at_in_parts(keys, jobs):
    count = 3 * BUCKET_LOOKS_MAX
    jobs.open = set(range(count))
    for offset in range(count):
        keys.remember(scope(f"j{offset}"), job(offset, 0, 100_000))
    swept(keys, 100_000 + BUCKET_MS)
    first = keys.next_ms()
    assert first is not None
    assert keys.due_ms(first) == first
    counts = sorted(keys._counts.values())
    assert sum(counts) == count
    assert counts[-1] <= BUCKET_LOOKS_MAX


def test_a_routed_job_is_found_under_both_topics(keys, jobs):
    jobs.topic = "routed"
    keys.remember(scope("j", "asked"), job(5, 0))
    assert keys.find_job(scope("j", "asked"), 1) == keys.find_job(scope("j", "routed"), 1) == job(5, 0)
    assert keys.find(scope("j", "routed"), 1) is None, "the id is not taken there"
    keys.remember(scope("j", "routed"), job(6, 0))
    assert keys.find_job(scope("j", "routed"), 1) == job(6, 0)
    keys.forget_log(1)
    assert keys.find_job(scope("j", "routed"), 1) is None
    assert len(keys) == 0


@pytest.mark.parametrize("now_ms", [0, 900, 1_250, 3_000, 9_999])
def test_keys_from_images_are_swept_as_the_others_are(keys, jobs, now_ms):
    jobs.open = {3, 4}
    for number in range(10):
        if number % 3:
            keys.remember(scope(f"j{number}"), job(number, 100 * number))
        else:
            keys.remember(f"k{number}", plain(number, 400 * number))
    swept(keys, now_ms)
    again = ProducedKeyTable(jobs)
    for fact in keys.snapshot():
        again.restore(fact)
    jobs.open = {4}
    for later_ms in range(now_ms, now_ms + 5_000, 300):
        assert list(again.snapshot()) == list(keys.snapshot())
        assert again.next_ms() == keys.next_ms()
        assert again.due_ms(later_ms) == keys.due_ms(later_ms)
        swept(keys, later_ms)
        swept(again, later_ms)


def test_an_old_snapshot_does_not_know_a_job_ids_ttl(keys, jobs):
    jobs.open = {5}
    keys.restore(KeyState(scope("j"), 1, 5, 1, 0, 10))
    assert keys.find(scope("j"), 10**9) is not None


@pytest.mark.serial
def test_keys_that_live_for_a_day_make_no_sweep_and_no_scrape_slower():
    def cost_us(buckets: int) -> float:
        table = ProducedKeyTable(Jobs())
        for number in range(buckets):
            table.remember(f"k{number}", plain(number, 10_000 + number * BUCKET_MS))
        now_ms = 10_000 + 20 * BUCKET_MS
        best_s = float("inf")
        for _ in range(9):
            started_s = time.thread_time()
            for _ in range(50):
                assert table.due_ms(now_ms) == now_ms
                assert table.live(now_ms) == buckets - 20
            best_s = min(best_s, time.thread_time() - started_s)
        return best_s / 50 * 1e6

    few_us, many_us = cost_us(100), cost_us(50_000)
    assert many_us < 2 * few_us + 5, (few_us, many_us)


def test_a_bucket_that_was_left_and_filled_again_is_counted_once():
    table = ProducedKeyTable(Jobs())
    table.remember("first", plain(0, 1_000))  # stays at the top of the heap
    for offset in range(1, 4):
        table.remember("again", plain(offset, 2_000))
        table.forget("again")
    table.remember("again", plain(4, 2_000))
    assert table.live(5_000) == 0
    assert len(table) == 2


@pytest.mark.serial
def test_job_ids_that_expire_together_are_swept_some_at_a_time():
    def longest_s() -> float:
        keys = ProducedKeyTable(Jobs())
        for number in range(100_000):
            scope = produce_scope(ProduceKey("", "t", job_key(str(number))))
            keys.remember(scope, ProducedKey(1, number, 1, 0, 10_000 + number // 8, 60_000))
        sweeps_s: list[float] = []
        while len(keys):
            until_ms = keys.due_ms(100_000)
            started_s = time.thread_time()
            keys.sweep(until_ms, 1_000_000)
            sweeps_s.append(time.thread_time() - started_s)
        return max(sweeps_s)

    assert min(longest_s() for _ in range(3)) < 0.01
