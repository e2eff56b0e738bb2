"""Chunks, generations and retention: what belongs to a history, and what nothing needs any more."""

from __future__ import annotations

import pytest

from driftq.storage import blocks
from driftq.storage.archive import chunks, manifest
from driftq.storage.archive.bases import ArchivedFile, Inventory, Piece
from driftq.storage.archive.chunks import BadChunk, Chunk, chunk_key
from driftq.storage.archive.history import boundaries, cut
from driftq.storage.archive.manifest import BadManifest, Base, Generation, Manifest, Stretch, bases_of, history
from driftq.storage.archive.object_store import MemoryObjects
from driftq.storage.archive.retention import retained, unneeded
from driftq.storage.journal_files import HEADER_BYTES, SegmentHeader
from driftq.storage.journal_reader import JournalRun

STORE = bytes(range(16))
SEGMENT = SegmentHeader(STORE, 1, 1, 8_192, 0)


def run_of(*frame_lists):
    data, crc, lsn = b"", 0, 1
    for frames in frame_lists:
        block, crc = blocks.encode(SEGMENT.seed(), crc, lsn, frames)
        data += block
        lsn += len(frames)
    return JournalRun(SEGMENT, HEADER_BYTES, 1, lsn - 1, 0, crc, data)


def frames_of(run):
    return blocks.scan(run.data, 0, SEGMENT.seed(), run.prev_crc, run.first_lsn).frames


def test_a_chunk_is_read_as_it_was_written_and_every_flipped_bit_is_noticed():
    chunk = Chunk(STORE, run_of([b"one", b"two"], [b"three"]), 1_234)
    data = chunks.encode(chunk)
    assert chunks.decode(data) == chunk
    for bit in range(0, 8 * len(data), 3):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadChunk):
            chunks.decode(bytes(damaged))


def test_a_run_is_cut_at_any_lsn_and_stays_a_valid_chain():
    run = run_of([b"1", b"2", b"3"], [b"4"], [b"5", b"6"])
    assert [lsn for lsn, _ in boundaries(run)] == [3, 4, 6]
    for last in range(7):
        part = cut(run, last)
        assert frames_of(part) == [b"%d" % lsn for lsn in range(1, last + 1)]
    assert cut(run, 99) is run
    assert cut(run, 4).crc == dict(boundaries(run))[4], "a cut between blocks keeps their checksums"


def test_the_history_of_a_branch_leaves_out_what_its_parent_did_later():
    tree = Manifest(
        STORE.hex(),
        "3",
        (Generation("1", 1), Generation("2", 51, "1", 50), Generation("3", 41, "2", 40), Generation("4", 81, "2", 80)),
        (Base("1", 30, 35, 1, "a", 0), Base("1", 38, 45, 1, "b", 0), Base("2", 60, 70, 1, "c", 0)),
    )
    # Generation 3 branches off at 40, before its parent had written anything of its own.
    assert history(tree, "3") == [Stretch("1", 1, 40), Stretch("3", 41, None)]
    assert history(tree, "4") == [Stretch("1", 1, 50), Stretch("2", 51, 80), Stretch("4", 81, None)]
    assert [base.key for base in bases_of(tree, "3")] == ["a"], "the copy of b ended after the branch"
    assert [base.key for base in bases_of(tree, "4")] == ["c", "b", "a"]


def test_a_damaged_manifest_is_refused():
    data = manifest.encode(Manifest(STORE.hex(), "1", (Generation("1", 1),)))
    assert manifest.decode(data).head == "1"
    for wrong in (b"", b"{}", data.replace(b'"first_lsn": 1', b'"first_lsn": 2'), data[:-20]):
        with pytest.raises(BadManifest):
            manifest.decode(wrong)


def test_retention_keeps_every_point_of_the_window_and_deletes_the_rest():
    objects = MemoryObjects()
    tree = Manifest(
        STORE.hex(),
        "3",
        (Generation("1", 1), Generation("2", 51, "1", 50, 10), Generation("3", 101, "2", 100, 200)),
        (Base("2", 60, 60, 100, "2/bases/60", 0), Base("2", 80, 80, 150, "2/bases/80", 0),
         Base("3", 120, 120, 300, "3/bases/120", 0)),
    )  # fmt: skip
    for key in (*(chunk_key("1", lsn) for lsn in (1, 30)), *(chunk_key("2", lsn) for lsn in (51, 61, 81)),
                chunk_key("3", 101), "2/bases/60", "2/bases/80", "3/bases/120", "2/packs/old", "2/packs/used",
                "4-unknown/packs/new"):  # fmt: skip
        objects.put_new(key, b"x")
    kept = retained(tree, since_ms=200)
    assert [base.lsn for base in kept.bases] == [80, 120], "the newest base before the window is needed for its begin"
    assert kept.first_lsn == 81
    assert [generation.name for generation in kept.generations] == ["2", "3"]
    used = Inventory(80, (ArchivedFile("logs/1/0.log", 1, True, (Piece("2/packs/used", 0, 1, 0),)),))
    gone = set(unneeded(objects, kept, [used]))
    assert gone == {
        chunk_key("1", 1), chunk_key("1", 30), chunk_key("2", 51), chunk_key("2", 61), "2/bases/60", "2/packs/old"
    }  # fmt: skip
    assert retained(kept, since_ms=200) is kept
