"""Windows by hand: what a connection may take, which leases are kept, and until when."""

from __future__ import annotations

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.facts import ClockSet
from driftq.core.state.progress import Progress
from driftq.engine.consumer_window import ConsumerWindow, ConsumerWindows

LEASE_MS = 1_000
GROUP, LOG = 1, 7


class GroupFixture:
    """A group with one log, and windows on it."""

    def __init__(self) -> None:
        self.progress = Progress(GROUP, LOG, 0)
        self.windows = ConsumerWindows()
        self.notified: list[ConsumerWindow] = []

    def window(self, prefetch: int | None = None, in_flight_max: int = 1_000) -> ConsumerWindow:
        window = ConsumerWindow(LEASE_MS, in_flight_max, prefetch)
        window.notify = lambda: self.notified.append(window)
        return window

    def deliver(self, window: ConsumerWindow, first: int, end: int, token: str, at_ms: int) -> None:
        until_ms = at_ms + LEASE_MS
        self.progress.lease(f.Leased(GROUP, LOG, ((first, end),), "o", token, at_ms, until_ms))
        self.windows.deliver(window, self.progress, c.Held(0, first, end, token), until_ms, at_ms)

    def ack(self, first: int, end: int, at_ms: int) -> None:
        self.progress.settle(first, end)
        self.windows.observe([f.Settled(GROUP, LOG, ((first, end),), f.ACKED, at_ms)], at_ms)

    def lose(self, offset: int, at_ms: int) -> None:
        self.windows.observe([f.Failed(GROUP, LOG, offset, at_ms, at_ms, "ack_timeout", True)], at_ms)


def extended(window: ConsumerWindow, now_ms: int) -> list[tuple[int, list[tuple[int, int]]]]:
    return [(until_ms, [(run.first, run.end) for run in held]) for until_ms, held in window.extensions(now_ms)]


def test_a_fixed_window_has_room_for_what_is_not_held():
    group = GroupFixture()
    window = group.window(prefetch=5)
    group.deliver(window, 0, 4, "a", 0)
    assert (window.held, window.room(0)) == (4, 1)
    group.ack(1, 3, 10)
    assert window.room(10) == 3
    assert group.notified == [window]
    group.ack(100, 200, 10)
    assert group.notified == [window], "messages of others are not its business"


def test_an_adaptive_window_grows_with_what_was_settled_in_the_last_lease_and_shrinks_again():
    group = GroupFixture()
    window = group.window(in_flight_max=100)
    assert window.size(0) == 32
    for round_ms in range(0, 600, 100):
        first = round_ms // 100 * 30
        group.deliver(window, first, first + 30, "a", round_ms)
        group.ack(first, first + 30, round_ms + 50)
    assert window.size(600) == 100, "180 were settled; the limit is 100"
    assert 32 <= window.size(1_350) <= 90, "some of it is older than a lease"
    assert window.size(5_000) == 32


def test_after_its_first_lease_a_slow_reader_holds_no_more_than_it_settled_in_the_last():
    group = GroupFixture()
    window = group.window()
    group.deliver(window, 0, 32, "a", 0)
    for offset in range(20):
        group.ack(offset, offset + 1, 400 * (offset + 1))
        if offset > 2:
            assert window.size(400 * (offset + 1)) in (2, 3), "it settles five in two leases"
    assert window.room(8_000) == 0, "12 of the first 32 still wait in it"
    group.ack(20, 32, 8_100)
    assert window.room(8_100) >= 12, "it is quick now"


def test_a_connection_that_lost_everything_gets_one_message_until_it_settles_something():
    group = GroupFixture()
    window = group.window()
    group.deliver(window, 0, 32, "a", 0)
    for offset in range(32):
        group.lose(offset, 1_000)
    assert window.room(1_000) == 1
    group.deliver(window, 32, 33, "b", 1_001)
    group.ack(32, 33, 1_500)
    assert window.room(1_500) == 1
    group.deliver(window, 33, 34, "c", 1_501)
    group.ack(33, 34, 1_510)
    assert window.room(1_510) == 2
    assert window.room(2_510) == 32, "it held nothing for a lease and starts over"


def test_waiting_messages_are_kept_and_the_oldest_is_not():
    group = GroupFixture()
    window = group.window()
    group.deliver(window, 0, 10, "a", 0)
    group.ack(5, 6, 600)
    assert extended(window, 600) == [(1_600, [(1, 5), (6, 10)])]
    group.ack(6, 7, 700)
    assert extended(window, 700) == [], "more than three quarters of a lease are left"


def test_what_becomes_the_oldest_gets_a_full_lease_from_then_on():
    group = GroupFixture()
    window = group.window()
    group.deliver(window, 0, 10, "a", 0)
    group.ack(0, 1, 900)
    assert extended(window, 900) == [(1_900, [(1, 2), (2, 10)])]
    group.ack(1, 2, 1_000)
    assert extended(window, 1_000) == []
    assert window.next_ms() == 1_650, "a quarter of a lease before it would end"
    assert extended(window, 1_650) == [(2_000, [(2, 3), (3, 10)])]
    assert window.next_ms() is None, "nothing more before the next settlement"


def test_a_connection_that_settles_nothing_gets_no_extension():
    group = GroupFixture()
    window = group.window()
    group.deliver(window, 0, 10, "a", 0)
    assert window.next_ms() is None
    assert extended(window, 990) == []
    for offset in range(10):
        group.lose(offset, 1_000)
        assert extended(window, 1_000) == [], "a loss is no settlement"
    assert window.held == 0


def test_a_dead_letter_of_a_lost_lease_is_no_settlement_and_that_of_a_reject_is():
    group = GroupFixture()
    window = group.window()
    group.deliver(window, 0, 4, "a", 0)
    group.windows.observe([f.Settled(GROUP, LOG, ((0, 1),), f.DEAD, 500)], 500)
    assert extended(window, 500) == [(1_500, [(1, 2), (2, 4)])]
    group.windows.observe([f.Settled(GROUP, LOG, ((1, 2),), f.DEAD, 1_500)], 1_500)
    assert extended(window, 1_500) == []


def test_what_ended_before_it_was_delivered_takes_no_room():
    group = GroupFixture()
    window = group.window()
    group.progress.lease(f.Leased(GROUP, LOG, ((0, 4),), "o", "a", 0, LEASE_MS))
    group.progress.settle(1, 3)
    group.windows.deliver(window, group.progress, c.Held(0, 0, 4, "a"), LEASE_MS, 0)
    assert window.held == 2


def test_everything_that_takes_messages_from_a_group_takes_them_from_the_window():
    for fact in (
        f.GroupSought(GROUP, LOG, 0, 10),
        f.GroupDeleted(GROUP),
        f.TopicDeleted("t", (LOG,)),
        f.Trimmed(LOG, 4),
        f.Released(GROUP, LOG, ((0, 4),), 10, False),
    ):
        group = GroupFixture()
        window = group.window()
        group.deliver(window, 0, 4, "a", 0)
        group.windows.observe([fact], 10)
        assert window.held == 0, fact


def test_two_windows_do_not_share_and_a_closed_one_leaves_nothing():
    group = GroupFixture()
    first, second = group.window(), group.window()
    group.deliver(first, 0, 4, "a", 0)
    group.deliver(second, 4, 8, "b", 0)
    group.ack(3, 5, 100)
    assert (first.held, second.held) == (3, 3)
    group.windows.close(first)
    group.ack(0, 3, 200)
    assert (first.held, second.held) == (0, 3)
    group.windows.close(second)
    group.notified.clear()
    group.ack(5, 8, 300)
    assert not group.notified


def test_a_corrected_clock_leaves_a_window_as_long_as_it_had():
    for step_ms in (60_000, -60_000):
        group = GroupFixture()
        window = group.window()
        group.deliver(window, 0, 4, "a", 100_000)
        group.ack(0, 1, 100_500)
        window.extensions(100_500)
        now_ms = 100_500 + step_ms
        group.windows.observe([ClockSet(now_ms, 100_500)], now_ms)
        assert extended(window, now_ms) == []
        assert extended(window, now_ms + 700) == [], "nothing was settled since"
        group.ack(1, 2, now_ms + 900)
        assert extended(window, now_ms + 900) == [(now_ms + 1_900, [(2, 3), (3, 4)])]


def test_a_clock_that_is_only_noted_changes_nothing():
    group = GroupFixture()
    window = group.window()
    group.deliver(window, 0, 4, "a", 0)
    group.windows.observe([ClockSet(500, 500)], 500)
    assert extended(window, 900) == []


def test_a_delivery_whose_reply_came_after_the_clock_was_set_forward_has_its_moved_lease():
    group = GroupFixture()
    window = group.window(prefetch=5)
    at_ms, step_ms = 100, 60_000
    moved_ms = at_ms + step_ms
    group.windows.observe([ClockSet(moved_ms, at_ms)], moved_ms)
    group.progress.lease(f.Leased(GROUP, LOG, ((0, 3),), "o", "a", moved_ms, moved_ms + LEASE_MS))
    group.windows.deliver(window, group.progress, c.Held(0, 0, 3, "a"), at_ms + LEASE_MS, at_ms)
    group.ack(0, 1, moved_ms + 500)
    until_ms = moved_ms + 500 + LEASE_MS
    assert extended(window, moved_ms + LEASE_MS - LEASE_MS // 4) == [(until_ms, [(1, 2), (2, 3)])]
