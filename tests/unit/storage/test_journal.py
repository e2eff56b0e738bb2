"""What every journal must do, one clause per test, run against every implementation of the seam."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from driftq.storage.corruption import CorruptJournal
from driftq.storage.disk import Disk
from driftq.storage.file_journal import FileJournal
from driftq.storage.journal import AppendUnknown, Journal, JournalUnavailable, MemoryJournal, WrongTail
from tests.support.faulty_storage import FaultyDisk, FaultyMemoryJournal, Outcome
from tests.support.simdisk import Fault, SimDisk
from tests.unit.storage.suites import STORE

SEGMENT_BYTES = 4096 + 1500

Reopen = Callable[[], Journal]  # the first call creates the journal, later ones open it as the last owner left it


class MemoryRig:
    """A journal in memory."""

    def __init__(self, _: Path) -> None:
        self._journal = FaultyMemoryJournal()
        self.reopen: Reopen = self._journal.reopen

    def fail(self, outcome: Outcome) -> None:
        """Let the next append end so."""
        self._journal.next_outcome = outcome


class FileRig:
    """Journal files on any disk. The first `reopen` creates them."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._is_created = False

    def reopen(self) -> Journal:
        if self._is_created:
            return FileJournal.open(self._disk, self._folder, STORE, segment_bytes=SEGMENT_BYTES)
        self._is_created = True
        parent = self._folder.rpartition("/")[0]
        return FileJournal.create(self._disk, self._folder, STORE, segment_bytes=SEGMENT_BYTES, parent=parent)


class SimulatedFileRig(FileRig):
    """The file journal on the simulated disk."""

    def __init__(self, _: Path) -> None:
        self._sim = SimDisk()
        self._sim.make_folder("t", "d")
        self._sim.sync_folder("t", "")
        self._is_lost = False
        super().__init__(self._sim, "d/journal")

    def fail(self, outcome: Outcome) -> None:
        if outcome is Outcome.UNAVAILABLE:
            self._sim.fail_nth(1, Fault.ENOSPC, "journal.allocate")
        else:
            self._sim.fail_nth(1, Fault.EIO, "journal.sync")
            self._is_lost = outcome is Outcome.UNKNOWN_LOST

    def reopen(self) -> Journal:
        if self._is_lost:
            self._sim.crash("none")
        else:
            self._sim.restart()
        return super().reopen()


class RealFileRig(FileRig):
    """The file journal on the operating system's disk."""

    def __init__(self, folder: Path) -> None:
        self._faulty = FaultyDisk()
        super().__init__(self._faulty, f"{folder}/journal")

    def fail(self, outcome: Outcome) -> None:
        labels = {Outcome.UNAVAILABLE: "journal.allocate", Outcome.UNKNOWN_STORED: "journal.sync"}
        self._faulty.fail_label = labels.get(outcome, "journal.append")
        self._faulty.is_full = outcome is Outcome.UNAVAILABLE


Rig = MemoryRig | SimulatedFileRig | RealFileRig
IMPLEMENTATIONS = [MemoryRig, SimulatedFileRig, RealFileRig]


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda rig: rig.__name__)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Rig:
    return request.param(tmp_path)  # type: ignore[no-any-return]


@pytest.fixture
def reopen(rig: Rig) -> Reopen:
    return rig.reopen


def fill(journal: Journal, count: int = 300) -> list[bytes]:
    """Append frames of many sizes in commits of many sizes; returns all of them."""
    frames: list[bytes] = []
    while len(frames) < count:
        number = len(frames)
        added = [bytes([number % 256]) * ((number + n) * 7 % 90) for n in range(1 + number % 4)]
        frames += added
        assert journal.append(number, added) == len(frames)
    return frames


def test_a_new_journal_is_empty(reopen):
    journal = reopen()
    assert (journal.first_lsn(), journal.tail_lsn(), journal.closed_lsn()) == (1, 0, 0)
    assert list(journal.replay(0)) == []
    journal.close()


def test_an_append_returns_the_new_tail(reopen):
    journal = reopen()
    assert journal.append(0, [b"one", b"two"]) == 2
    assert journal.append(2, []) == 2, "no frames, nothing happens"
    assert journal.append(2, [b""]) == 3, "an empty frame is a frame"
    assert journal.tail_lsn() == 3
    assert list(journal.replay(0)) == [(1, b"one"), (2, b"two"), (3, b"")]
    journal.close()


@pytest.mark.parametrize("expected_lsn", [0, 1, 3])
def test_an_append_after_another_tail_stores_nothing(reopen, expected_lsn):
    journal = reopen()
    journal.append(0, [b"one", b"two"])
    with pytest.raises(WrongTail) as wrong:
        journal.append(expected_lsn, [b"never"])
    assert (wrong.value.expected_lsn, wrong.value.tail_lsn) == (expected_lsn, 2)
    assert list(journal.replay(0)) == [(1, b"one"), (2, b"two")]
    assert journal.append(2, [b"three"]) == 3, "the right owner continues"
    journal.close()


def test_an_append_that_is_unavailable_stores_nothing_and_may_be_repeated(rig):
    journal = rig.reopen()
    journal.append(0, [b"one"])
    large = [b"x" * 20_000, b"y"]
    rig.fail(Outcome.UNAVAILABLE)
    with pytest.raises(JournalUnavailable):
        journal.append(1, large)
    assert (journal.tail_lsn(), list(journal.replay(0))) == (1, [(1, b"one")])
    assert journal.append(1, large) == 3
    journal.close()
    journal = rig.reopen()
    assert list(journal.replay(0)) == [(1, b"one"), (2, large[0]), (3, large[1])]
    journal.close()


def test_the_next_owner_of_an_unavailable_append_does_not_find_it(rig):
    journal = rig.reopen()
    journal.append(0, [b"one"])
    rig.fail(Outcome.UNAVAILABLE)
    with pytest.raises(JournalUnavailable):
        journal.append(1, [b"x" * 20_000])
    journal.close()
    journal = rig.reopen()
    assert list(journal.replay(0)) == [(1, b"one")]
    journal.close()


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN_STORED, Outcome.UNKNOWN_LOST])
def test_after_an_append_with_an_unknown_outcome_only_the_next_owner_may_write(rig, outcome):
    journal = rig.reopen()
    journal.append(0, [b"one"])
    rig.fail(outcome)
    with pytest.raises(AppendUnknown):
        journal.append(1, [b"two", b"three"])
    for expected_lsn in (1, 3):
        with pytest.raises(AppendUnknown):
            journal.append(expected_lsn, [b"never"])
    journal.close()
    journal = rig.reopen()
    stored = [(1, b"one")]
    if outcome is Outcome.UNKNOWN_STORED:
        stored += [(2, b"two"), (3, b"three")]
    assert list(journal.replay(0)) == stored, "all frames of the append or none"
    assert journal.append(len(stored), [b"next"]) == len(stored) + 1
    journal.close()


def test_a_replay_starts_after_any_lsn(reopen):
    journal = reopen()
    numbered = list(enumerate(fill(journal), 1))
    for after_lsn in (0, 1, 150, len(numbered) - 1, len(numbered)):
        assert list(journal.replay(after_lsn)) == numbered[after_lsn:]
    journal.close()


def test_a_replay_ends_at_the_tail_of_its_start(reopen):
    journal = reopen()
    journal.append(0, [b"one"])
    replay = journal.replay(0)
    journal.append(1, [b"two"])
    assert list(replay) == [(1, b"one")]
    journal.close()


def test_the_next_owner_finds_the_same_frames_and_continues(reopen):
    journal = reopen()
    frames = fill(journal)
    journal.close()
    journal = reopen()
    assert journal.tail_lsn() == len(frames)
    assert list(journal.replay(0)) == list(enumerate(frames, 1))
    assert journal.append(len(frames), [b"more"]) == len(frames) + 1
    journal.close()


def test_a_trim_keeps_every_frame_that_is_still_needed(reopen):
    journal = reopen()
    numbered = list(enumerate(fill(journal), 1))
    journal.trim(100)
    for _ in range(2):
        assert 1 <= journal.first_lsn() <= 100
        assert list(journal.replay(99)) == numbered[99:]
        assert journal.tail_lsn() == len(numbered)
        journal.close()
        journal = reopen()
    journal.close()


def test_a_replay_from_below_the_first_frame_is_refused(reopen):
    journal = reopen()
    fill(journal)
    journal.trim(200)
    assert journal.first_lsn() > 1
    with pytest.raises(CorruptJournal):
        list(journal.replay(0))
    journal.close()


def test_a_trim_beyond_the_tail_forgets_no_number(reopen):
    journal = reopen()
    count = len(fill(journal))
    journal.trim(count + 1_000)
    assert journal.tail_lsn() == count
    assert journal.append(count, [b"next"]) == count + 1
    assert list(journal.replay(count)) == [(count + 1, b"next")]
    journal.close()


@pytest.mark.parametrize("new_rig", IMPLEMENTATIONS)
def test_the_checksum_at_the_tail_stands_for_the_history(new_rig, tmp_path):
    one, other = new_rig(tmp_path / "one").reopen(), new_rig(tmp_path / "other").reopen()
    fill(one)
    fill(other)
    lsn = one.tail_lsn()
    assert one.crc_at(lsn) is not None
    assert one.crc_at(lsn) == other.crc_at(lsn), "the same history"
    one.append(lsn, [b"same length"])
    other.append(lsn, [b"other bytes"])
    assert one.crc_at(lsn + 1) != other.crc_at(lsn + 1)
    one.close()
    other.close()


def test_closed_frames_stay_closed(reopen):
    journal = reopen()
    fill(journal)
    closed_lsn = journal.closed_lsn()
    assert 0 <= closed_lsn <= journal.tail_lsn()
    if closed_lsn:
        assert journal.crc_at(closed_lsn) is not None
    journal.append(journal.tail_lsn(), [b"x" * 100] * 50)
    assert journal.closed_lsn() >= closed_lsn
    journal.close()


def test_maintenance_changes_no_frame(reopen):
    journal = reopen()
    frames = fill(journal)
    journal.maintain()
    assert journal.room_bytes() > 0
    assert list(journal.replay(0)) == list(enumerate(frames, 1))
    journal.close()


def test_a_closed_journal_takes_nothing(reopen):
    journal = reopen()
    journal.append(0, [b"one"])
    journal.close()
    with pytest.raises(ValueError, match="closed"):
        journal.append(1, [b"two"])


def test_a_memory_journal_that_does_not_retain_only_counts():
    journal = MemoryJournal(retains=False)
    assert journal.append(0, [b"one", b"two"]) == 2
    assert (journal.first_lsn(), journal.tail_lsn()) == (3, 2)
    assert list(journal.replay(2)) == []
