"""The data folder: which store it is, which format it has, and who works in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from driftq.storage.corruption import FormatTooNew
from driftq.storage.data_folder import BadFormatFile, FolderInUse, FolderLock, find_folder, finish_folder, new_folder
from driftq.storage.journal_files import checksum
from tests.support.simdisk import Crash, Fault, SimDisk
from tests.unit.storage.suites import STORE


def test_a_folder_counts_only_when_it_is_finished() -> None:
    for nth in range(1, 30):
        disk = SimDisk(nth)
        folder = new_folder(disk, "d", STORE)
        disk.fail_nth(nth, Fault.CRASH_AFTER)
        try:
            finish_folder(disk, folder)
        except Crash:
            disk.crash()
            assert find_folder(disk, "d") in (None, folder)
            finish_folder(disk, new_folder(disk, "d", STORE))
            assert find_folder(disk, "d") == folder
        else:
            disk.crash("none")
            assert find_folder(disk, "d") == folder
            assert (folder.journal, folder.logs, folder.snapshots) == ("d/journal", "d/logs", "d/snapshots")
            return
    pytest.fail("no run was left alone")


def test_every_flipped_bit_of_the_format_file_is_found() -> None:
    disk = SimDisk()
    finish_folder(disk, new_folder(disk, "d", STORE))
    for bit in range(8 * len(disk.files()["d/FORMAT"])):
        disk.flip("d/FORMAT", bit)
        with pytest.raises(BadFormatFile):
            find_folder(disk, "d")
        disk.flip("d/FORMAT", bit)


def test_a_later_format_is_refused_by_name() -> None:
    disk = SimDisk()
    finish_folder(disk, new_folder(disk, "d", STORE))
    text = disk.files()["d/FORMAT"].split(b"crc32c")[0].replace(b"format 2", b"format 7")
    disk.put("d/FORMAT", text + b"crc32c " + checksum(text).hex().encode() + b"\n")
    with pytest.raises(FormatTooNew, match="format 7"):
        find_folder(disk, "d")


def test_a_second_process_is_refused_with_the_pid_of_the_holder(tmp_path: Path) -> None:
    code = (
        "import sys; from driftq.storage.data_folder import FolderLock\n"
        "lock = FolderLock(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "src"},
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(FolderInUse) as refused:
            FolderLock(str(tmp_path))
        assert refused.value.pid == holder.pid
        assert str(holder.pid) in str(refused.value)
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(FolderInUse):
            FolderLock(str(tmp_path))
    finally:
        holder.kill()
        holder.communicate()
    lock = FolderLock(str(tmp_path))
    assert (tmp_path / "LOCK").read_text() == f"{os.getpid()}\n", "a killed holder holds nothing"
    lock.release()
    FolderLock(str(tmp_path)).release()
