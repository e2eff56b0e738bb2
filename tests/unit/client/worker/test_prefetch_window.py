"""The window of a worker: it grows while calls are quick, and gives back what waits when they turn slow."""

from __future__ import annotations

import pytest

from driftq.client.worker.options import WorkerOptions
from driftq.client.worker.prefetch_window import HELD_PER_CALL_MAX, PrefetchWindow


def handle(window: PrefetchWindow, count: int) -> PrefetchWindow:
    for _ in range(count):
        window.on_handled()
    return window


@pytest.mark.parametrize(
    ("handled", "size"),
    [(0, 8), (15, 8), (100, 50), (1_000, 4 * HELD_PER_CALL_MAX)],
    ids=["nothing", "slow", "quick", "as quick as can be"],
)
def test_a_worker_holds_what_it_handles_in_a_twentieth_of_a_second(handled, size):
    window = PrefetchWindow(WorkerOptions(concurrency=4), 0.0)
    handle(window, handled).measure(0.1)
    assert window.size == size


def test_the_window_shrinks_with_the_calls():
    window = PrefetchWindow(WorkerOptions(concurrency=4), 0.0)
    handle(window, 100).measure(0.1)
    handle(window, 1).measure(0.2)
    assert window.size == 8


def test_a_moment_is_too_short_to_judge():
    window = PrefetchWindow(WorkerOptions(concurrency=4), 0.0)
    handle(window, 20).measure(0.001)
    assert window.size == 8


def test_a_named_prefetch_is_kept_and_nothing_is_given_back():
    window = PrefetchWindow(WorkerOptions(concurrency=4, prefetch=10), 0.0)
    handle(window, 1_000).measure(0.1)
    assert window.size == 14
    assert window.excess(10, 10.0) == 0


def test_a_large_window_is_filled_by_halves_and_a_small_one_by_quarters():
    window = PrefetchWindow(WorkerOptions(concurrency=4), 0.0)
    assert window.claim_min == 2
    handle(window, 100).measure(0.1)
    assert window.claim_min == 25


def test_what_would_wait_for_long_is_given_back():
    window = PrefetchWindow(WorkerOptions(concurrency=4), 0.0)
    handle(window, 10)
    assert window.excess(60, 0.1) == 10, "the calls handle 50 in half a second"
    assert window.excess(50, 0.2) == 46, "none ended: only what a slow worker holds is kept"
    assert window.excess(4, 0.3) == 0


def test_a_worker_of_one_call_at_a_time_gives_nothing_back():
    """The order of its messages would change."""
    window = PrefetchWindow(WorkerOptions(concurrency=1), 0.0)
    handle(window, 1_000).measure(0.1)
    assert window.size == HELD_PER_CALL_MAX
    assert window.excess(15, 10.0) == 0
