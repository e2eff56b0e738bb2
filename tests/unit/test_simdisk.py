"""The disk that forgets forgets what it should, and nothing else."""

from __future__ import annotations

import pytest

from driftq.storage.disk import DiskFailed, DiskFull
from tests.support.simdisk import Crash, Fault, SimDisk


def disk_with_file(seed: int = 0) -> SimDisk:
    """One folder and one file `d/f` of 2,000 bytes `a`, all durable."""
    disk = SimDisk(seed)
    disk.make_folder("t", "d")
    file = disk.create("t", "d/f")
    file.write_at("t", 0, b"a" * 2000)
    file.sync("t")
    disk.sync_folder("t", "d")
    disk.sync_folder("t", "")
    return disk


def test_what_was_synced_survives_every_power_cut() -> None:
    for seed in range(20):
        disk = disk_with_file(seed)
        disk.crash()
        assert disk.files() == {"d/f": b"a" * 2000}


def test_what_was_not_synced_is_lost_kept_or_torn_at_sectors() -> None:
    seen = set()
    for seed in range(200):
        disk = disk_with_file(seed)
        disk.open("d/f", write=True).write_at("t", 500, b"b" * 1200)
        disk.crash()
        content = disk.files()["d/f"]
        seen.add(content)
        assert content[:500] == b"a" * 500
        assert content[1700:] == b"a" * 300
        assert {len(set(content[at : at + 512])) for at in (512, 1024)} == {1}, "a sector is old or new"
    assert b"a" * 2000 in seen
    assert b"a" * 500 + b"b" * 1200 + b"a" * 300 in seen
    assert len(seen) > 5


def test_names_that_were_not_synced_stay_or_vanish() -> None:
    seen = set()
    for seed in range(100):
        disk = disk_with_file(seed)
        disk.create("t", "d/g").sync("t")
        disk.rename("t", "d/g", "d/h")
        disk.crash()
        seen.add(tuple(disk.list("d")))
    assert seen == {("f",), ("f", "g"), ("f", "h")}


def test_a_file_in_a_folder_that_vanishes_is_gone() -> None:
    disk = SimDisk()
    disk.make_folder("t", "d")
    disk.create("t", "d/f").sync("t")
    disk.sync_folder("t", "d")
    disk.crash("none")
    assert disk.files() == {}


def test_a_failed_sync_loses_the_writes_although_the_cache_shows_them_and_the_next_sync_succeeds() -> None:
    disk = disk_with_file()
    file = disk.open("d/f", write=True)
    file.write_at("t", 0, b"new")
    disk.fail_nth(1, Fault.EIO)
    with pytest.raises(DiskFailed):
        file.sync("t")
    file.sync("t")
    assert file.read_at(0, 3) == b"new"
    disk.crash("all")
    assert disk.files()["d/f"][:3] == b"aaa"


def test_a_lying_disk_syncs_nothing() -> None:
    disk = disk_with_file()
    disk.lie = True
    file = disk.open("d/f", write=True)
    file.write_at("t", 0, b"new")
    file.sync("t")
    disk.crash("none")
    assert disk.files()["d/f"][:3] == b"aaa"


def test_a_killed_process_loses_nothing_that_the_cache_holds_and_its_files_are_closed() -> None:
    disk = disk_with_file()
    file = disk.open("d/f", write=True)
    file.write_at("t", 0, b"new")
    disk.restart()
    assert disk.files()["d/f"][:3] == b"new"
    with pytest.raises(AssertionError):
        file.write_at("t", 0, b"ghost")


def test_the_disk_is_full_at_its_capacity_and_has_room_again_after_a_removal() -> None:
    disk = disk_with_file()
    disk.capacity_bytes = 2500
    with pytest.raises(DiskFull):
        disk.create("t", "d/g", 501)
    assert disk.list("d") == ["f"]
    disk.create("t", "d/g", 500)
    file = disk.open("d/f", write=True)
    with pytest.raises(DiskFull):
        file.write_at("t", 1999, b"xx")
    disk.remove("t", "d/g")
    file.write_at("t", 1999, b"xx")
    assert disk.fault_counts == {"full": 2}


@pytest.mark.parametrize("fault", Fault)
def test_each_fault_hits_exactly_the_call_it_is_meant_for(fault: Fault) -> None:
    disk = disk_with_file()
    file = disk.open("d/f", write=True)
    disk.fail_nth(2, fault, "here")
    file.write_at("there", 0, b"1")
    file.write_at("here", 0, b"2")
    with pytest.raises((DiskFull, DiskFailed, Crash)):
        file.write_at("here", 0, b"3")
    assert disk.fault_counts == {fault.value: 1}
    assert disk.counts["here"] == 2
    if fault in (Fault.ENOSPC, Fault.CRASH_BEFORE):
        assert file.read_at(0, 1) == b"2"
    if fault is Fault.CRASH_AFTER:
        assert file.read_at(0, 1) == b"3"


def test_the_same_seed_gives_the_same_ruin() -> None:
    def story(seed: int) -> dict[str, bytes]:
        disk = disk_with_file(seed)
        for n in range(10):
            disk.create("t", f"d/{n}").write_at("t", 0, bytes([n]) * 3000)
        disk.crash()
        return disk.files()

    assert story(5) == story(5)
    assert story(5) != story(6)


def test_a_copy_ends_on_its_own() -> None:
    disk = disk_with_file()
    disk.open("d/f", write=True).write_at("t", 0, b"b" * 2000)
    ends = set()
    for seed in range(30):
        twin = disk.copy(seed)
        twin.crash()
        ends.add(twin.files()["d/f"])
    assert len(ends) > 3
    assert disk.files()["d/f"] == b"b" * 2000
