"""Descriptors set aside for files: sockets may take all others, and files still open."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from driftq.storage.descriptors import DescriptorReserve
from driftq.storage.disk import NoDescriptors, OsDisk


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def reserve(few_descriptors: None) -> Iterator[DescriptorReserve]:
    """Four descriptors for files, and all others taken."""
    made = DescriptorReserve(4)
    taken: list[int] = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    yield made
    for descriptor in taken:
        os.close(descriptor)
    made.close()


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
