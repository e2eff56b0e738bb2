"""The delayed messages of a log against a plain dictionary, and the copies that groups take of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from driftq.core.state.delays import Delays

times = st.lists(st.integers(1, 12), max_size=40)
steps = st.lists(st.tuples(st.sampled_from(["end", "end_until", "trim", "append"]), st.integers(0, 40)), max_size=8)


def check(delays: Delays, expected: dict[int, int]) -> None:
    assert list(delays.times.items()) == sorted(expected.items())
    assert list(delays.timers) == sorted((at_ms, offset) for offset, at_ms in expected.items())
    assert len(delays) == len(expected)


@given(first=times, steps=steps, now_ms=st.integers(0, 13), start=st.integers(0, 41))
def test_delays_are_kept_by_time_and_by_offset(first, steps, now_ms, start):
    expected = dict(enumerate(first))
    delays = Delays((at_ms, offset) for offset, at_ms in sorted(expected.items(), key=lambda item: item[1]))
    check(delays, expected)
    end = len(first)
    for step, number in steps:
        if step == "append":
            delays.extend([(number, end), (5, end + 1)])
            expected |= {end: number, end + 1: 5}
            end += 2
        elif step == "end":
            delays.end(number)
            expected.pop(number, None)
        elif step == "end_until":
            delays.end_until(number)
            expected = {offset: at_ms for offset, at_ms in expected.items() if at_ms > number}
        else:
            delays.trim(number)
            expected = {offset: at_ms for offset, at_ms in expected.items() if offset >= number}
        check(delays, expected)
    ahead = delays.ahead(now_ms, start)
    check(ahead, {offset: at_ms for offset, at_ms in expected.items() if at_ms > now_ms and offset >= start})
    ahead.end_until(99)
    check(delays, expected)
