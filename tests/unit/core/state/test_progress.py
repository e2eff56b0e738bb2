"""A group's progress in one log, fact by fact: places, counts, floors, and times that come next."""

from __future__ import annotations

from driftq.core.model.facts import Extended, Failed, Leased, Released
from driftq.core.state.held_ranges import HeldRanges
from driftq.core.state.leases import Lease
from driftq.core.state.progress import MessageState, Progress
from driftq.core.transitions.claim_selection import next_ms


def leased(progress: Progress, *ranges: tuple[int, int], until_ms: int = 1_000, owner: str = "w") -> None:
    progress.lease(Leased(1, 1, ranges, owner, f"token-{owner}", 0, until_ms))


def failed(progress: Progress, offset: int, retry_at_ms: int = 500, *, lost: bool = False) -> None:
    progress.fail(Failed(1, 1, offset, 0, retry_at_ms, "boom", lost))


def places(progress: Progress, end: int) -> str:
    """One letter for each offset: fresh, held, resting, settled."""
    return "".join(progress.state_of(offset)[0].name[0] for offset in range(end))


def test_a_claim_of_a_thousand_is_one_range_under_one_lease():
    progress = Progress(1, 1, 0)
    leased(progress, (0, 1_000))
    assert len(progress.held) == 1
    assert (progress.in_flight, progress.cursor, progress.floor) == (1_000, 1_000, 0)


def test_settling_out_of_order_keeps_a_gap_until_it_closes():
    progress = Progress(1, 1, 0)
    leased(progress, (0, 5))
    progress.settle(3, 4)
    progress.settle(1, 2)
    assert places(progress, 6) == "HSHSHF"
    assert progress.floor == 0
    progress.settle(0, 1)
    assert progress.floor == 2
    progress.settle(2, 3)
    assert progress.floor == 4
    assert not progress.settled
    assert progress.in_flight == 1


def test_a_failure_gives_one_message_a_history_and_leaves_the_others_in_their_range():
    progress = Progress(1, 1, 0)
    leased(progress, (0, 3))
    failed(progress, 1)
    assert places(progress, 3) == "HRH"
    assert (progress.in_flight, progress.resting) == (2, 1)
    leased(progress, (1, 2), until_ms=2_000, owner="v")
    entry = progress.entries[1]
    assert (entry.attempts, entry.version, entry.failures, entry.error) == (2, 2, 1, "boom")
    failed(progress, 1, lost=True)
    assert (entry.failures, entry.lease_losses) == (1, 1)


def test_the_next_time_is_the_first_of_all_leases_and_rests():
    progress = Progress(1, 1, 0)
    assert progress.next_ms() is None
    leased(progress, (0, 2), until_ms=1_000)
    leased(progress, (2, 3), until_ms=700)
    assert progress.next_ms() == 700
    failed(progress, 0, 300)
    assert progress.next_ms() == 300
    assert next_ms(progress, 300) == 700
    assert next_ms(progress, 700) == 1_000
    assert next_ms(progress, 1_000) is None
    progress.settle(0, 1)
    progress.settle(2, 3)
    assert progress.next_ms() == 1_000


def test_extending_moves_the_end_of_what_was_named_and_of_nothing_else():
    progress = Progress(1, 1, 0)
    leased(progress, (0, 4), until_ms=1_000)
    failed(progress, 3, 0)
    leased(progress, (3, 4), until_ms=1_000)
    progress.extend(Extended(1, 1, ((1, 2), (3, 4)), 5_000))
    ends = [progress.state_of(offset)[1].until_ms for offset in range(4)]  # type: ignore[union-attr]
    assert ends == [1_000, 5_000, 1_000, 5_000]
    assert progress.in_flight == 4
    assert progress.next_ms() == 1_000
    progress.settle(0, 1)
    progress.settle(2, 3)
    assert progress.next_ms() == 5_000


def test_a_heartbeat_for_hours_leaves_no_timers_of_old_leases():
    progress = Progress(1, 1, 0)
    leased(progress, (0, 10))
    for beat in range(10_000):
        progress.extend(Extended(1, 1, ((0, 10),), 1_000 + beat))
    assert progress.lease_timers.count == 1
    assert list(progress.held_by(next(iter(progress.lease_timers))[2])) == list(range(10))


def test_failing_for_hours_leaves_no_timers_of_old_rests():
    progress = Progress(1, 1, 0)
    leased(progress, (0, 2))
    failed(progress, 1, 10**9)
    failed(progress, 0, 0)
    for attempt in range(10_000):
        leased(progress, (0, 1))
        failed(progress, 0, attempt)
    assert list(progress.retry_timers) == [(9_999, 0), (10**9, 1)]
    assert progress.resting == 2


def test_given_back_unseen_is_fresh_again_and_given_back_seen_has_a_history():
    progress = Progress(1, 1, 0)
    leased(progress, (0, 4))
    progress.release(Released(1, 1, ((0, 2),), 0, False))
    progress.release(Released(1, 1, ((2, 3),), 100, True))
    assert places(progress, 4) == "FFRH"
    assert list(progress.ready) == [(0, 2)]
    assert (progress.entries[2].attempts, progress.entries[2].version, progress.entries[2].releases) == (0, 1, 1)
    assert progress.entries[2].lease is None


def test_starting_over_forgets_everything_but_the_versions():
    progress = Progress(1, 1, 0)
    leased(progress, (0, 3))
    failed(progress, 0)
    leased(progress, (0, 1))
    progress.settle(1, 2)
    progress.seek(0)
    assert places(progress, 3) == "FFF"
    assert (progress.in_flight, progress.resting, progress.lease_timers.count) == (0, 0, 0)
    assert progress.next_ms() is None
    assert progress.fresh_version == 3


def test_retention_settles_what_it_takes():
    progress = Progress(1, 1, 0)
    leased(progress, (0, 3))
    failed(progress, 0)
    progress.trim(2)
    assert (progress.floor, progress.cursor, progress.in_flight, progress.resting) == (2, 3, 1, 0)
    progress.trim(10)
    assert (progress.floor, progress.cursor, progress.in_flight) == (10, 10, 0)


def test_a_delayed_message_has_no_attempt_and_no_holder():
    progress = Progress(1, 1, 0)
    progress.delay_all([(900, 4)], 0)
    place, lease, entry = progress.state_of(4)
    assert (place, lease, entry.attempts, entry.version) == (MessageState.RESTING, None, 0, 0)  # type: ignore[union-attr]
    leased(progress, (4, 5))
    assert (progress.entries[4].attempts, progress.entries[4].version) == (1, 1)


def test_a_delayed_message_has_an_entry_of_its_own_once_it_is_delivered():
    progress = Progress(1, 1, 0)
    progress.delay_all([(900, 4), (800, 5)], 0)
    progress.entries[4].attempts = 7  # of a copy
    assert (progress.entries[4].attempts, list(progress.entries.changed())) == (0, [])
    leased(progress, (4, 5))
    assert [offset for offset, _ in progress.entries.changed()] == [4]
    assert (list(progress.entries), len(progress.entries), progress.resting) == ([4, 5], 2, 1)
    progress.settle(4, 6)
    assert (len(progress.entries), 5 in progress.entries, progress.resting) == (0, False, 0)


def test_neighbours_under_one_lease_are_one_range_in_whatever_order_they_come():
    lease = Lease("w", "t", 0, 0)
    for order in ([(0, 1), (1, 2), (2, 3)], [(2, 3), (1, 2), (0, 1)], [(0, 1), (2, 3), (1, 2)]):
        ranges = HeldRanges()
        for first, end in order:
            ranges.add(first, end, lease)
        assert list(ranges) == [(0, 3, lease)]


def test_a_lease_knows_what_it_holds_through_heartbeats_failures_and_settlements():
    progress = Progress(1, 1, 0)
    leased(progress, (0, 10))
    failed(progress, 8, 0)
    leased(progress, (8, 9), (10, 12), until_ms=2_000, owner="v")
    progress.extend(Extended(1, 1, ((0, 3), (8, 9)), 5_000))
    progress.settle(1, 2)
    failed(progress, 9)
    holds = {until_ms: list(progress.held_by(lease)) for until_ms, _, lease in progress.lease_timers}
    assert holds[1_000] == [3, 4, 5, 6, 7]
    assert holds[2_000] == [10, 11]
    five_seconds = [list(progress.held_by(lease)) for _, _, lease in progress.lease_timers.until(5_000)][2:]
    assert sorted(five_seconds) == [[0, 2], [8]]
