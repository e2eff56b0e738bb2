"""The queue of timers against a sorted list: after the same operations both hold the same items in the same order."""

from __future__ import annotations

from bisect import insort

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftq.core.state import timer_queue
from driftq.core.state.timer_queue import TimerQueue

items = st.tuples(st.integers(0, 12), st.integers(0, 12))


@pytest.fixture(params=[1, 2, 3, 512], ids="blocks of {}".format, scope="module")
def block_items(request):
    """Small blocks, so that a few items fill many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timer_queue, "BLOCK_ITEMS", request.param)
        yield request.param


def check(queue: TimerQueue[tuple[int, int]], expected: list[tuple[int, int]], block_items: int) -> None:
    assert list(queue) == expected
    assert queue.count == len(expected)
    assert bool(queue) == bool(expected)
    assert queue.next_ms() == (expected[0][0] if expected else None)
    for now_ms in range(-1, 14):
        assert list(queue.until(now_ms)) == [item for item in expected if item[0] <= now_ms]
        assert queue.after(now_ms) == next((item[0] for item in expected if item[0] > now_ms), None)
    assert all(0 < len(block) <= block_items for block in queue._blocks)


@given(steps=st.lists(items), first=st.sets(items))
def test_a_timer_queue_is_a_sorted_list_of_unique_items(block_items, steps, first):
    queue, expected = TimerQueue(first), sorted(first)
    check(queue, expected, block_items)
    for item in steps:  # what is there is removed, what is not there is added
        if item in expected:
            queue.remove(item)
            expected.remove(item)
        else:
            queue.add(item)
            insort(expected, item)
        check(queue, expected, block_items)
    with pytest.raises((AssertionError, IndexError)):
        queue.remove((99, 99))
    queue.clear()
    check(queue, [], block_items)


@given(batches=st.lists(st.sets(items), max_size=4), until_ms=st.integers(-1, 13))
def test_many_items_are_added_and_removed_like_single_ones(block_items, batches, until_ms):
    queue: TimerQueue[tuple[int, int]] = TimerQueue()
    expected: list[tuple[int, int]] = []
    for batch in batches:
        new = [item for item in batch if item not in expected]
        queue.extend(new)
        expected = sorted([*expected, *new])
        check(queue, expected, block_items)
    queue.remove_until(until_ms)
    check(queue, [item for item in expected if item[0] > until_ms], block_items)


@given(first=st.sets(items), changes=st.lists(st.tuples(st.booleans(), items)), number=st.integers(0, 13))
def test_a_copy_and_its_original_do_not_see_each_others_changes(block_items, first, changes, number):
    queues = [TimerQueue(first)]
    queues.append(queues[0].copy())
    contents = [sorted(first), sorted(first)]
    for of_copy, item in changes:
        queue, expected = queues[of_copy], contents[of_copy]
        if item in expected:
            queue.remove(item)
            expected.remove(item)
        else:
            queue.add(item)
            insort(expected, item)
    check(queues[0], contents[0], block_items)
    queues[1].remove_below(number)
    check(queues[1], [item for item in contents[1] if item[1] >= number], block_items)
    check(queues[0], contents[0], block_items)
    again = queues[0].copy()
    again.remove_until(number)
    check(again, [item for item in contents[0] if item[0] > number], block_items)
    again.extend([(20, 20), (0, 20)])
    check(queues[0], contents[0], block_items)
