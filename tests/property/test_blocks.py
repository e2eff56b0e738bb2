"""Blocks: what goes in comes out, and nothing that was not put in ever does."""

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
    """The blocks of some appends, and the position behind each."""
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
    found = blocks.scan(data, 0, seed, 0, first_lsn)
    assert found.frames == [frame for frames in appends for frame in frames]
    assert (found.position, found.ended) == (len(data), ScanEnd.SHORT)
    assert found.next_lsn == first_lsn + len(found.frames)
    assert found.last_block_at == (ends[-2] if len(ends) > 1 else 0)


@given(CRC, APPENDS, st.data())
def test_a_scan_can_stop_anywhere_and_go_on(seed: int, appends: list[list[bytes]], data: st.DataObject) -> None:
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
    ruined = bytearray(whole)
    ruined[bit >> 3] ^= 1 << (bit & 7)
    found = blocks.scan(bytes(ruined), 0, seed, 0, 1)
    assert found.position == max([end for end in ends if end <= bit >> 3], default=0)
    count = sum(len(frames) for frames, end in zip(appends, ends, strict=True) if end <= found.position)
    assert found.frames == [frame for frames in appends for frame in frames][:count]


@given(CRC, CRC, APPENDS)
def test_a_block_of_another_file_is_no_block(seed: int, other: int, appends: list[list[bytes]]) -> None:
    data, _ = chain(seed, appends)
    if seed != other:
        assert blocks.scan(data, 0, other, 0, 1).frames == []
        assert blocks.find(data, 0, other, 0) is None


@given(CRC, APPENDS, st.data())
def test_a_later_block_is_found_behind_any_damage(seed: int, appends: list[list[bytes]], data: st.DataObject) -> None:
    whole, ends = chain(seed, appends)
    ruined_until = data.draw(st.sampled_from([0, *ends]))
    ruined = bytes(ruined_until) + whole[ruined_until:]
    lsns = [1]
    for frames in appends:
        lsns.append(lsns[-1] + len(frames))
    expected = [(at, lsn) for at, lsn in zip([0, *ends[:-1]], lsns, strict=False) if at >= ruined_until and lsn > 1]
    found = blocks.find(ruined, 0, seed, 1)
    assert (found and (found.position, found.first_lsn)) == (expected[0] if expected else None)


@given(st.binary(max_size=400), CRC)
def test_no_bytes_make_a_scan_fail(data: bytes, seed: int) -> None:
    for start in (data, blocks.MAGIC + data):
        found = blocks.scan(start, 0, seed, 0, 1)
        assert found.frames == []
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
    found = blocks.scan(first + hole + last, 0, seed, 0, 1)
    assert found.frames == frames + [text] * lost + frames
