"""Ranges against plain sets and dicts: after the same operations both hold the same offsets."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftq.core.model import ranges as module
from driftq.core.model.ranges import RangeSet, runs
from driftq.core.state import held_ranges
from driftq.core.state.held_ranges import HeldRanges
from driftq.core.state.leases import Lease

offsets = st.integers(0, 40)
spans = st.tuples(offsets, st.integers(1, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def check(ranges: RangeSet, expected: set[int]) -> None:
    assert {number for first, end in ranges for number in range(first, end)} == expected
    assert ranges.count == len(expected)
    assert bool(ranges) == bool(expected)
    edges = [edge for pair in ranges for edge in pair]
    assert edges == sorted(set(edges)), "sorted, with a gap between ranges"
    assert len(ranges) == len(list(ranges)) == sum(number - 1 not in expected for number in expected)
    assert ranges.lowest() == next(iter(ranges), None)
    for number in range(60):
        assert (number in ranges) == (number in expected)
        assert ranges.above(number) == next((pair for pair in ranges if pair[1] > number), None)
    for first, end in ((0, 60), (7, 23), (12, 13)):
        assert list(ranges.within(first, end)) == sorted(expected & set(range(first, end)))
        assert all(first <= low < high <= end for low, high in ranges.overlapping(first, end))
        assert ranges.count_between(first, end) == len(expected & set(range(first, end)))


@pytest.fixture(params=[2, 3, 1_024], ids="blocks of {}".format, scope="module")
def block_ranges(request):
    """Small blocks, so that a few ranges fill many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_RANGES", request.param)
        patch.setattr(held_ranges, "BLOCK_RANGES", request.param)
        yield request.param


@given(steps=st.lists(st.tuples(st.booleans(), spans)))
def test_a_range_set_is_a_set_of_integers(block_ranges, steps):
    ranges, expected = RangeSet(), set()
    for adds, (first, end) in steps:
        if adds:
            ranges.add(first, end)
            expected |= set(range(first, end))
        else:
            ranges.discard(first, end)
            expected -= set(range(first, end))
        check(ranges, expected)
    copy = RangeSet()
    for packed in ranges.packed(ranges_max=4):
        copy.unpack(*packed)
    check(copy, expected)
    while ranges:
        expected -= set(range(*ranges.pop_front()))
        check(ranges, expected)


@given(st.sets(offsets))
def test_runs_fold_offsets_into_the_fewest_ranges(numbers):
    ranges = runs(sorted(numbers))
    assert [number for first, end in ranges for number in range(first, end)] == sorted(numbers)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(ranges))


@given(st.lists(st.tuples(st.sampled_from(["add", "cut", "look"]), spans, st.integers(0, 2))))
def test_held_ranges_are_a_dict_from_offsets_to_leases(block_ranges, steps):
    leases = [Lease(f"owner{number}", f"token{number}", 0, 0) for number in range(3)]
    ranges: HeldRanges = HeldRanges()
    expected: dict[int, Lease] = {}
    for what, (first, end), number in steps:
        span = range(first, end)
        if what == "add":
            if expected.keys() & set(span):
                continue  # a held offset cannot be held again
            ranges.add(first, end, leases[number])
            expected |= dict.fromkeys(span, leases[number])
        else:
            pieces = list(ranges.overlapping(first, end))
            if what == "cut":
                assert ranges.cut(first, end) == pieces
            held = {offset: lease for low, high, lease in pieces for offset in range(low, high)}
            assert held == {offset: expected[offset] for offset in span if offset in expected}
            if what == "cut":
                expected = {offset: lease for offset, lease in expected.items() if offset not in span}
        assert {offset: ranges.lease_at(offset) for offset in range(60)} == {n: expected.get(n) for n in range(60)}
        items = list(ranges)
        assert all(low < high for low, high, _ in items)
        assert all(a[1] < b[0] or (a[1] == b[0] and a[2] is not b[2]) for a, b in itertools.pairwise(items))
        assert len(ranges) == len(items)
        assert bool(ranges) == bool(expected)
        assert ranges.lowest() == min(expected, default=None)
        assert all(len(block.firsts) <= block_ranges for block in ranges._blocks)
