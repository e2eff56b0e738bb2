"""A corrected clock moves leases, and each keeps its length."""

from __future__ import annotations

import pytest

from driftq.core.model.facts import ClockSet, Leased
from driftq.core.state import deadlines
from driftq.core.state.progress import Progress

GROUP, LOG = 1, 7


@pytest.mark.parametrize(
    ("from_ms", "at_ms", "until_ms"),
    [
        (1_020, 50_020, 50_060),  # it runs, and has as much left as before
        (2_000, 50_000, 1_060),  # it ended before the clock was set forward
        (2_000, 500, 500),  # it ended before the clock was set back: it has ended by the new clock too
    ],
)
def test_a_lease_is_as_long_after_a_correction_as_before(from_ms, at_ms, until_ms):
    progress = Progress(GROUP, LOG, 0)
    progress.lease(Leased(GROUP, LOG, ((0, 1),), "o", "t", 1_000, 1_060))
    deadlines._shift_progress(progress, ClockSet(at_ms, from_ms))
    lease = progress.held.lease_at(0)
    assert lease is not None
    assert (lease.until_ms, lease.until_ms - lease.at_ms) == (until_ms, 60)
