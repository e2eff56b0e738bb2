"""Reading a damaged journal: every readable frame is found, every damage is named, nothing changes."""

from __future__ import annotations

from driftq.repair.folder_reader import Damage, JournalFrame, scan_journal
from driftq.storage.journal_files import HEADER_BYTES
from tests.support.simdisk import SimDisk
from tests.unit.storage.suites import STORE
from tests.unit.storage.test_file_journal import FOLDER, filled, new_disk, segments


def scanned(disk: SimDisk, known_lsn: int = 0) -> tuple[list[int], list[Damage]]:
    """The lsns that are readable, and the damages. The scan must not change a byte."""
    before = disk.files()
    items = list(scan_journal(disk, FOLDER, STORE, known_lsn))
    assert disk.files() == before
    frames = [item for item in items if isinstance(item, JournalFrame)]
    assert all(frame.frame.rstrip(b".") == str(frame.lsn).encode() for frame in frames)
    return [frame.lsn for frame in frames], [item for item in items if isinstance(item, Damage)]


def closed_journal() -> SimDisk:
    disk = new_disk()
    filled(disk).close()
    return disk


ALL = list(range(1, 41))


def test_a_sound_journal_has_every_frame_at_its_position_and_no_damage() -> None:
    disk = closed_journal()
    assert scanned(disk) == (ALL, [])
    first, second = list(scan_journal(disk, FOLDER, STORE))[:2]
    assert isinstance(first, JournalFrame)
    assert isinstance(second, JournalFrame)
    assert (first.file, first.position) == (segments(disk)[0], HEADER_BYTES)
    assert second.position == HEADER_BYTES + 536


def test_frames_after_a_damaged_block_are_found() -> None:
    disk = closed_journal()
    disk.flip(segments(disk)[1], 8 * (HEADER_BYTES + 700))
    lsns, (damage,) = scanned(disk)
    assert damage.first_lsn == damage.last_lsn
    assert lsns == [lsn for lsn in ALL if lsn != damage.first_lsn]


def test_a_damaged_header_hides_no_frame_because_the_segment_before_implies_it() -> None:
    disk = closed_journal()
    for path in (segments(disk)[0], segments(disk)[2]):
        disk.put(path, bytes(HEADER_BYTES) + disk.files()[path][HEADER_BYTES:])
    lsns, damages = scanned(disk)
    assert lsns == ALL
    assert [damage.file for damage in damages] == [segments(disk)[0], segments(disk)[2]]


def test_a_missing_segment_and_a_missing_end_are_damage() -> None:
    disk = closed_journal()
    paths = segments(disk)
    disk.put(paths[2], None)
    disk.put(paths[-1], None)
    lsns, damages = scanned(disk)
    assert lsns[0] == 1
    assert 15 < len(lsns) < 40
    assert {paths[2], paths[-1]} <= {damage.file for damage in damages}
    assert damages[-1].last_lsn == 40, "the watermark knows how far the journal reached"


def test_a_missing_watermark_is_damage_and_hides_no_frame() -> None:
    disk = closed_journal()
    disk.put(f"{FOLDER}/watermark", None)
    lsns, (damage,) = scanned(disk)
    assert lsns == ALL
    assert damage.file == f"{FOLDER}/watermark"


def test_a_journal_that_ends_before_the_snapshot_is_damaged() -> None:
    disk = closed_journal()
    assert scanned(disk, known_lsn=40)[1] == []
    (damage,) = scanned(disk, known_lsn=45)[1]
    assert (damage.first_lsn, damage.last_lsn) == (41, 45)
