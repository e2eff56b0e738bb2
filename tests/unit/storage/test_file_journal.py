"""The journal in files: what it keeps, what it cuts and what it refuses."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from driftq.storage.corruption import CorruptJournal, FilesMoved, FormatTooNew
from driftq.storage.disk import DiskFailed, OsDisk
from driftq.storage.file_journal import FileJournal
from driftq.storage.journal import AppendUnknown, JournalUnavailable
from driftq.storage.journal_files import HEADER_BYTES, checksum
from tests.support.simdisk import Crash, Fault, SimDisk
from tests.unit.storage.suites import STORE

SEGMENT = 8192
FOLDER = "d/journal"


def new_disk(seed: int = 0) -> SimDisk:
    disk = SimDisk(seed)
    disk.make_folder("t", "d")
    disk.sync_folder("t", "")
    return disk


def create(disk: SimDisk) -> FileJournal:
    return FileJournal.create(disk, FOLDER, STORE, segment_bytes=SEGMENT, parent="d")


def reopen(disk: SimDisk, known_lsn: int = 0) -> FileJournal:
    return FileJournal.open(disk, FOLDER, STORE, segment_bytes=SEGMENT, known_lsn=known_lsn)


def filled(disk: SimDisk, frames: int = 40, size_bytes: int = 500) -> FileJournal:
    """A journal of several segments, one frame to a block."""
    journal = create(disk)
    for n in range(frames):
        journal.append(n, [f"{n + 1}".encode().ljust(size_bytes, b".")])
    return journal


def append_until(journal: FileJournal, refusal: type[Exception]) -> int:
    """Append until it is refused; the tail then."""
    with suppress(refusal):
        for _ in range(1000):
            journal.append(journal.tail_lsn(), [b"x" * 500])
    return journal.tail_lsn()


def lsns(journal: FileJournal, after: int = 0) -> list[int]:
    return [lsn for lsn, _ in journal.replay(after)]


def segments(disk: SimDisk) -> list[str]:
    return [f"{FOLDER}/{name}" for name in disk.list(FOLDER) if name.endswith(".journal")]


def test_a_block_larger_than_a_segment_gets_a_segment_of_its_own() -> None:
    disk = new_disk()
    journal = create(disk)
    journal.append(0, [b"small"])
    journal.append(1, [b"x" * 50_000])
    journal.append(2, [b"small again"])
    journal.close()
    assert [len(frame) for _, frame in reopen(disk).replay(0)] == [5, 50_000, 11]


LARGE_FRAMES = [bytes([number]) * (300_000 + number) for number in range(3)]


def test_large_frames_are_written_in_parts_and_read_back() -> None:
    disk = new_disk()
    journal = create(disk)
    journal.append(0, [b"small"])
    journal.append(1, LARGE_FRAMES)
    journal.append(4, [b"small again"])
    journal.close()
    assert [frame for _, frame in reopen(disk).replay(0)] == [b"small", *LARGE_FRAMES, b"small again"]


@pytest.mark.parametrize("nth", [1, 2, 6])
def test_a_crash_between_the_parts_of_a_block_leaves_none_of_its_frames(nth: int) -> None:
    """Whichever of the parts a power cut leaves on the device."""
    for seed in range(5):
        disk = new_disk(seed)
        journal = create(disk)
        journal.append(0, [b"small"])
        disk.fail_nth(nth, Fault.CRASH_BEFORE, "journal.append")
        with pytest.raises(Crash):
            journal.append(1, LARGE_FRAMES)
        disk.crash()
        assert [frame for _, frame in reopen(disk).replay(0)] == [b"small"]


def test_a_segment_is_closed_early_and_the_journal_continues_in_the_next() -> None:
    disk = new_disk()
    journal = create(disk)
    journal.close_segment()
    assert len(segments(disk)) == 1, "there is nothing in it"
    journal.append(0, [b"one", b"two"])
    journal.close_segment()
    assert journal.closed_lsn() == journal.tail_lsn() == 2
    crc = journal.crc_at(2)
    journal.append(2, [b"three"])
    assert journal.crc_at(2) == crc
    journal.close()
    again = reopen(disk)
    assert [frame for _, frame in again.replay(0)] == [b"one", b"two", b"three"]
    assert again.closed_lsn() == 2


def test_a_segment_that_is_closed_early_on_a_full_disk_takes_no_room_from_decided_frames() -> None:
    disk = new_disk()
    journal = create(disk)
    journal.append(0, [b"one"])
    room_bytes = journal.room_bytes()
    disk.capacity_bytes = disk.used_bytes
    journal.close_segment()
    assert (journal.closed_lsn(), journal.room_bytes()) == (0, room_bytes), "there is no room for another segment"
    disk.capacity_bytes = None
    journal.close_segment()
    assert journal.closed_lsn() == 1
    assert journal.room_bytes() >= room_bytes


# ------------------------------------------------------------------------------------------------------------ torn tail


def test_a_torn_tail_is_cut_at_every_byte_and_nothing_else_is_lost() -> None:
    disk = new_disk()
    journal = filled(disk, 3, 50)
    journal.save_watermark()
    before = disk.files()[f"{FOLDER}/00000001.journal"]
    journal.append(3, [b"torn " * 40, b"more"])
    after = disk.files()[f"{FOLDER}/00000001.journal"]
    changed = [at for at, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    first, last = changed[0], changed[-1]
    for cut in range(first, last + 1):
        twin = disk.copy(cut)
        twin.put(f"{FOLDER}/00000001.journal", after[:cut] + before[cut:])
        opened = reopen(twin)
        assert lsns(opened) == [1, 2, 3]
        assert (opened.recovery.torn is not None) == (cut > first)
        if opened.recovery.torn:
            kept = opened.recovery.torn.kept_as
            assert kept is not None
            assert twin.files()[kept] == after[first:cut].rstrip(b"\0")
        assert twin.files()[f"{FOLDER}/00000001.journal"] == before
        opened.append(3, [b"new"])
        opened.close()
        assert lsns(reopen(twin)) == [1, 2, 3, 4]


def test_a_full_disk_skips_only_the_copy_of_a_torn_tail() -> None:
    disk = new_disk()
    filled(disk, 3, 50)
    content = disk.files()[f"{FOLDER}/00000001.journal"]
    end = len(content.rstrip(b"\0")) + 8 & -8
    disk.put(f"{FOLDER}/00000001.journal", content[:end] + b"torn" + content[end + 4 :])
    disk.capacity_bytes = 0
    journal = reopen(disk)
    assert journal.recovery.torn is not None
    assert journal.recovery.torn.kept_as is None
    assert lsns(journal) == [1, 2, 3]


def test_the_last_block_is_written_again_when_only_the_cache_may_know_it() -> None:
    disk = new_disk()
    journal = create(disk)
    journal.append(0, [b"one"])
    disk.fail_nth(1, Fault.EIO, "journal.sync")
    with pytest.raises(AppendUnknown):
        journal.append(1, [b"two"])
    disk.restart()
    journal = reopen(disk)
    assert lsns(journal) == [1, 2], "the cache shows the block whose sync failed"
    journal.append(2, [b"three"])
    disk.crash("none")
    assert lsns(reopen(disk)) == [1, 2, 3]


def test_frames_that_an_open_journal_returns_survive_a_power_cut_even_unacknowledged() -> None:
    disk = new_disk()
    journal = create(disk)
    disk.fail_nth(1, Fault.CRASH_BEFORE, "journal.sync")
    with pytest.raises(Crash):
        journal.append(0, [b"one"])
    disk.restart()
    assert lsns(reopen(disk)) == [1]
    disk.crash("none")
    assert lsns(reopen(disk)) == [1]


def test_a_segment_whose_name_was_not_yet_durable_is_not_lost_after_a_kill_and_a_power_cut() -> None:
    for nth in range(1, 5):
        disk = new_disk()
        journal = filled(disk, 7)
        disk.fail_nth(nth, Fault.CRASH_BEFORE, "journal.sync_folder")
        tail = 7
        try:
            while tail < 40:
                tail = journal.append(tail, [b"x" * 500])
        except Crash:
            disk.restart()
            journal = reopen(disk)
            tail = journal.append(journal.tail_lsn(), [b"y"])
        disk.crash("none")
        assert lsns(reopen(disk)) == list(range(1, tail + 1))


# -------------------------------------------------------------------------------------------------------------- refused


def test_damage_at_or_below_the_watermark_is_refused_with_its_place() -> None:
    disk = new_disk()
    filled(disk, 3, 50).close()
    path = f"{FOLDER}/00000001.journal"
    disk.flip(path, (HEADER_BYTES + 88 + 40) * 8)
    files = disk.files()
    with pytest.raises(CorruptJournal) as refused:
        reopen(disk)
    assert (refused.value.file, refused.value.position) == (path, HEADER_BYTES + 88)
    assert (refused.value.first_lsn, refused.value.last_lsn) == (2, 3)
    assert "driftq repair truncate DIR --accept-loss" in str(refused.value)
    assert disk.files() == files, "a refusal changes nothing"


def test_damage_above_the_watermark_is_refused_when_a_later_block_proves_that_it_was_durable() -> None:
    disk = new_disk()
    journal = filled(disk, 3, 50)
    assert journal.recovery.watermark_lsn == 0
    disk.flip(f"{FOLDER}/00000001.journal", (HEADER_BYTES + 88 + 40) * 8)
    with pytest.raises(CorruptJournal, match="proves"):
        reopen(disk)


def test_a_lost_tail_that_the_watermark_or_a_snapshot_knows_is_refused() -> None:
    disk = new_disk()
    journal = filled(disk, 3, 50)
    before = disk.files()[f"{FOLDER}/00000001.journal"]
    journal.append(3, [b"last"])
    lost = disk.copy(0)
    lost.put(f"{FOLDER}/00000001.journal", before)
    assert lsns(reopen(lost.copy(0))) == [1, 2, 3], "without a witness this looks like a crash"
    with pytest.raises(CorruptJournal, match="known to have been durable"):
        reopen(lost, known_lsn=4)
    journal.close()
    disk.put(f"{FOLDER}/00000001.journal", before)
    with pytest.raises(CorruptJournal, match="known to have been durable"):
        reopen(disk)


def test_a_disk_that_lies_about_syncing_is_found_out() -> None:
    disk = new_disk()
    journal = create(disk)
    journal.append(0, [b"one"])
    disk.lie = True
    journal.append(1, [b"two"])
    disk.lie = False
    journal.close()
    disk.crash("none")
    with pytest.raises(CorruptJournal, match="lsn 2 is known to have been durable"):
        reopen(disk)


@pytest.mark.parametrize("number", range(5))
def test_a_missing_segment_is_refused(number: int) -> None:
    disk = new_disk()
    filled(disk)
    path = segments(disk)[number]
    disk.put(path, None)
    with pytest.raises(CorruptJournal, match="missing"):
        reopen(disk)


def test_segments_that_changed_places_are_refused() -> None:
    disk = new_disk()
    filled(disk).close()
    one, two = segments(disk)[1:3]
    files = disk.files()
    disk.put(one, files[two])
    disk.put(two, files[one])
    with pytest.raises(CorruptJournal, match="under the name of"):
        reopen(disk)


def test_a_copy_of_a_segment_under_the_next_number_is_refused() -> None:
    disk = new_disk()
    filled(disk).close()
    paths = segments(disk)
    disk.put(f"{FOLDER}/{len(paths) + 1:08d}.journal", disk.files()[paths[-1]])
    with pytest.raises(CorruptJournal, match="under the name of"):
        reopen(disk)


@pytest.mark.parametrize("size", [0, 100, 4096, 4500, 5000])
@pytest.mark.parametrize("number", [0, -1])
def test_a_truncated_segment_is_refused(number: int, size: int) -> None:
    disk = new_disk()
    filled(disk).close()
    path = segments(disk)[number]
    disk.put(path, disk.files()[path][:size])
    with pytest.raises(CorruptJournal):
        reopen(disk)


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("left", [64, 300, -1])
def test_a_segment_that_lost_padding_only_is_accepted_and_reported(number: int, clean: bool, left: int) -> None:
    disk = new_disk()
    journal = filled(disk, 38)
    frames = list(journal.replay(0))
    if clean:
        journal.close()
    path = segments(disk)[number]
    content = disk.files()[path]
    used = len(content.rstrip(b"\0"))
    disk.put(path, content[: used + left] if left > 0 else content[:left])
    disk.restart()
    reopened = reopen(disk)
    assert reopened.recovery.shortened == (path,)
    assert list(reopened.replay(0)) == frames
    for number_ in range(20):
        reopened.append(len(frames) + number_, [b"more" * 100])
    reopened.close()
    assert len(list(reopen(disk).replay(0))) == len(frames) + 20


def test_a_segment_cut_where_its_last_block_ends_is_accepted_only_if_nothing_can_be_missing() -> None:
    disk = new_disk()
    filled(disk, 38).close()  # the watermark knows the last block
    path = segments(disk)[-1]
    content = disk.files()[path]
    disk.put(path, content.rstrip(b"\0"))
    assert reopen(disk).tail_lsn() == 38
    disk = new_disk()
    journal = filled(disk, 38)  # killed: it does not
    disk.put(path, content.rstrip(b"\0"))
    del journal
    disk.restart()
    with pytest.raises(CorruptJournal, match="was cut to"):
        reopen(disk)


def test_a_block_of_an_older_history_does_not_fit_into_the_chain() -> None:
    disk = new_disk()
    filled(disk).close()
    other = new_disk()
    journal = create(other)
    for n in range(40):
        journal.append(n, [f"other {n + 1}".encode().ljust(500, b".")])
    journal.close()
    path = segments(disk)[2]
    disk.put(path, other.files()[path])
    with pytest.raises(CorruptJournal):
        lsns(reopen(disk))


def test_blocks_of_two_histories_in_one_segment_are_refused_although_each_is_whole() -> None:
    disk, other = new_disk(), new_disk()
    for target, text in ((disk, b"ours"), (other, b"else")):
        journal = create(target)
        for n in range(3):
            journal.append(n, [text])
        journal.close()
    path = segments(disk)[0]
    ours, theirs = disk.files()[path], other.files()[path]
    assert ours[:HEADER_BYTES] == theirs[:HEADER_BYTES], "the chain alone can tell them apart"
    second = HEADER_BYTES + 40
    disk.put(path, ours[:second] + theirs[second:])
    with pytest.raises(CorruptJournal) as refused:
        reopen(disk)
    assert refused.value.position == second


def test_damage_in_an_earlier_segment_stops_the_replay_where_it_lies() -> None:
    disk = new_disk()
    filled(disk).close()
    path = segments(disk)[1]
    disk.flip(path, (HEADER_BYTES + 700) * 8)
    journal = reopen(disk)
    seen: list[tuple[int, bytes]] = []
    with pytest.raises(CorruptJournal) as refused:
        seen.extend(journal.replay(0))
    assert [lsn for lsn, _ in seen] == list(range(1, refused.value.first_lsn))
    assert refused.value.file == path
    assert refused.value.last_lsn < 40
    assert lsns(journal, 30) == list(range(31, 41)), "a snapshot behind the damage does not need what is damaged"


def test_a_foreign_store_and_a_later_format_are_refused_by_name() -> None:
    disk = new_disk()
    filled(disk, 2).close()
    with pytest.raises(CorruptJournal):
        FileJournal.open(disk, FOLDER, bytes(16), segment_bytes=SEGMENT)
    path = segments(disk)[0]
    other = new_disk()
    FileJournal.create(other, FOLDER, bytes(16), segment_bytes=SEGMENT).close()
    ours = disk.files()[path]
    disk.put(path, other.files()[path])
    with pytest.raises(CorruptJournal, match="another store"):
        reopen(disk)
    page = bytearray(ours)
    page[8] = 2
    page[HEADER_BYTES - 4 : HEADER_BYTES] = checksum(bytes(page[: HEADER_BYTES - 4]))
    disk.put(path, bytes(page))
    with pytest.raises(FormatTooNew, match="format 2; this version reads up to format 1"):
        reopen(disk)


def test_a_journal_without_its_watermark_is_refused() -> None:
    disk = new_disk()
    filled(disk, 2).close()
    disk.put(f"{FOLDER}/watermark", None)
    with pytest.raises(CorruptJournal, match="watermark"):
        reopen(disk)


def test_a_new_journal_is_never_made_over_one_that_holds_frames() -> None:
    disk = new_disk()
    filled(disk, 2).close()
    with pytest.raises(CorruptJournal, match="FORMAT"):
        create(disk)


# ---------------------------------------------------------------------------------------------------------- room, death


def test_a_full_disk_is_known_before_a_byte_is_written_and_service_returns_with_the_room() -> None:
    disk = new_disk()
    journal = create(disk)
    room = journal.room_bytes()
    assert room == 2 * (SEGMENT - HEADER_BYTES)
    disk.capacity_bytes = disk.used_bytes
    tail = append_until(journal, JournalUnavailable)
    files = disk.files()
    with pytest.raises(JournalUnavailable):
        journal.append(tail, [b"x" * 500])
    assert disk.files() == files, "the refused append wrote nothing"
    assert tail * 500 > room * 0.8
    assert not journal.make_room()
    assert journal.tail_lsn() == tail
    disk.capacity_bytes += SEGMENT
    assert journal.make_room()
    assert journal.append(tail, [b"y"]) == tail + 1
    journal.close()
    assert lsns(reopen(disk)) == list(range(1, tail + 2))


def test_a_large_block_that_finds_no_room_leaves_the_reserve_alone() -> None:
    disk = new_disk()
    journal = create(disk)
    disk.capacity_bytes = disk.used_bytes + 100
    room = journal.room_bytes()
    with pytest.raises(JournalUnavailable):
        journal.append(0, [b"x" * 20_000])
    assert journal.room_bytes() == room
    assert journal.append(0, [b"x" * 1000]) == 1


@pytest.mark.parametrize("label", ["journal.append", "journal.sync", "journal.header.sync", "journal.rename"])
def test_after_a_failed_call_the_journal_is_dead(label: str) -> None:
    disk = new_disk()
    journal = create(disk)
    disk.fail_nth(1, Fault.EIO, label)
    tail = append_until(journal, AppendUnknown)
    with pytest.raises(AppendUnknown) as failed:
        journal.append(tail, [b"x" * 500])
    assert isinstance(failed.value.__cause__, DiskFailed)
    assert failed.value.__cause__.label == label
    for call in (
        lambda: journal.append(tail, [b"y"]),
        journal.save_watermark,
        journal.make_room,
        lambda: journal.trim(1),
    ):
        with pytest.raises(AppendUnknown):
            call()
    journal.close()


def test_a_trim_that_was_interrupted_is_finished_at_the_next_open() -> None:
    for nth in range(1, 12):
        disk = new_disk(nth)
        journal = filled(disk)
        disk.fail_nth(nth, Fault.CRASH_AFTER)
        with suppress(Crash):
            journal.trim(30)
        disk.crash()
        journal = reopen(disk)
        assert lsns(journal, 29) == list(range(30, 41))
        assert journal.first_lsn() in (1, 29)
        first = int(segments(disk)[0][-16:-8])
        assert (first == 1) == (journal.first_lsn() == 1)


@pytest.mark.parametrize("is_new", [True, False])
def test_files_that_are_in_place_are_found_there_and_others_are_not(tmp_path: Path, is_new: bool) -> None:
    folder = f"{tmp_path}/journal"
    journal = FileJournal.create(OsDisk(), folder, STORE, segment_bytes=SEGMENT)
    for number in range(60):
        journal.append(number, [b"x" * 300])
    if not is_new:
        journal.close()
        journal = FileJournal.open(OsDisk(), folder, STORE, segment_bytes=SEGMENT)
    journal.make_room()
    journal.check_owner()
    first = min(Path(folder).glob("*.journal"))
    first.rename(f"{tmp_path}/aside")
    with pytest.raises(FilesMoved, match=first.name):
        journal.check_owner()
    with pytest.raises(FilesMoved):
        journal.append(60, [b"x"])
    journal.close()
