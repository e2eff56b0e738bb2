"""The reader of a journal that another thread appends to: durable blocks, whole, in order, verified."""

from __future__ import annotations

import pytest

from driftq.storage import blocks
from driftq.storage.corruption import CorruptJournal
from driftq.storage.file_journal import FileJournal
from driftq.storage.journal_files import segment_path
from tests.support.simdisk import SimDisk

STORE = bytes(range(16))
SEGMENT_BYTES = 8_192


@pytest.fixture
def disk():
    return SimDisk(1)


@pytest.fixture
def journal(disk):
    return FileJournal.create(disk, "journal", STORE, segment_bytes=SEGMENT_BYTES)


def append(journal, *sizes):
    for size in sizes:
        journal.append(journal.tail_lsn(), [b"%d" % journal.tail_lsn() * size])


def frames_of(run):
    scan = blocks.scan(run.data, 0, run.segment.seed(), run.prev_crc, run.first_lsn)
    assert (scan.next_lsn, scan.prev_crc) == (run.last_lsn + 1, run.crc)
    return scan.frames


def read_all(reader, max_bytes=1 << 20):
    frames = []
    while (run := reader.read(max_bytes)) is not None:
        assert run.first_lsn + len(frames_of(run)) - 1 == run.last_lsn
        frames += frames_of(run)
    return frames


def test_what_is_read_is_what_was_appended_across_segments(journal):
    append(journal, *[300] * 40)
    assert len(journal.segment_numbers()) > 2
    assert read_all(journal.reader(0)) == [frame for _, frame in journal.replay(0)]
    assert read_all(journal.reader(0), max_bytes=1) == [frame for _, frame in journal.replay(0)]
    assert read_all(journal.reader(25)) == [frame for _, frame in journal.replay(25)]


def test_a_reader_continues_where_it_ended(journal):
    append(journal, 10, 10)
    reader = journal.reader(0)
    assert len(read_all(reader)) == 2
    assert reader.read(100) is None
    assert reader.lag_bytes() == 0
    append(journal, 10)
    assert reader.lag_bytes() > 0
    assert len(read_all(reader)) == 1


def test_a_block_that_is_written_and_not_synced_is_not_read(journal, disk):
    append(journal, 10)
    reader = journal.reader(0)
    assert len(read_all(reader)) == 1
    seen = []
    disk.on_call = lambda label: seen.append(reader.read(1 << 20)) if label == "journal.sync" else None
    append(journal, 10)
    assert seen == [None]
    disk.on_call = None
    assert len(read_all(reader)) == 1


def test_a_copy_begins_only_where_a_block_begins(journal):
    journal.append(0, [b"a", b"b", b"c"])
    with pytest.raises(CorruptJournal, match="no block ends with lsn 2"):
        journal.reader(2)
    assert journal.reader(3).read(100) is None


def test_trimmed_blocks_are_reported(journal):
    append(journal, *[300] * 40)
    journal.trim(journal.closed_lsn() + 1)
    with pytest.raises(CorruptJournal, match="begins after"):
        journal.reader(0)


def test_damage_is_not_copied(journal, disk):
    append(journal, *[300] * 40)
    reader = journal.reader(0)
    disk.flip(segment_path("journal", 1), 8 * (SEGMENT_BYTES - 1_500))
    with pytest.raises(CorruptJournal, match="not archived"):
        read_all(reader)
