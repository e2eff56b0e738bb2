"""A log's segments are looked at when their records are wanted, not before."""

from __future__ import annotations

import pytest

from driftq.storage.corruption import CorruptLog
from driftq.storage.file_log_store import FileLogStore
from driftq.storage.log_segment import LogSegment, encode_index, read_index
from driftq.wire.records import stamp
from tests.support.broker_fixture import packed
from tests.support.simdisk import SimDisk, SimFile

STORE = bytes(16)
COUNT = 12
BATCHES = [stamp(packed(f"{number}".ljust(150, "."))[0], number, number) for number in range(COUNT)]


class NotedDisk(SimDisk):
    """A disk that remembers which files were opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def open(self, path: str, *, write: bool = False) -> SimFile:
        self.opened.append(path)
        return super().open(path, write=write)


@pytest.fixture
def disk():
    """Twelve batches, two in each segment, synced."""
    disk = NotedDisk()
    disk.make_folder("t", "d")
    store = FileLogStore(disk, "d/logs", 500, store=STORE)
    for number, batch in enumerate(BATCHES):
        store.append(1, number, 1, batch)
    store.sync()
    disk.opened.clear()
    return disk


def reopened(disk: SimDisk) -> FileLogStore:
    store = FileLogStore(disk, "d/logs", 500, store=STORE)
    store.restore(1, 0, COUNT)
    return store


def paths(disk: SimDisk) -> list[str]:
    return [f"d/logs/1/{name}" for name in disk.list("d/logs/1") if name.endswith(".log")]


def test_an_append_opens_the_last_segment_and_no_other(disk):
    segments = paths(disk)
    assert len(segments) == 6
    store = reopened(disk)
    store.append(1, COUNT, 1, stamp(packed("more")[0], COUNT, COUNT))
    assert not set(segments[:-1]) & set(disk.opened)
    assert store.read(1, 0, COUNT, 1 << 20) == BATCHES


def test_a_read_opens_only_the_segments_that_hold_what_it_wants(disk):
    store = reopened(disk)
    assert store.read(1, 4, 6, 1 << 20) == BATCHES[4:6]
    assert set(disk.opened) & set(paths(disk)) == {paths(disk)[2], paths(disk)[-1]}


def test_spans_and_times_include_segments_that_were_not_read_yet(disk):
    assert [(span.first_offset, span.end_offset) for span in reopened(disk).spans(1)] == [
        (first, first + 2) for first in range(0, COUNT, 2)
    ]
    assert reopened(disk).offset_at(1, 5) == 5


def test_damage_in_a_segment_fails_only_the_reads_that_reach_it(disk):
    disk.flip(paths(disk)[1], 8 * 10)
    store = reopened(disk)
    assert store.read(1, 4, COUNT, 1 << 20) == BATCHES[4:]
    assert store.read(1, 0, COUNT, 1 << 20) == BATCHES[:2]
    with pytest.raises(CorruptLog):
        store.read(1, 2, COUNT, 1 << 20)


def test_an_index_from_before_a_cut_says_nothing_about_the_next_segments_records(disk):
    # The segment once held three batches; two were cut and written again behind it, and the new index was lost.
    path = paths(disk)[1]
    index = path.removesuffix(".log") + ".index"
    segment = LogSegment(path, 2)
    assert read_index(disk.files()[index], STORE, 1, segment)
    segment.open_run = segment.runs[-1]
    segment.add(4, 1, BATCHES[4], 4)
    disk.put(index, encode_index(STORE, 1, segment))
    assert reopened(disk).read(1, 0, COUNT, 1 << 20) == BATCHES
