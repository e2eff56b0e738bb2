"""The options of a worker and the counts of a run."""

from __future__ import annotations

import pytest

from driftq.client.errors import InvalidCall
from driftq.client.worker.options import WorkerCounts, WorkerOptions


@pytest.mark.parametrize(
    "options", [WorkerOptions(concurrency=0), WorkerOptions(prefetch=-1), WorkerOptions(lease_ms=99)]
)
def test_impossible_options_are_refused(options):
    with pytest.raises(InvalidCall):
        options.check()


def test_a_worker_holds_what_runs_and_what_waits():
    assert WorkerOptions(concurrency=4).held_max == 8
    assert WorkerOptions(concurrency=4, prefetch=0).held_max == 4
    assert WorkerOptions(concurrency=4, prefetch=100).held_max == 104


def test_counts_are_by_verb():
    counts = WorkerCounts()
    for verb, count in [("ack/batch", 3), ("nack/batch", 2), ("reject", 1), ("release", 4)]:
        counts.count(verb, count)
    assert (counts.acked, counts.failed, counts.rejected, counts.released) == (3, 2, 1, 4)
    assert repr(counts) == "acked=3 failed=2 lost=0 rejected=1 released=4 timed_out=0"
