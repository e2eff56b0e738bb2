"""Reads from an archive: what is compared, and how long one that cannot be read is left alone."""

from __future__ import annotations

import google_crc32c
import pytest

from driftq.spark.source import archived_ranges
from driftq.spark.source.archived_ranges import ArchiveAddress, ArchiveDiffers, ArchiveReader
from driftq.wire.topics import ArchivedRange

PARTS = [b"first", b"the second", b"x" * 100]


def place(key="log", position=3, parts=PARTS):
    return ArchivedRange("/archive", key, position, [(len(part), google_crc32c.value(part)) for part in parts])


@pytest.fixture
def reader(tmp_path):
    (tmp_path / "log").write_bytes(b"..." + b"".join(PARTS) + b"more")
    return ArchiveReader(ArchiveAddress(str(tmp_path)))


def test_a_range_is_read_and_compared(reader):
    assert reader.read(place()) == b"".join(PARTS)


@pytest.mark.parametrize("wrong", [place(position=4), place(parts=[*PARTS, b"absent"]), place(parts=[b"First"])])
def test_other_bytes_are_refused(reader, wrong):
    with pytest.raises(ArchiveDiffers, match="driftq archive verify"):
        reader.read(wrong)


def test_after_a_failure_the_archive_is_left_alone_for_a_while(reader, monkeypatch, caplog):
    assert not reader.is_away
    assert reader.read(place(key="missing")) is None
    assert reader.is_away
    assert "the broker is asked instead" in caplog.text
    monkeypatch.setattr(archived_ranges, "AWAY_S", 0.0)
    reader.read(place(key="missing"))
    assert not reader.is_away
