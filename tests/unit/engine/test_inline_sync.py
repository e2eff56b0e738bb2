"""When the loop syncs by itself: a quick disk, few who wait, and nothing else to do."""

from __future__ import annotations

from driftq.engine.inline_sync import BLOCK_BYTES_MAX, CALLERS_MAX, QUICK_S, QUICK_SYNCS, WINDOW_COMMITS, InlineSync

SYNC_S = 0.0004
SYNC_CPU_S = 0.0001


class Loop:
    """A loop of which each commit takes `wall_s`, `cpu_s` of it in Python."""

    def __init__(self) -> None:
        self.now_s = self.cpu_s = 0.0
        self.synced = 0  # by the loop
        self.haste = InlineSync(lambda: self.now_s, lambda: self.cpu_s)

    def commit(
        self, times: int = WINDOW_COMMITS, *, sync_s: float = SYNC_S, wall_s: float, cpu_s: float, reads: int = 0
    ) -> None:
        for _ in range(times):
            for _ in range(reads):
                self.haste.note_read()
            self.now_s += wall_s - sync_s
            self.cpu_s += cpu_s
            by_loop = self.haste.allows(1, [b"frame"])
            if by_loop:
                self.synced += 1
                self.haste.begin()
            self.now_s += sync_s
            self.cpu_s += SYNC_CPU_S if by_loop else 0.0
            self.haste.note(sync_s, by_loop=by_loop)


def lone_caller() -> Loop:
    loop = Loop()
    loop.commit(wall_s=0.0006, cpu_s=0.0001)
    return loop


def test_at_first_the_thread_does_it():
    assert not InlineSync().allows(1, [b"frame"])


def test_a_lone_caller_on_a_quick_disk_is_served_at_once_and_stays_so():
    loop = lone_caller()
    assert loop.haste.allows(1, [b"frame"])
    loop.commit(10 * WINDOW_COMMITS, wall_s=0.0006, cpu_s=0.0001)
    assert loop.haste.allows(1, [b"frame"])


def test_many_callers_or_much_data_are_left_to_the_thread():
    haste = lone_caller().haste
    assert haste.allows(CALLERS_MAX, [b"frame"])
    assert not haste.allows(CALLERS_MAX + 1, [b"frame"])
    assert not haste.allows(1, [bytes(BLOCK_BYTES_MAX + 1)])


def test_a_disk_that_hesitates_once_has_to_be_quick_for_a_while_again():
    loop = lone_caller()
    loop.commit(1, sync_s=QUICK_S, wall_s=0.003, cpu_s=0.0001)
    assert not loop.haste.allows(1, [b"frame"])
    loop.commit(QUICK_SYNCS - 1, wall_s=0.0006, cpu_s=0.0001)
    assert not loop.haste.allows(1, [b"frame"])
    loop.commit(1, wall_s=0.0006, cpu_s=0.0001)
    assert loop.haste.allows(1, [b"frame"])


def test_a_loop_that_streams_beside_is_not_held_up():
    loop = lone_caller()
    loop.commit(wall_s=0.0006, cpu_s=0.0006 - SYNC_S, reads=1)  # whatever the syncs leave is used
    assert not loop.haste.allows(1, [b"frame"])
    loop.commit(wall_s=0.0006, cpu_s=0.0006, reads=1)
    assert not loop.haste.allows(1, [b"frame"]), "with the thread at work, the loop is still full"
    loop.commit(wall_s=0.0006, cpu_s=0.0001)
    assert loop.haste.allows(1, [b"frame"]), "the stream has ended"


def test_a_reader_that_leaves_the_loop_time_changes_nothing():
    loop = lone_caller()
    loop.commit(wall_s=0.0008, cpu_s=0.0001, reads=3)
    assert loop.haste.allows(1, [b"frame"])


def test_a_caller_that_comes_again_at_once_fills_the_loop_and_is_still_alone():
    loop = lone_caller()
    loop.commit(10 * WINDOW_COMMITS, wall_s=SYNC_S + 0.0002, cpu_s=0.0002)
    assert loop.synced == 10 * WINDOW_COMMITS


def test_a_full_loop_whose_readers_have_gone_syncs_by_itself_again():
    loop = lone_caller()
    loop.commit(2 * WINDOW_COMMITS, wall_s=0.0006, cpu_s=0.0006, reads=1)
    assert not loop.haste.allows(1, [b"frame"])
    loop.commit(wall_s=0.0006, cpu_s=0.0006)
    assert loop.haste.allows(1, [b"frame"])


def test_neither_the_sync_itself_nor_empty_turns_count_as_work():
    loop = Loop()
    for _ in range(10 * WINDOW_COMMITS):
        loop.haste.note_idle(0.0001)
        loop.commit(1, wall_s=0.0006, cpu_s=0.0002, reads=1)
    assert loop.haste.allows(1, [b"frame"])
