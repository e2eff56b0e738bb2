"""Sorted paths equal a sorted list, whatever is added and removed, and a list of streams costs what it shows."""

from __future__ import annotations

import time
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftq.core.state import sorted_paths
from driftq.core.state.sorted_paths import SortedPaths

names = st.text("ab", max_size=3)


@given(st.lists(st.tuples(st.booleans(), names), max_size=80), names, names)
def test_sorted_paths_equal_a_sorted_list(steps: list[tuple[bool, str]], prefix: str, after: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_paths, "BLOCK_PATHS", 3)
        paths = SortedPaths()
        known: set[str] = set()
        for adds, name in steps:
            if not adds:
                paths.discard(name)
                known.discard(name)
            elif name not in known:
                paths.add(name)
                known.add(name)
        assert list(paths.start_at(prefix, after)) == sorted(n for n in known if n >= prefix and n > after)
        assert list(paths.start_at(prefix, "")) == sorted(n for n in known if n >= prefix and n)


def test_a_page_after_many_new_paths_costs_no_sort():
    paths = SortedPaths()
    for number in range(100_000):
        paths.add(f"runs/{number * 7_919 % 100_003}")
    start_s = time.thread_time()
    page = list(islice(paths.start_at("runs/5", "runs/55"), 100))
    assert time.thread_time() - start_s < 0.005
    assert page == sorted(page)
    assert len(page) == 100
