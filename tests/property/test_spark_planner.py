"""Properties of the offset planner: every offset is planned once, and the tasks depend on nothing but start and end."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from driftq.spark.source import offsets
from driftq.spark.source.offsets import LogSpan, OffsetRange, ReadProgress, TriggerLimits

LOGS = [("a", 0), ("a", 1), ("b", 0), ("c", 0), ("c", 1), ("c", 2)]

limits = st.builds(
    TriggerLimits,
    offsets_max=st.none() | st.integers(1, 50),
    bytes_max=st.none() | st.integers(1, 5_000),
    partitions_min=st.integers(0, 12),
    partition_bytes=st.integers(100, 10_000),
)
# One step of a query: how much each log has grown, and the options of its start.
moments = st.lists(
    st.tuples(st.lists(st.integers(0, 40), min_size=len(LOGS), max_size=len(LOGS)), limits), min_size=1, max_size=12
)
record_sizes = st.lists(st.floats(0, 500), min_size=len(LOGS), max_size=len(LOGS))


def spans(ends: list[int], sizes: list[float], present: int) -> list[LogSpan]:
    return [
        LogSpan(topic, partition, 0, end, size, "then")
        for (topic, partition), end, size in zip(LOGS, ends, sizes, strict=True)
    ][:present]


def checkpointed(progress: ReadProgress) -> ReadProgress:
    """Written to the checkpoint and read back."""
    return offsets.from_json(json.loads(json.dumps(offsets.to_json(progress))))


def covered(plan: list[tuple[OffsetRange, ...]]) -> list[tuple[str, int, int]]:
    ranges = [piece for task in plan for piece in task]
    return [(piece.topic, piece.partition, offset) for piece in ranges for offset in range(piece.start, piece.end)]


@given(moments, record_sizes, st.data())
def test_every_offset_is_planned_once_with_any_limits_and_restarts(life, sizes, data):
    """Logs grow and join while limits change from step to step, as over restarts with other options."""
    ends, present = [0] * len(LOGS), 1
    progress = checkpointed(ReadProgress({LOGS[0]: 0}, created={"a": "then"}))
    seen: list[tuple[str, int, int]] = []
    for growth, limit in life:
        ends = [end + more for end, more in zip(ends, growth, strict=True)]
        present = data.draw(st.integers(present, len(LOGS)))
        end = checkpointed(offsets.plan_end(progress, spans(ends, sizes, present), limit))
        plan = offsets.plan_tasks(progress, end)
        assert all(piece.start < piece.end for task in plan for piece in task)
        seen.extend(covered(plan))
        progress = end
    last = offsets.plan_end(progress, spans(ends, sizes, len(LOGS)), TriggerLimits())
    seen.extend(covered(offsets.plan_tasks(progress, last)))
    expected = [(topic, partition, n) for (topic, partition), end in zip(LOGS, ends, strict=True) for n in range(end)]
    assert sorted(seen) == sorted(expected)


@given(moments, record_sizes)
def test_a_batch_obeys_the_limits_and_always_makes_progress(life, sizes):
    ends = [0] * len(LOGS)
    progress = ReadProgress(dict.fromkeys(LOGS, 0), created=dict.fromkeys("abc", "then"))
    for growth, limit in life:
        ends = [end + more for end, more in zip(ends, growth, strict=True)]
        log_spans = spans(ends, sizes, len(LOGS))
        lag = offsets.lag(progress, log_spans)
        end = offsets.plan_end(progress, log_spans, limit)
        taken = sum(end.offsets.values()) - sum(progress.offsets.values())
        if limit.offsets_max is not None:
            assert taken <= limit.offsets_max
            assert limit.bytes_max is not None or taken == min(lag, limit.offsets_max)
        if limit.bytes_max is not None and taken > 1:
            size = {span.log: max(1.0, span.record_bytes) for span in log_spans}
            moved = {log: end.offsets[log] - progress.offsets[log] for log in progress.offsets}
            assert sum(count * size[log] for log, count in moved.items()) <= limit.bytes_max + 1
        assert bool(taken) == bool(lag)
        assert (end is progress) == (not lag)
        progress = end


@given(moments, record_sizes)
def test_the_tasks_depend_only_on_start_and_end(life, sizes):
    """A plan made again from the checkpoint, in any order of keys, is the same."""
    ends = [0] * len(LOGS)
    progress = ReadProgress(dict.fromkeys(LOGS[:2], 0))
    for growth, limit in life:
        ends = [end + more for end, more in zip(ends, growth, strict=True)]
        end = offsets.plan_end(progress, spans(ends, sizes, len(LOGS)), limit)
        tree = offsets.to_json(end)
        backwards = {**tree, "offsets": {t: dict(reversed(o.items())) for t, o in reversed(tree["offsets"].items())}}
        plan = offsets.plan_tasks(progress, end)
        assert offsets.plan_tasks(checkpointed(progress), offsets.from_json(backwards)) == plan
        progress = end


@given(st.lists(st.tuples(st.integers(0, 1_000), st.integers(1, 100_000)), min_size=1, max_size=8), st.integers(0, 200))
def test_splitting_loses_nothing_and_makes_pieces_of_about_one_size(sizes, splits):
    whole = [OffsetRange("t", number, start, start + count) for number, (start, count) in enumerate(sizes)]
    pieces = offsets.split_ranges(whole, splits)
    assert len(pieces) >= min(len(whole), splits)
    joined: dict[int, int] = {task.partition: task.start for task in whole}
    for piece in pieces:
        assert piece.start == joined[piece.partition] < piece.end
        joined[piece.partition] = piece.end
    assert joined == {task.partition: task.end for task in whole}
    if splits > len(whole):
        share = sum(task.end - task.start for task in whole) / splits
        assert max(piece.end - piece.start for piece in pieces) <= 2 * share + 1


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=100), st.integers(0, 40))
def test_small_ranges_share_tasks_in_order_and_no_task_is_much_larger_than_its_share(sizes, tasks):
    ranges = [OffsetRange("t", number, 5, 5 + size) for number, size in enumerate(sizes)]
    shared = offsets.share_tasks(ranges, tasks)
    assert [piece for task in shared for piece in task] == ranges
    assert len(shared) <= (tasks or len(ranges))
    if tasks:
        share = sum(sizes) / tasks
        assert max(sum(piece.size for piece in task) for task in shared) <= share + 2 * max(sizes)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=8), st.integers(1, 300), st.integers(0, 10**9))
def test_a_limit_is_shared_out_fully_and_fairly(counts, limit, rotation):
    demand = {("t", number): count for number, count in enumerate(counts)}
    shares = offsets.share_limit(demand, limit, rotation)
    assert sum(shares.values()) == min(limit, sum(counts))
    assert all(0 <= shares[log] <= demand[log] for log in demand)
    cut_short = [shares[log] for log in demand if shares[log] < demand[log]]
    assert not cut_short or max(shares.values()) <= min(cut_short) + 1
