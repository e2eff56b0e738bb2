"""What every journal must do, one clause per test, run against every implementation of the seam."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from driftq.storage.corruption import CorruptJournal
from driftq.storage.disk import OsDisk
from driftq.storage.file_journal import FileJournal
from driftq.storage.journal import Journal, MemoryJournal, WrongTail
from tests.support.simdisk import SimDisk
from tests.unit.storage.suites import STORE

SEGMENT_BYTES = 4096 + 1500

Reopen = Callable[[], Journal]  # the first call creates the journal, later ones open it as the last owner left it


def in_memory(_: Path) -> Reopen:
    return MemoryJournal().reopen


def in_simulated_files(_: Path) -> Reopen:
    disk = SimDisk()
    disk.make_folder("t", "d")
    return _in_files(disk, "d/journal")


def in_real_files(tmp_path: Path) -> Reopen:
    return _in_files(OsDisk(), f"{tmp_path}/journal")


def _in_files(disk: SimDisk | OsDisk, folder: str) -> Reopen:
    created: list[bool] = []

    def reopen() -> Journal:
        if created:
            return FileJournal.open(disk, folder, STORE, segment_bytes=SEGMENT_BYTES)
        created.append(True)
        return FileJournal.create(disk, folder, STORE, segment_bytes=SEGMENT_BYTES)

    return reopen


IMPLEMENTATIONS = [in_memory, in_simulated_files, in_real_files]


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda make: make.__name__)
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Reopen:
    return request.param(tmp_path)  # type: ignore[no-any-return]


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


@pytest.mark.parametrize("make", IMPLEMENTATIONS)
def test_the_checksum_at_the_tail_stands_for_the_history(make, tmp_path):
    one, other = make(tmp_path / "one")(), make(tmp_path / "other")()
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
    journal.check_owner()
    journal.save_watermark()
    assert journal.make_room()
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
