"""The planner's laws: over any life of a query, every offset is planned once, and a plan is a function of its ends."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from driftq.spark.source import offsets
from driftq.spark.source.offsets import LogSpan, OffsetRange, Reached, TriggerLimits

LOGS = [("a", 0), ("a", 1), ("b", 0), ("c", 0), ("c", 1), ("c", 2)]

limits = st.builds(
    TriggerLimits,
    offsets_max=st.none() | st.integers(1, 50),
    bytes_max=st.none() | st.integers(1, 5_000),
    partitions_min=st.integers(0, 12),
    partition_bytes=st.integers(100, 10_000),
)
# One moment in the life of a query: how much each log has grown by then, and the options it was started with.
moments = st.lists(
    st.tuples(st.lists(st.integers(0, 40), min_size=len(LOGS), max_size=len(LOGS)), limits), min_size=1, max_size=12
)
record_sizes = st.lists(st.floats(0, 500), min_size=len(LOGS), max_size=len(LOGS))


def spans(ends: list[int], sizes: list[float], present: int) -> list[LogSpan]:
    return [
        LogSpan(topic, partition, 0, end, size, "then")
        for (topic, partition), end, size in zip(LOGS, ends, sizes, strict=True)
    ][:present]


def kept(reached: Reached) -> Reached:
    """Through the checkpoint and back."""
    return offsets.from_json(json.loads(json.dumps(offsets.to_json(reached))))


def covered(plan: list[OffsetRange]) -> list[tuple[str, int, int]]:
    return [(each.topic, each.partition, offset) for each in plan for offset in range(each.start, each.end)]


@given(moments, record_sizes, st.data())
def test_every_offset_is_planned_once_whatever_the_limits_and_restarts(life, sizes, data):
    """Logs grow and join while limits change from step to step, as over restarts with other options."""
    ends, present = [0] * len(LOGS), 1
    reached = kept(Reached({LOGS[0]: 0}, made={"a": "then"}))
    seen: list[tuple[str, int, int]] = []
    for growth, limit in life:
        ends = [end + more for end, more in zip(ends, growth, strict=True)]
        present = data.draw(st.integers(present, len(LOGS)))
        following = kept(offsets.step(reached, spans(ends, sizes, present), limit))
        plan = offsets.ranges(reached, following)
        assert all(each.start < each.end for each in plan)
        seen.extend(covered(plan))
        reached = following
    last = offsets.step(reached, spans(ends, sizes, len(LOGS)), TriggerLimits())
    seen.extend(covered(offsets.ranges(reached, last)))
    expected = [(topic, partition, n) for (topic, partition), end in zip(LOGS, ends, strict=True) for n in range(end)]
    assert sorted(seen) == sorted(expected)


@given(moments, record_sizes)
def test_a_step_takes_no_more_than_the_limit_and_never_stands_still(life, sizes):
    ends = [0] * len(LOGS)
    reached = Reached(dict.fromkeys(LOGS, 0), made=dict.fromkeys("abc", "then"))
    for growth, limit in life:
        ends = [end + more for end, more in zip(ends, growth, strict=True)]
        held = spans(ends, sizes, len(LOGS))
        waiting = offsets.behind(reached, held)
        following = offsets.step(reached, held, limit)
        taken = sum(following.offsets.values()) - sum(reached.offsets.values())
        if limit.offsets_max is not None:
            assert taken <= limit.offsets_max
            assert limit.bytes_max is not None or taken == min(waiting, limit.offsets_max)
        if limit.bytes_max is not None and taken > 1:
            size = {span.log: max(1.0, span.record_bytes) for span in held}
            moved = {log: following.offsets[log] - reached.offsets[log] for log in reached.offsets}
            assert sum(count * size[log] for log, count in moved.items()) <= limit.bytes_max + 1
        assert bool(taken) == bool(waiting)
        assert (following is reached) == (not waiting)
        reached = following


@given(moments, record_sizes)
def test_a_plan_is_a_function_of_its_two_ends(life, sizes):
    """Planned again from the checkpoint, in any order of keys, it is the same plan."""
    ends = [0] * len(LOGS)
    reached = Reached(dict.fromkeys(LOGS[:2], 0))
    for growth, limit in life:
        ends = [end + more for end, more in zip(ends, growth, strict=True)]
        following = offsets.step(reached, spans(ends, sizes, len(LOGS)), limit)
        told = offsets.to_json(following)
        backwards = {**told, "offsets": {t: dict(reversed(o.items())) for t, o in reversed(told["offsets"].items())}}
        plan = offsets.ranges(reached, following)
        assert offsets.ranges(kept(reached), offsets.from_json(backwards)) == plan
        reached = following


@given(st.lists(st.tuples(st.integers(0, 1_000), st.integers(1, 100_000)), min_size=1, max_size=8), st.integers(0, 200))
def test_cutting_loses_nothing_and_makes_pieces_of_about_one_size(found, splits):
    whole = [OffsetRange("t", number, start, start + count) for number, (start, count) in enumerate(found)]
    pieces = offsets.cut(whole, splits)
    assert len(pieces) >= min(len(whole), splits)
    joined: dict[int, int] = {each.partition: each.start for each in whole}
    for piece in pieces:
        assert piece.start == joined[piece.partition] < piece.end
        joined[piece.partition] = piece.end
    assert joined == {each.partition: each.end for each in whole}
    if splits > len(whole):
        share = sum(each.end - each.start for each in whole) / splits
        assert max(piece.end - piece.start for piece in pieces) <= 2 * share + 1


@given(st.lists(st.integers(0, 100), min_size=1, max_size=8), st.integers(1, 300), st.integers(0, 10**9))
def test_a_limit_is_shared_out_fully_and_fairly(wants, limit, turn):
    wanted = {("t", number): want for number, want in enumerate(wants)}
    given_out = offsets.shared(wanted, limit, turn)
    assert sum(given_out.values()) == min(limit, sum(wants))
    assert all(0 <= given_out[log] <= wanted[log] for log in wanted)
    hungry = [given_out[log] for log in wanted if given_out[log] < wanted[log]]
    assert not hungry or max(given_out.values()) <= min(hungry) + 1
