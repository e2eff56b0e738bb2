"""The log stores: one suite for all of them, then what only files can do."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from driftq.storage.corruption import CorruptLog
from driftq.storage.disk import DiskFull, OsDisk
from driftq.storage.file_log_store import FileLogStore
from driftq.storage.log_store import LogStore, MemoryLogStore
from tests.support.simdisk import SimDisk
from tests.unit.storage.suites import STORE, batch, check_log_store

SEGMENT = 4096


def files_on(disk: SimDisk, **settings: int) -> FileLogStore:
    return FileLogStore(disk, "d/logs", SEGMENT, store=STORE, **settings)


def filled(disk: SimDisk, log_id: int = 1, records: int = 100, **settings: int) -> FileLogStore:
    store = files_on(disk, **settings)
    for offset in range(records):
        store.append(log_id, offset, 1, batch(offset, at_ms=offset, size_bytes=100))
    return store


def expected(first: int, end: int) -> list[bytes]:
    return [batch(offset, at_ms=offset, size_bytes=100) for offset in range(first, end)]


@pytest.mark.parametrize(
    "kind", ["memory", "real files", "simulated files", "no cache, one open file", "shared", "shared at first"]
)
def test_every_log_store_does_what_a_log_store_does(kind: str, tmp_path: Path) -> None:
    numbers = count()
    makers: dict[str, Callable[[], LogStore]] = {
        "memory": MemoryLogStore,
        "real files": lambda: FileLogStore(OsDisk(), f"{tmp_path}/{next(numbers)}", SEGMENT),
        "simulated files": lambda: files_on(SimDisk()),
        "no cache, one open file": lambda: files_on(SimDisk(), cache_bytes=0, open_files=1),
        "shared": lambda: files_on(SimDisk(), share_bytes=1 << 30, shared_segment_bytes=2_000),
        "shared at first": lambda: files_on(SimDisk(), share_bytes=20_000, shared_segment_bytes=2_000),
    }
    check_log_store(makers[kind])


def test_a_log_is_read_again_after_a_restart_and_what_lies_behind_the_snapshot_is_cut() -> None:
    for end in range(0, 101, 7):
        disk = SimDisk(end)
        disk.make_folder("t", "d")
        disk.sync_folder("t", "")
        store = filled(disk)
        store.sync()
        disk.restart()
        store = files_on(disk)
        store.restore(1, 0, end)
        assert store.end(1) == end
        assert store.read(1, 0, 1000, 1 << 30) == expected(0, end)
        store.append(1, end, 1, batch(end, salt="other"))
        assert store.read(1, end, 1000, 1 << 30) == [batch(end, salt="other")]
        store.sync()
        disk.crash("none")
        store = files_on(disk)
        store.restore(1, 0, end + 1)
        assert store.read(1, 0, 1000, 1 << 30) == [*expected(0, end), batch(end, salt="other")]


@pytest.mark.parametrize("index", ["kept", "older", "lost", "damaged"])
def test_the_index_is_only_a_cache(index: str) -> None:
    disk = SimDisk()
    store = filled(disk)
    store.sync()
    old = {path: data for path, data in disk.files().items() if path.endswith(".index")}
    for offset in range(100, 150):
        store.append(1, offset, 1, batch(offset, at_ms=offset, size_bytes=100))
    store.sync()
    disk.restart()
    for path, data in disk.files().items():
        if path.endswith(".index") and index != "kept":
            disk.put(path, {"older": old.get(path), "lost": None, "damaged": data[:-3] + b"???"}[index])
    store = files_on(disk)
    store.restore(1, 0, 150)
    assert store.read(1, 0, 1000, 1 << 30) == expected(0, 150)
    assert store.offset_at(1, 77) == 77


def test_what_was_synced_survives_power_cuts_and_what_was_not_is_cut() -> None:
    for seed in range(60):
        disk = SimDisk(seed)
        disk.make_folder("t", "d")
        disk.sync_folder("t", "")
        store = filled(disk, records=60)
        store.sync()
        for offset in range(60, 120):
            store.append(1, offset, 1, batch(offset, salt="lost", size_bytes=100))
        disk.crash()
        store = files_on(disk)
        store.restore(1, 0, 60)
        store.append(1, 60, 1, batch(60, at_ms=60, size_bytes=100))
        assert store.read(1, 0, 1000, 1 << 30) == expected(0, 61)


def test_logs_are_not_touched_before_they_are_used_and_few_files_are_open() -> None:
    disk = SimDisk()
    opened: list[str] = []
    real_open = disk.open
    disk.open = lambda path, write=False: (opened.append(path), real_open(path))[1]  # type: ignore[method-assign, assignment]
    store = files_on(disk, open_files=3)
    for log_id in range(50):
        store.append(log_id, 0, 1, batch(0, salt=str(log_id)))
    store.sync()
    disk.restart()
    opened.clear()
    store = files_on(disk, open_files=3)
    for log_id in range(50):
        store.restore(log_id, 0, 1)
    assert opened == []
    for log_id in range(50):
        assert store.read(log_id, 0, 1, 100) == [batch(0, salt=str(log_id))]
    assert len(store._files._files) <= 3


def test_a_full_disk_keeps_batches_in_memory_and_writes_them_when_room_returns() -> None:
    disk = SimDisk()
    store = filled(disk, records=30)
    disk.capacity_bytes = disk.used_bytes + 300
    for offset in range(30, 90):
        store.append(1, offset, 1, batch(offset, at_ms=offset, size_bytes=100))
    assert store.is_full()
    assert store.end(1) == 90
    assert store.read(1, 0, 1000, 1 << 30) == expected(0, 90)
    assert store.offset_at(1, 85) == 85
    with pytest.raises(DiskFull):
        store.sync()
    disk.capacity_bytes = None
    assert store.make_room()
    assert not store.is_full()
    store.sync()
    disk.restart()
    store = files_on(disk)
    store.restore(1, 0, 90)
    assert store.read(1, 0, 1000, 1 << 30) == expected(0, 90)


def test_damage_is_found_by_the_read_that_meets_it_and_by_no_other() -> None:
    disk = SimDisk()
    filled(disk).sync()
    disk.restart()
    second = sorted(path for path in disk.files() if path.endswith(".log"))[1]
    first_offset = int(second[-24:-4])
    disk.flip(second, 8 * 500)
    store = files_on(disk)
    store.restore(1, 0, 100)
    with pytest.raises(CorruptLog) as error:
        store.read(1, first_offset + 1, 100, 1 << 30)
    assert (error.value.log_id, error.value.offset, error.value.file) == (1, first_offset + 1, second)
    assert store.read(1, 0, first_offset, 1 << 30) == expected(0, first_offset)
    assert store.read(1, 90, 100, 1 << 30) == expected(90, 100)
    store.append(1, 100, 1, batch(100, at_ms=100, size_bytes=100))
    assert store.read(1, 95, 200, 1 << 30) == expected(95, 101)


def test_a_stamp_that_changed_is_damage_too() -> None:
    disk = SimDisk()
    filled(disk, records=10).sync()
    disk.restart()
    (path,) = [path for path in disk.files() if path.endswith(".log")]
    disk.flip(path, 8 * (64 + 16))  # at_ms of the first batch, which its own checksum does not cover
    store = files_on(disk)
    store.restore(1, 0, 10)
    with pytest.raises(CorruptLog):
        store.read(1, 0, 10, 1 << 30)


@pytest.mark.parametrize("what", ["missing", "truncated", "of another log", "headless"])
def test_a_missing_or_changed_segment_is_damage_and_appends_continue(what: str) -> None:
    disk = SimDisk()
    filled(disk, 1).sync()
    store = filled(disk, 2)
    store.sync()
    disk.restart()
    files = disk.files()
    last = sorted(path for path in files if path.startswith("d/logs/1/") and path.endswith(".log"))[-1]
    first_offset = int(last[-24:-4])
    new: dict[str, bytes | None] = {
        "missing": None,
        "truncated": files[last][:300],
        "of another log": files[last.replace("/1/", "/2/")],
        "headless": bytes(64) + files[last][64:],
    }
    disk.put(last, new[what])
    store = files_on(disk)
    store.restore(1, 0, 100)
    store.append(1, 100, 1, batch(100, at_ms=100, size_bytes=100))
    assert store.read(1, 100, 101, 1 << 30) == expected(100, 101)
    assert store.read(1, 0, first_offset, 1 << 30) == expected(0, first_offset)
    with pytest.raises(CorruptLog):
        store.read(1, 99, 101, 1 << 30)


def test_collecting_removes_what_was_trimmed_and_dropped_also_after_a_restart() -> None:
    disk = SimDisk()
    store = filled(disk, 1)
    filled(disk, 2).close()
    filled(disk, 3).close()
    store.trim(1, 60)
    assert any("/1/00000000000000000000.log" in path for path in disk.files()), "a trim alone deletes nothing"
    store.sync()
    store.collect(70, 50)
    assert any("/1/00000000000000000000.log" in path for path in disk.files()), "the older snapshot may still need it"
    store.collect(90, 69)
    assert any("/1/00000000000000000000.log" in path for path in disk.files()), "so may the newer, if it lags behind"
    store.collect(95, 70)
    assert not any("/1/00000000000000000000." in path for path in disk.files())
    assert not any("/2/" in path or "/3/" in path for path in disk.files()), "no snapshot names these logs"
    disk.restart()
    store = files_on(disk)
    store.restore(1, 60, 100)
    assert store.read(1, 0, 100, 1 << 30) == expected(60, 100)
