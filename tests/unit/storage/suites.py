"""What every implementation of a storage seam must do: one suite per seam, run against each of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from driftq.storage.disk import Disk, DiskFailed
from driftq.storage.log_store import LogStore
from driftq.wire import records

STORE = bytes(range(16))


def batch(first_offset: int, count: int = 1, *, at_ms: int = 0, size_bytes: int = 20, salt: str = "") -> bytes:
    """A stamped batch whose records say which offset they are."""
    texts = [f"{salt}{first_offset + n}:".encode().ljust(size_bytes, b".") for n in range(count)]
    return records.stamp(records.pack([records.Record(text) for text in texts]), first_offset, at_ms)


def check_disk(disk: Disk, folder: str) -> None:
    """Bytes and names, without any fault."""
    _check_files(disk, folder)
    _check_names(disk, folder)


def _check_files(disk: Disk, folder: str) -> None:
    disk.make_folder("t", folder)
    disk.make_folder("t", folder)
    file = disk.create("t", f"{folder}/a", 1000)
    assert file.size() == 1000
    assert file.read_at(0, 2000) == bytes(1000)
    file.write_at("t", 10, b"hello")
    file.write_at("t", 998, b"abcd")
    assert file.size() == 1002
    assert file.read_at(8, 9) == b"\0\0hello\0\0"
    assert file.read_at(996, 100) == b"\0\0abcd"
    assert file.read_at(5000, 10) == b""
    file.sync("t")
    file.truncate("t", 12)
    assert file.read_at(0, 100) == bytes(10) + b"he"
    file.write_at("t", 14, b"x")
    assert file.read_at(0, 100) == bytes(10) + b"he\0\0x", "a gap reads as zeros"
    again = disk.open(f"{folder}/a")
    assert again.read_at(10, 2) == b"he"
    again.close()
    file.close()
    with pytest.raises(DiskFailed):
        disk.create("t", f"{folder}/a")
    with pytest.raises(FileNotFoundError):
        disk.open(f"{folder}/none")


def _check_names(disk: Disk, folder: str) -> None:
    disk.create("t", f"{folder}/b").close()
    assert disk.list(folder) == ["a", "b"]
    disk.rename("t", f"{folder}/a", f"{folder}/b")
    assert disk.list(folder) == ["b"]
    assert disk.exists(f"{folder}/b")
    assert not disk.exists(f"{folder}/a")
    kept = disk.open(f"{folder}/b")
    assert kept.size() == 15, "a rename replaces what had the name"
    kept.close()
    disk.make_folder("t", f"{folder}/deep/er")
    assert disk.list(folder) == ["b", "deep"]
    disk.create("t", f"{folder}/deep/c").close()
    disk.rename("t", f"{folder}/deep", f"{folder}/moved")
    assert disk.list(f"{folder}/moved") == ["c", "er"], "a folder takes along what is in it"
    with pytest.raises(DiskFailed):
        disk.remove_folder("t", f"{folder}/moved")
    disk.remove_folder("t", f"{folder}/moved/er")
    disk.remove("t", f"{folder}/moved/c")
    disk.remove_folder("t", f"{folder}/moved")
    disk.sync_folder("t", folder)
    assert disk.list(folder) == ["b"]
    assert disk.list(f"{folder}/none") == []
    for failing in (
        lambda: disk.remove("t", f"{folder}/none"),
        lambda: disk.rename("t", f"{folder}/none", f"{folder}/x"),
        lambda: disk.sync_folder("t", f"{folder}/none"),
        lambda: disk.create("t", f"{folder}/none/x"),
    ):
        with pytest.raises(DiskFailed):
            failing()
    assert disk.free_bytes(folder) > 0


def check_log_store(make: Callable[[], LogStore]) -> None:
    """`make` gives a new and empty store each time."""
    _check_appends_and_reads(make())
    _check_trims_and_drops(make())
    _check_restores(make())


def _check_appends_and_reads(store: LogStore) -> None:
    assert store.end(1) == 0
    assert store.read(1, 0, 10, 1000) == []
    assert store.spans(1) == []
    batches: list[bytes] = []
    offset = 0
    for n in range(300):
        count = 1 + n % 3
        batches.append(batch(offset, count, at_ms=1000 + n * 10))
        store.append(1, offset, count, batches[-1])
        offset += count
    store.append(2, 40, 1, batch(40))
    assert store.end(1) == offset == 600
    assert store.end(2) == 41, "a fork starts above 0"
    assert store.read(1, 0, 600, 1 << 30) == batches
    assert store.read(2, 0, 99, 1 << 30) == [batch(40)]
    with pytest.raises(ValueError):
        store.append(1, 605, 1, batch(605))
    # Offsets 0 | 1 2 | 3 4 5 | 6 | 7 8 | 9 10 11 ...
    assert store.read(1, 2, 4, 1 << 30) == batches[1:3]
    assert store.read(1, 4, 5, 1 << 30) == batches[2:3]
    assert store.read(1, 5, 5, 1 << 30) == []
    assert store.read(1, 590, 10_000, 1 << 30) == batches[295:]
    assert store.read(1, 600, 700, 1 << 30) == []
    assert store.read(1, 0, 600, 1) == batches[:1], "one batch comes, however long it is"
    size = len(batches[0]) + len(batches[1])
    assert store.read(1, 0, 600, size) == batches[:2]
    assert store.read(1, 0, 600, size - 1) == batches[:1]
    assert store.offset_at(1, 0) == 0
    assert store.offset_at(1, 1010) == 1
    assert store.offset_at(1, 1011) == 3
    assert store.offset_at(1, 99_999) == 600
    spans = store.spans(1)
    assert spans[0].first_offset == 0
    assert spans[-1].end_offset == 600
    assert all(a.end_offset == b.first_offset for a, b in pairwise(spans))
    assert spans[-1].last_ms == 1000 + 299 * 10
    assert not store.is_full()
    assert store.make_room()
    store.sync()
    for stage in store.begin_sync().stages():
        for call in stage:
            call()
    store.close()


def _check_trims_and_drops(store: LogStore) -> None:
    for offset in range(0, 400, 2):
        store.append(5, offset, 2, batch(offset, 2, at_ms=offset))
    store.append(6, 0, 1, batch(0))
    store.trim(5, 101)
    assert store.read(5, 0, 104, 1 << 30) == [batch(100, 2, at_ms=100), batch(102, 2, at_ms=102)]
    assert store.offset_at(5, 0) == 101
    store.drop(6)
    assert store.end(6) == 0
    store.sync()
    store.collect(10, 0)
    assert store.read(5, 0, 104, 1 << 30) == [batch(100, 2, at_ms=100), batch(102, 2, at_ms=102)]
    store.append(5, 400, 2, batch(400, 2, at_ms=400))
    store.trim(5, 10_000)
    store.collect(20, 20)
    assert store.end(5) == 402
    assert store.read(5, 0, 500, 1 << 30) == []
    store.append(5, 402, 1, batch(402))
    assert store.read(5, 0, 500, 1 << 30) == [batch(402)]
    store.append(6, 0, 1, batch(0, salt="new"))
    assert store.read(6, 0, 1, 1 << 30) == [batch(0, salt="new")]
    store.close()


def _check_restores(store: LogStore) -> None:
    for offset in range(300):
        store.append(7, offset, 1, batch(offset))
    store.sync()
    store.restore(7, 10, 200)
    assert store.end(7) == 200
    assert store.read(7, 199, 300, 1 << 30) == [batch(199)]
    store.append(7, 200, 1, batch(200, salt="other"))
    assert store.read(7, 198, 300, 1 << 30) == [batch(198), batch(199), batch(200, salt="other")]
    assert store.read(7, 0, 11, 1 << 30) == [batch(10)], "what lies below the start is not read"
    store.close()
