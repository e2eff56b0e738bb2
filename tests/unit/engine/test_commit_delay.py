"""How long a commit waits for those who were just answered."""

from __future__ import annotations

from driftq.engine.commit_delay import EMPTY_TURN_S, WAIT_MAX_S, CommitDelay

SYNC_S = 0.0004


class Loop:
    """A hand clock, and what the gathering reports."""

    def __init__(self) -> None:
        self.now_s = 10.0
        self.empty_s = 0.0
        self.gathering = CommitDelay(self._empty, lambda: self.now_s)

    def _empty(self, turn_s: float) -> None:
        self.empty_s += turn_s

    def waits(self, frames: int, after_s: float = 0.0) -> bool:
        self.now_s += after_s
        return self.gathering.waits(frames)


def test_nobody_is_waited_for_before_the_first_commit():
    assert not Loop().waits(0)


def test_those_who_were_answered_are_waited_for_and_no_longer_when_they_have_come():
    loop = Loop()
    loop.gathering.note(5, SYNC_S)
    assert loop.waits(1)
    assert loop.waits(4, after_s=SYNC_S / 2)
    assert not loop.waits(5)
    assert loop.gathering.has_all(5)
    assert not loop.gathering.has_all(4)


def test_the_wait_is_no_longer_than_a_sync():
    loop = Loop()
    loop.gathering.note(5, SYNC_S)
    assert loop.waits(4, after_s=0.9 * SYNC_S)
    assert not loop.waits(4, after_s=0.2 * SYNC_S)


def test_on_a_slow_disk_a_caller_is_given_a_moment_and_not_a_whole_sync():
    loop = Loop()
    loop.gathering.note(5, 30 * WAIT_MAX_S)
    assert loop.waits(4, after_s=0.9 * WAIT_MAX_S)
    assert not loop.waits(4, after_s=0.2 * WAIT_MAX_S)


def test_turns_that_did_nothing_are_told_from_those_that_worked():
    loop = Loop()
    loop.gathering.note(5, SYNC_S)
    loop.waits(1)
    loop.waits(1, after_s=EMPTY_TURN_S / 2)
    assert loop.empty_s > 0
    told_s = loop.empty_s
    loop.waits(2, after_s=5 * EMPTY_TURN_S)
    assert loop.empty_s == told_s
