"""The planner where it meets trouble: losses, new logs, checkpoints of others."""

from __future__ import annotations

import pytest

from driftq.spark.source import offsets
from driftq.spark.source.offsets import BadCheckpoint, LogSpan, OffsetRange, Reached, TriggerLimits
from driftq.spark.source.options import BadOption

LOG = ("t", 0)


def span(start: int, end: int, made: str = "then", partition: int = 0) -> LogSpan:
    return LogSpan("t", partition, start, end, 10.0, made)


def reached(offset: int) -> Reached:
    return Reached({LOG: offset}, made={"t": "then"})


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ([], "is not there any more"),
        ([span(0, 10, "later")], "deleted and made again"),
        ([span(7, 10)], "offsets 5 to 6 of t/0 are gone"),
        ([span(0, 3)], "ends at 3 now"),
    ],
)
def test_what_is_gone_is_told(held, told):
    assert told in offsets.losses(reached(5), held)[LOG]


@pytest.mark.parametrize("held", [[span(0, 5)], [span(5, 5)], [span(3, 90)]])
def test_what_is_there_is_no_loss(held):
    assert offsets.losses(reached(5), held) == {}


def test_an_accepted_loss_is_read_from_where_the_log_begins_now():
    following = offsets.step(reached(5), [span(7, 10)], TriggerLimits())
    assert offsets.ranges(reached(5), following) == [OffsetRange("t", 0, 7, 10, "then")]


def test_a_topic_made_again_is_read_from_its_start_even_when_it_has_grown_as_long():
    following = offsets.step(reached(5), [span(0, 5, "later")], TriggerLimits())
    assert offsets.ranges(reached(5), following) == [OffsetRange("t", 0, 0, 5, "later")]
    assert offsets.losses(following, [span(0, 5, "later")]) == {}


def test_a_log_that_is_gone_is_left_out():
    following = offsets.step(reached(5), [], TriggerLimits())
    assert following.offsets == {}
    assert offsets.ranges(reached(5), following) == []


def test_a_new_log_is_read_from_its_start_and_the_checkpoint_says_so():
    following = offsets.step(reached(5), [span(0, 5), span(2, 4, partition=1)], TriggerLimits())
    assert following.begins == {("t", 1): 2}
    assert offsets.ranges(reached(5), following) == [OffsetRange("t", 1, 2, 4, "then")]


def test_between_a_place_and_itself_lies_nothing_even_if_a_log_was_new_there():
    place = offsets.step(reached(5), [span(0, 5), span(2, 4, partition=1)], TriggerLimits())
    assert place.begins
    assert offsets.ranges(place, place) == []


def test_nothing_new_is_the_same_place():
    here = reached(5)
    assert offsets.step(here, [span(0, 5)], TriggerLimits(partitions_min=8)) is here


def test_a_run_to_a_target_reads_nothing_that_came_later():
    target = [span(0, 5)]
    now = [span(0, 9), span(0, 3, partition=1)]
    assert offsets.up_to(now, target) == [span(0, 5)]
    assert offsets.up_to([span(7, 9)], target) == [span(5, 5)]
    assert offsets.up_to([span(0, 9, "later")], target) == []


def test_a_record_larger_than_the_limit_is_read_alone():
    following = offsets.step(reached(0), [span(0, 9)], TriggerLimits(bytes_max=1))
    assert following.offsets == {LOG: 1}


def test_nobody_is_passed_over_for_ever_when_the_limit_is_smaller_than_the_number_of_logs():
    held = [LogSpan("t", n, 0, 100) for n in range(5)]
    here = Reached({each.log: 0 for each in held})
    for _ in range(5):
        here = offsets.step(here, held, TriggerLimits(offsets_max=1))
    assert set(here.offsets.values()) == {1}


def test_a_checkpoint_of_another_version_is_refused():
    with pytest.raises(BadCheckpoint, match="version 2"):
        offsets.from_json({"version": 2, "offsets": {}})


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({("t", 9): 1}, "names t/9, which are not read"),
        ({LOG: 1}, "does not name t/1"),
        ({LOG: 99, ("t", 1): 0}, "t/0 ends at 10, before 99"),
    ],
)
def test_offsets_that_do_not_fit_the_logs_are_refused(asked, told):
    with pytest.raises(BadOption, match=told):
        offsets.resolved(asked, [span(2, 10), span(0, 3, partition=1)], "startingOffsets", BadOption)


def test_words_and_numbers_become_offsets():
    held = [span(2, 10), span(0, 3, partition=1)]
    assert offsets.resolved(-2, held, "x", BadOption) == {LOG: 2, ("t", 1): 0}
    assert offsets.resolved(-1, held, "x", BadOption) == {LOG: 10, ("t", 1): 3}
    assert offsets.resolved({LOG: -1, ("t", 1): 1}, held, "x", BadOption) == {LOG: 10, ("t", 1): 1}
