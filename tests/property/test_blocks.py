"""Blocks: a scan returns exactly the frames that were appended."""

from __future__ import annotations

import google_crc32c
from hypothesis import given
from hypothesis import strategies as st

from driftq.storage import blocks
from driftq.storage.blocks import ScanEnd

FRAMES = st.lists(st.binary(max_size=60), min_size=1, max_size=6)
APPENDS = st.lists(FRAMES, min_size=1, max_size=8)
CRC = st.integers(0, 2**32 - 1)


def chain(seed: int, appends: list[list[bytes]], first_lsn: int = 1) -> tuple[bytes, list[int]]:
    """The blocks of some appends, and the position after each."""
    data, prev_crc, lsn, ends = b"", 0, first_lsn, []
    for frames in appends:
        block, prev_crc = blocks.encode(seed, prev_crc, lsn, frames)
        assert len(block) == blocks.block_bytes(frames)
        data += block
        lsn += len(frames)
        ends.append(len(data))
    return data, ends


@given(CRC, APPENDS, st.integers(1, 2**60))
def test_what_was_appended_is_scanned_in_order(seed: int, appends: list[list[bytes]], first_lsn: int) -> None:
    data, ends = chain(seed, appends, first_lsn)
    scanned = blocks.scan(data, 0, seed, 0, first_lsn)
    assert scanned.frames == [frame for frames in appends for frame in frames]
    assert (scanned.position, scanned.ended) == (len(data), ScanEnd.SHORT)
    assert scanned.next_lsn == first_lsn + len(scanned.frames)
    assert scanned.last_block_at == (ends[-2] if len(ends) > 1 else 0)


@given(CRC, APPENDS, st.data())
def test_a_scan_can_stop_anywhere_and_resume(seed: int, appends: list[list[bytes]], data: st.DataObject) -> None:
    whole, ends = chain(seed, appends)
    cut = data.draw(st.integers(0, len(whole)))
    first = blocks.scan(whole[:cut], 0, seed, 0, 1)
    assert first.position == max([end for end in ends if end <= cut], default=0)
    assert first.ended is ScanEnd.SHORT
    rest = blocks.scan(whole[first.position :], 0, seed, first.prev_crc, first.next_lsn)
    assert first.frames + rest.frames == [frame for frames in appends for frame in frames]


@given(CRC, APPENDS, st.data())
def test_one_changed_bit_ends_the_scan_before_its_block(
    seed: int, appends: list[list[bytes]], data: st.DataObject
) -> None:
    whole, ends = chain(seed, appends)
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    damaged = bytearray(whole)
    damaged[bit >> 3] ^= 1 << (bit & 7)
    scanned = blocks.scan(bytes(damaged), 0, seed, 0, 1)
    assert scanned.position == max([end for end in ends if end <= bit >> 3], default=0)
    count = sum(len(frames) for frames, end in zip(appends, ends, strict=True) if end <= scanned.position)
    assert scanned.frames == [frame for frames in appends for frame in frames][:count]


@given(CRC, CRC, APPENDS)
def test_a_block_of_another_file_is_not_accepted(seed: int, other: int, appends: list[list[bytes]]) -> None:
    data, _ = chain(seed, appends)
    if seed != other:
        assert blocks.scan(data, 0, other, 0, 1).frames == []
        assert blocks.find(data, 0, other, 0) is None


@given(CRC, APPENDS, st.data())
def test_a_later_block_is_found_after_any_damage(seed: int, appends: list[list[bytes]], data: st.DataObject) -> None:
    whole, ends = chain(seed, appends)
    damaged_until = data.draw(st.sampled_from([0, *ends]))
    damaged = bytes(damaged_until) + whole[damaged_until:]
    lsns = [1]
    for frames in appends:
        lsns.append(lsns[-1] + len(frames))
    expected = [(at, lsn) for at, lsn in zip([0, *ends[:-1]], lsns, strict=False) if at >= damaged_until and lsn > 1]
    later = blocks.find(damaged, 0, seed, 1)
    assert (later and (later.position, later.first_lsn)) == (expected[0] if expected else None)


@given(st.binary(max_size=400), CRC)
def test_a_scan_of_any_bytes_raises_no_error(data: bytes, seed: int) -> None:
    for start in (data, blocks.MAGIC + data):
        scanned = blocks.scan(start, 0, seed, 0, 1)
        assert scanned.frames == []
        assert blocks.find(start, 0, seed, 0) is None


@given(CRC, FRAMES, st.integers(1, 1000), st.binary(max_size=30))
def test_a_hole_of_an_older_version_stands_for_each_lost_frame(
    seed: int, frames: list[bytes], lost: int, text: bytes
) -> None:
    first, crc = blocks.encode(seed, 0, 1, frames)
    hole, _ = blocks.encode(seed, crc, 1 + len(frames), [text])
    checked = hole[8:24] + lost.to_bytes(4, "little") + blocks.HOLE.to_bytes(4, "little") + hole[32:]
    crc = google_crc32c.extend(seed, checked)
    hole = blocks.MAGIC + crc.to_bytes(4, "little") + checked
    last, _ = blocks.encode(seed, crc, 1 + len(frames) + lost, frames)
    scanned = blocks.scan(first + hole + last, 0, seed, 0, 1)
    assert scanned.frames == frames + [text] * lost + frames
