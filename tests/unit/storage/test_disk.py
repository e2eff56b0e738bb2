"""The disk interface: the real disk and the simulated one behave the same."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from driftq.storage.disk import DescriptorReserve, DiskFailed, DiskFull, NoDescriptors, OsDisk
from tests.support.simdisk import SimDisk
from tests.unit.storage.suites import check_disk


def test_the_real_disk_does_what_a_disk_does(tmp_path: Path) -> None:
    check_disk(OsDisk(), f"{tmp_path}/data")


def test_the_simulated_disk_does_what_a_disk_does() -> None:
    check_disk(SimDisk(), "data/here")


def test_other_users_cannot_read_the_files(tmp_path: Path) -> None:
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


# --- descriptors set aside for files: sockets may take all others, and files still open ---


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def reserve(few_descriptors: None) -> Iterator[DescriptorReserve]:
    """Four descriptors for files, and all others taken."""
    reserve = DescriptorReserve(4)
    taken: list[int] = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    yield reserve
    for descriptor in taken:
        os.close(descriptor)
    reserve.close()


def test_a_file_opens_when_sockets_have_taken_every_other_descriptor(
    tmp_path: Path, reserve: DescriptorReserve
) -> None:
    disk = OsDisk(reserve)
    for turn in range(20):
        file = disk.create("t", f"{tmp_path}/{turn}")
        disk.sync_folder("t", str(tmp_path))
        assert disk.list(str(tmp_path))
        file.close()
        disk.open(f"{tmp_path}/{turn}").close()


def test_past_the_reserve_it_is_no_failure_of_the_disk(tmp_path: Path, reserve: DescriptorReserve) -> None:
    disk = OsDisk(reserve)
    files = [disk.create("t", f"{tmp_path}/{number}") for number in range(4)]
    for call in (
        lambda: disk.create("t", f"{tmp_path}/more"),
        lambda: disk.open(f"{tmp_path}/0"),
        lambda: disk.sync_folder("t", str(tmp_path)),
        lambda: disk.list(str(tmp_path)),
    ):
        with pytest.raises(NoDescriptors):
            call()
    files.pop().close()
    disk.open(f"{tmp_path}/0").close()
    for file in files:
        file.close()


def test_a_file_that_is_not_there_costs_no_descriptor(tmp_path: Path, reserve: DescriptorReserve) -> None:
    disk = OsDisk(reserve)
    for _ in range(10):
        with pytest.raises(FileNotFoundError):
            disk.open(f"{tmp_path}/missing")
    disk.create("t", f"{tmp_path}/file").close()
