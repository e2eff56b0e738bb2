"""The offset planner in trouble: lost records, new logs, foreign checkpoints."""

from __future__ import annotations

import json

import pytest

from driftq.spark.source import offsets
from driftq.spark.source.offsets import BadCheckpoint, LogSpan, OffsetRange, ReadProgress, SeenBatch, TriggerLimits
from driftq.spark.source.options import BadOption

LOG = ("t", 0)


def span(start: int, end: int, created_at: str = "then", partition: int = 0) -> LogSpan:
    return LogSpan("t", partition, start, end, 10.0, created_at)


def progress(offset: int) -> ReadProgress:
    return ReadProgress({LOG: offset}, created={"t": "then"})


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ([], "no longer exists"),
        ([span(0, 10, "later")], "deleted and created again"),
        ([span(7, 10)], "offsets 5 to 6 of t/0 are gone"),
        ([span(0, 3)], "ends at 3 now"),
    ],
)
def test_lost_records_are_reported(spans, message):
    assert message in offsets.data_losses(progress(5), spans)[LOG]


@pytest.mark.parametrize("spans", [[span(0, 5)], [span(5, 5)], [span(3, 90)]])
def test_records_that_are_left_are_no_loss(spans):
    assert offsets.data_losses(progress(5), spans) == {}


def test_after_an_accepted_loss_the_log_is_read_from_its_new_start():
    end = offsets.plan_end(progress(5), [span(7, 10)], TriggerLimits())
    assert offsets.plan_ranges(progress(5), end) == [OffsetRange("t", 0, 7, 10, "then")]


def test_a_topic_created_again_is_read_from_its_start_even_if_it_is_as_long():
    end = offsets.plan_end(progress(5), [span(0, 5, "later")], TriggerLimits())
    assert offsets.plan_ranges(progress(5), end) == [OffsetRange("t", 0, 0, 5, "later")]
    assert offsets.data_losses(end, [span(0, 5, "later")]) == {}


def test_a_log_that_is_gone_is_left_out():
    end = offsets.plan_end(progress(5), [], TriggerLimits())
    assert end.offsets == {}
    assert offsets.plan_ranges(progress(5), end) == []


def test_a_new_log_is_read_from_its_start_and_the_checkpoint_records_it():
    end = offsets.plan_end(progress(5), [span(0, 5), span(2, 4, partition=1)], TriggerLimits())
    assert end.start_overrides == {("t", 1): 2}
    assert offsets.plan_ranges(progress(5), end) == [OffsetRange("t", 1, 2, 4, "then")]


def test_there_are_no_tasks_between_a_progress_and_itself():
    end = offsets.plan_end(progress(5), [span(0, 5), span(2, 4, partition=1)], TriggerLimits())
    assert end.start_overrides
    assert offsets.plan_tasks(end, end) == []


def test_without_new_records_the_progress_is_the_same():
    start = progress(5)
    assert offsets.plan_end(start, [span(0, 5)], TriggerLimits(partitions_min=8)) is start


def test_a_run_to_a_target_does_not_read_later_records():
    target = [span(0, 5)]
    now = [span(0, 9), span(0, 3, partition=1)]
    assert offsets.clamp_to_target(now, target) == [span(0, 5)]
    assert offsets.clamp_to_target([span(7, 9)], target) == [span(5, 5)]
    assert offsets.clamp_to_target([span(0, 9, "later")], target) == []


def test_a_record_larger_than_the_limit_is_read_alone():
    end = offsets.plan_end(progress(0), [span(0, 9)], TriggerLimits(bytes_max=1))
    assert end.offsets == {LOG: 1}


def test_no_log_starves_if_the_limit_is_smaller_than_the_number_of_logs():
    spans = [LogSpan("t", n, 0, 100) for n in range(5)]
    start = ReadProgress({log.log: 0 for log in spans})
    for _ in range(5):
        start = offsets.plan_end(start, spans, TriggerLimits(offsets_max=1))
    assert set(start.offsets.values()) == {1}


def test_a_checkpoint_of_another_version_is_refused():
    with pytest.raises(BadCheckpoint, match="version 2"):
        offsets.from_json({"version": 2, "offsets": {}})


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ({("t", 9): 1}, "names t/9, which are not read"),
        ({LOG: 1}, "does not name t/1"),
        ({LOG: 99, ("t", 1): 0}, "t/0 ends at 10, before 99"),
    ],
)
def test_offsets_that_do_not_fit_the_logs_are_refused(requested, message):
    with pytest.raises(BadOption, match=message):
        offsets.resolve_offsets(requested, [span(2, 10), span(0, 3, partition=1)], "startingOffsets", BadOption)


def test_earliest_latest_and_numbers_become_offsets():
    spans = [span(2, 10), span(0, 3, partition=1)]
    assert offsets.resolve_offsets(-2, spans, "x", BadOption) == {LOG: 2, ("t", 1): 0}
    assert offsets.resolve_offsets(-1, spans, "x", BadOption) == {LOG: 10, ("t", 1): 3}
    assert offsets.resolve_offsets({LOG: -1, ("t", 1): 1}, spans, "x", BadOption) == {LOG: 10, ("t", 1): 1}


def test_the_last_batch_that_was_seen_is_kept_until_the_broker_reports_another():
    seen = SeenBatch(90, "80:1:00000001")
    first = offsets.plan_end(progress(5), [span(3, 90)._replace(last=seen)], TriggerLimits(offsets_max=10))
    second = offsets.plan_end(first, [span(3, 95)], TriggerLimits())

    assert (first.offsets, first.seen) == ({LOG: 15}, {LOG: seen})
    assert second.seen == {LOG: seen}
    assert offsets.from_json(json.loads(json.dumps(offsets.to_json(first)))) == first
    assert offsets.from_json({"version": 1, "offsets": {"t": {"0": 5}}}).seen == {}


def test_many_small_logs_share_four_tasks_and_larger_ones_get_more():
    def tasks(record_bytes: float, **limits: int) -> int:
        spans = [LogSpan("t", partition, 0, 1_000, record_bytes, "then") for partition in range(64)]
        end = offsets.plan_end(ReadProgress({}), spans, TriggerLimits(**limits))
        return len(offsets.plan_tasks(ReadProgress({}), end))

    assert tasks(10.0) == tasks(100.0) == 4
    assert tasks(1_000.0) == 16
    assert tasks(100_000.0) == 128
    assert tasks(100.0, partitions_min=20) == 20


def test_a_batch_of_an_older_checkpoint_has_a_task_for_each_log():
    spans = [LogSpan("t", partition, 0, 10, 1.0, "then") for partition in range(64)]
    tree = offsets.to_json(offsets.plan_end(ReadProgress({}), spans, TriggerLimits()))
    del tree["tasks"]
    assert len(offsets.plan_tasks(ReadProgress({}), offsets.from_json(tree))) == 64
