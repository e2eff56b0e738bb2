"""Looking into a damaged journal, and making one that opens out of what is left."""

from __future__ import annotations

import pytest

from driftq.repair.journal_scan import Damage, FoundFrame, inspect, repair
from driftq.storage.corruption import CorruptJournal
from driftq.storage.file_journal import FileJournal
from driftq.storage.journal_files import HEADER_BYTES
from tests.support.simdisk import Crash, Fault, SimDisk
from tests.unit.storage.suites import STORE
from tests.unit.storage.test_file_journal import FOLDER, SEGMENT, create, filled, new_disk, reopen, segments


def hole(first_lsn: int, last_lsn: int) -> bytes:
    return f"hole {first_lsn}-{last_lsn}".encode()


def mend(disk: SimDisk, base_lsn: int = 0) -> list[tuple[int, bytes]]:
    """Repair, and give what a replay says afterwards; the lsns must be dense."""
    report = repair(disk, FOLDER, STORE, hole, base_lsn=base_lsn, segment_bytes=SEGMENT)
    assert disk.exists(report.kept_as)
    disk.crash("none")
    journal = reopen(disk, base_lsn)
    found = list(journal.replay(journal.first_lsn() - 1))
    assert [lsn for lsn, _ in found] == list(range(journal.first_lsn(), journal.tail_lsn() + 1))
    for first, last in report.holes:
        assert {frame for lsn, frame in found if first <= lsn <= last} == {hole(first, last)}
    assert journal.append(journal.tail_lsn(), [b"on"]) == journal.tail_lsn()
    journal.close()
    return found


def names(found: list[tuple[int, bytes]]) -> list[str]:
    return [frame.rstrip(b".").decode() for _, frame in found]


def test_a_whole_journal_shows_every_frame_in_its_place_and_no_damage() -> None:
    disk = new_disk()
    filled(disk).close()
    files = disk.files()
    found = list(inspect(disk, FOLDER, STORE))
    assert [each.lsn for each in found if isinstance(each, FoundFrame)] == list(range(1, 41))
    assert len(found) == 40
    first, second = found[:2]
    assert isinstance(first, FoundFrame)
    assert isinstance(second, FoundFrame)
    assert (first.file, first.position) == (segments(disk)[0], HEADER_BYTES)
    assert second.position == HEADER_BYTES + 536
    assert disk.files() == files


def test_a_damaged_block_becomes_a_hole_and_everything_around_it_stays() -> None:
    disk = new_disk()
    filled(disk).close()
    disk.flip(segments(disk)[1], 8 * (HEADER_BYTES + 700))
    (damage,) = [each for each in inspect(disk, FOLDER, STORE) if isinstance(each, Damage)]
    assert damage.first_lsn == damage.last_lsn
    expected = [str(lsn) for lsn in range(1, 41)]
    expected[damage.first_lsn - 1] = f"hole {damage.first_lsn}-{damage.first_lsn}"
    assert names(mend(disk)) == expected


def test_a_damaged_header_loses_nothing_because_it_can_be_worked_out() -> None:
    disk = new_disk()
    filled(disk).close()
    for path in (segments(disk)[0], segments(disk)[2]):
        disk.put(path, bytes(HEADER_BYTES) + disk.files()[path][HEADER_BYTES:])
    with pytest.raises(CorruptJournal):
        reopen(disk)
    assert names(mend(disk)) == [str(lsn) for lsn in range(1, 41)]


def test_a_missing_segment_and_a_lost_end_become_holes() -> None:
    disk = new_disk()
    filled(disk).close()
    paths = segments(disk)
    disk.put(paths[2], None)
    disk.put(paths[-1], None)
    found = names(mend(disk))
    assert len(found) == 40
    assert found[0] == "1"
    assert found[-1].startswith("hole ")
    assert found[-1].endswith("-40")
    assert sum(name.startswith("hole") for name in found) < 25


def test_a_missing_watermark_is_made_again_without_any_loss() -> None:
    disk = new_disk()
    filled(disk).close()
    disk.put(f"{FOLDER}/watermark", None)
    assert names(mend(disk)) == [str(lsn) for lsn in range(1, 41)]


def test_what_a_snapshot_covers_is_not_needed_but_known() -> None:
    disk = new_disk()
    journal = filled(disk)
    journal.trim(20)
    first = journal.first_lsn()
    journal.close()
    for path in segments(disk):
        disk.put(path, None)
    found = mend(disk, base_lsn=30)
    assert first > 1
    assert found == [(lsn, b"hole 31-40") for lsn in range(31, 41)]


def test_a_journal_can_be_repaired_twice() -> None:
    disk = new_disk()
    filled(disk).close()
    disk.flip(segments(disk)[1], 8 * (HEADER_BYTES + 700))
    mend(disk)
    disk.flip(segments(disk)[-1], 8 * (HEADER_BYTES + 20))
    found = names(mend(disk))
    assert len(found) == 41
    assert sum(name.startswith("hole") for name in found) == 2
    assert {"journal.damaged-1", "journal.damaged-2"} <= set(disk.list("d"))


def test_an_interrupted_repair_is_done_again_and_never_loses_the_damaged_original() -> None:
    for nth in range(1, 500):
        disk = new_disk(nth)
        filled(disk, 20).close()
        disk.flip(segments(disk)[1], 8 * (HEADER_BYTES + 700))
        original = {path.rpartition("/")[2]: data for path, data in disk.files().items() if path.endswith(".journal")}
        disk.fail_nth(nth, Fault.CRASH_AFTER)
        try:
            repair(disk, FOLDER, STORE, hole, segment_bytes=SEGMENT)
        except Crash:
            disk.crash()
        else:
            return
        if disk.exists(FOLDER):
            try:
                list(reopen(disk).replay(0))
            except CorruptJournal:
                repair(disk, FOLDER, STORE, hole, segment_bytes=SEGMENT)
        else:
            with pytest.raises(CorruptJournal):
                reopen(disk)
            repair(disk, FOLDER, STORE, hole, segment_bytes=SEGMENT)
        journal = reopen(disk)
        assert [lsn for lsn, _ in journal.replay(0)] == list(range(1, 21))
        aside = {
            path.rpartition("/")[2]: data
            for path, data in disk.files().items()
            if ".damaged-1/" in path and path.endswith(".journal")
        }
        assert aside == original
    pytest.fail("no run was left alone")


def test_a_new_journal_cannot_be_made_in_place_of_a_missing_one_by_opening_it() -> None:
    disk = new_disk()
    with pytest.raises(CorruptJournal):
        FileJournal.open(disk, FOLDER, STORE)
    assert create(disk).tail_lsn() == 0
