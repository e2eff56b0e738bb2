"""Snapshots: whole or not there, two generations, never trusted when damaged."""

from __future__ import annotations

import pytest

from driftq.storage import snapshots
from driftq.storage.corruption import CorruptSnapshot, FormatTooNew
from driftq.storage.disk import DiskFull
from driftq.storage.journal_files import checksum
from tests.support.simdisk import Crash, Fault, SimDisk
from tests.unit.storage.suites import STORE

FOLDER = "d/snapshots"
FRAMES = [b"", b"a", b"b" * 300_000, *(bytes([n % 256]) * (n % 50) for n in range(2000))]


def new_disk(seed: int = 0) -> SimDisk:
    disk = SimDisk(seed)
    disk.make_folder("t", FOLDER)
    disk.sync_folder("t", "d")
    disk.sync_folder("t", "")
    return disk


def load(disk: SimDisk) -> tuple[int, list[bytes]]:
    newest = snapshots.load_newest(disk, FOLDER, STORE)
    assert newest.snapshot is not None
    return newest.snapshot.lsn, list(snapshots.read_frames(disk, newest.snapshot, STORE))


def test_a_snapshot_gives_back_its_frames() -> None:
    disk = new_disk()
    saved = snapshots.save(disk, FOLDER, STORE, 42, iter(FRAMES), chain_crc=7)
    newest = snapshots.load_newest(disk, FOLDER, STORE)
    assert newest.snapshot == saved
    assert (saved.lsn, saved.chain_crc, saved.frame_count) == (42, 7, len(FRAMES))
    assert newest.base_lsn() == 42
    assert load(disk) == (42, FRAMES)


def test_an_empty_snapshot_and_no_snapshot_are_different() -> None:
    disk = new_disk()
    assert snapshots.load_newest(disk, FOLDER, STORE) == snapshots.Newest(None, ())
    snapshots.save(disk, FOLDER, STORE, 0, [])
    assert load(disk) == (0, [])


def test_two_generations_are_kept() -> None:
    disk = new_disk()
    for lsn in (3, 5, 9):
        snapshots.save(disk, FOLDER, STORE, lsn, [b"%d" % lsn])
    assert snapshots.snapshot_lsns(disk, FOLDER) == [5, 9]
    assert load(disk) == (9, [b"9"])


def test_a_damaged_snapshot_is_reported_kept_and_passed_over() -> None:
    disk = new_disk()
    snapshots.save(disk, FOLDER, STORE, 5, [b"older"])
    newer = snapshots.save(disk, FOLDER, STORE, 9, [b"newer"])
    disk.flip(newer.path, 8 * 90)
    newest = snapshots.load_newest(disk, FOLDER, STORE)
    assert newest.snapshot is not None
    assert newest.base_lsn() == 5
    assert [error.file for error in newest.damaged] == [newer.path]
    assert disk.exists(newer.path)


def test_a_snapshot_cut_short_at_any_byte_is_damaged() -> None:
    disk = new_disk()
    saved = snapshots.save(disk, FOLDER, STORE, 5, [b"one", b"two"])
    whole = disk.files()[saved.path]
    for size in range(len(whole)):
        disk.put(saved.path, whole[:size])
        with pytest.raises(CorruptSnapshot):
            snapshots.verify(disk, saved.path, STORE)
    disk.put(saved.path, whole + b"\0")
    with pytest.raises(CorruptSnapshot):
        snapshots.verify(disk, saved.path, STORE)


def test_a_snapshot_of_another_store_name_or_format_is_refused() -> None:
    disk = new_disk()
    saved = snapshots.save(disk, FOLDER, STORE, 5, [b"one"])
    with pytest.raises(CorruptSnapshot, match="another store"):
        snapshots.verify(disk, saved.path, bytes(16))
    data = disk.files()[saved.path]
    disk.put(f"{FOLDER}/{6:020d}.snapshot", data)
    with pytest.raises(CorruptSnapshot, match="another name"):
        snapshots.verify(disk, f"{FOLDER}/{6:020d}.snapshot", STORE)
    head = bytearray(data[: snapshots.HEADER_BYTES - 8])
    head[8] = 9
    disk.put(saved.path, bytes(head) + checksum(bytes(head)) + bytes(4) + data[snapshots.HEADER_BYTES :])
    disk.put(f"{FOLDER}/{6:020d}.snapshot", None)
    with pytest.raises(FormatTooNew):
        snapshots.load_newest(disk, FOLDER, STORE)


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_whenever_the_machine_stops_the_old_or_the_new_snapshot_is_there(fault: Fault) -> None:
    for nth in range(1, 100):
        disk = new_disk(nth)
        snapshots.save(disk, FOLDER, STORE, 5, [b"older"])
        snapshots.save(disk, FOLDER, STORE, 6, [b"old"])
        disk.fail_nth(nth, fault)
        try:
            snapshots.save(disk, FOLDER, STORE, 9, [b"new"] * 10)
        except Crash:
            disk.crash()
            assert load(disk) in ((6, [b"old"]), (9, [b"new"] * 10))
            assert snapshots.load_newest(disk, FOLDER, STORE).damaged == ()
            snapshots.save(disk, FOLDER, STORE, 10, [b"next"])
            assert load(disk) == (10, [b"next"])
        else:
            disk.crash("none")
            assert load(disk) == (9, [b"new"] * 10), "a finished save is durable"
            return
    pytest.fail("no run was left alone")


def test_a_snapshot_that_finds_no_room_leaves_the_old_one_and_no_litter() -> None:
    disk = new_disk()
    snapshots.save(disk, FOLDER, STORE, 5, [b"old"])
    disk.capacity_bytes = disk.used_bytes + 1000
    with pytest.raises(DiskFull):
        snapshots.save(disk, FOLDER, STORE, 9, [b"x" * 2000])
    assert disk.list(FOLDER) == [f"{5:020d}.snapshot"]
