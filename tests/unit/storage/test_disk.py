"""The door to the filesystem: the real one and the simulated one do the same."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from driftq.storage.disk import DiskFailed, DiskFull, OsDisk
from tests.support.simdisk import SimDisk
from tests.unit.storage.suites import check_disk


def test_the_real_disk_does_what_a_disk_does(tmp_path: Path) -> None:
    check_disk(OsDisk(), f"{tmp_path}/data")


def test_the_simulated_disk_does_what_a_disk_does() -> None:
    check_disk(SimDisk(), "data/here")


def test_nobody_else_may_read_what_is_stored(tmp_path: Path) -> None:
    disk = OsDisk()
    disk.make_folder("t", f"{tmp_path}/data")
    disk.create("t", f"{tmp_path}/data/file").close()
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "data/file").stat().st_mode) == 0o600


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(OSError, match="link"):
        OsDisk().open(f"{tmp_path}/link")


@pytest.fixture
def small_files() -> Iterator[int]:
    """No file of this process may grow beyond 64 KiB: the system writes a part, then says why not more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, hard))
    yield 65536
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_finds_no_room_half_way_says_disk_full(tmp_path: Path, small_files: int) -> None:
    file = OsDisk().create("t", f"{tmp_path}/file")
    with pytest.raises(DiskFull):
        file.write_at("t", small_files - 1000, bytes(5000))
    assert file.size() == small_files, "the system wrote a part of it, which is what this test is about"
    file.close()


def test_a_file_that_cannot_be_allocated_leaves_nothing_behind(tmp_path: Path, small_files: int) -> None:
    with pytest.raises(DiskFull):
        OsDisk().create("t", f"{tmp_path}/file", small_files + 1)
    assert OsDisk().list(str(tmp_path)) == []


def test_short_writes_and_reads_are_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_pwrite, real_pread = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real_pwrite(fd, bytes(data[:7]), at))
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real_pread(fd, min(size, 5), at))
    file = OsDisk().create("t", f"{tmp_path}/file")
    file.write_at("t", 3, bytes(range(100)))
    assert file.read_at(0, 1000) == bytes(3) + bytes(range(100))
    file.close()


def test_a_failing_sync_is_never_called_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import driftq.storage.disk as module

    def no_room(_: int) -> None:
        raise OSError(28, "No space left on device")

    file = OsDisk().create("t", f"{tmp_path}/file")
    monkeypatch.setattr(module, "_sync_data", no_room)
    with pytest.raises(DiskFailed, match=r"journal\.sync"):
        file.sync("journal.sync")
    file.close()
