"""One flipped bit on disk is detected or harmless, and no read returns bytes that were not written.

Every bit of a small journal and of small snapshots and log segments, and a sample of larger ones and of a whole folder.
`BIT_FLIPS` sets the size of the samples: 5,000 at every change, more before a release.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable

import pytest

from driftq.core.model.limits import BrokerLimits
from driftq.engine.clock import SystemChance
from driftq.engine.folder_storage import StorageOptions, open_folder
from driftq.repair.verify import digest, verify
from driftq.storage import snapshots
from driftq.storage.corruption import CorruptJournal, CorruptLog, Damaged, FormatTooNew
from driftq.storage.file_journal import FileJournal
from driftq.storage.file_log_store import FileLogStore
from driftq.wire import records
from tests.support.damaged_folder import PATH, SEGMENT_BYTES, STORE, write_folder
from tests.support.random_commands import RandomCommands
from tests.support.simdisk import SimDisk

SAMPLES = int(os.environ.get("BIT_FLIPS", "5000"))


def new_disk() -> SimDisk:
    disk = SimDisk(1)
    disk.make_folder("t", "d")
    return disk


def flip_each(disk: SimDisk, bits: Iterable[tuple[str, int]], read: Callable[[], str]) -> dict[str, int]:
    """Flip each bit, read everything, flip it back. Counts the verdicts of `read`."""
    verdicts: dict[str, int] = {}
    before = disk.files()
    for path, bit in bits:
        disk.flip(path, bit)
        verdict = read()
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
        for changed, data in disk.files().items():
            if before.get(changed) != data:
                disk.put(changed, before.get(changed))
        for path_gone in before.keys() - disk.files().keys():
            disk.put(path_gone, before[path_gone])
    return verdicts


def sampled(disk: SimDisk, paths: Iterable[str], count: int) -> list[tuple[str, int]]:
    rng = random.Random(7)
    sizes = {path: 8 * len(data) for path, data in disk.files().items() if path in set(paths)}
    names = sorted(sizes)
    return [(path, rng.randrange(sizes[path])) for path in rng.choices(names, [sizes[n] for n in names], k=count)]


# ------------------------------------------------------------------------------------------------------------- journal


def journal_on(disk: SimDisk, frames: list[bytes], segment_bytes: int, *, clean: bool) -> None:
    journal = FileJournal.create(disk, "d/journal", STORE, segment_bytes=segment_bytes)
    for at in range(0, len(frames), 3):
        journal.append(at, frames[at : at + 3])
    if clean:
        journal.close()


def read_journal(disk: SimDisk, frames: list[bytes], segment_bytes: int, *, clean: bool) -> str:
    try:
        journal = FileJournal.open(disk, "d/journal", STORE, segment_bytes=segment_bytes)
        replayed = [frame for _, frame in journal.replay(0)]
    except CorruptJournal:
        return "refused"
    if replayed == frames:
        return "harmless"
    # Above the watermark, damage to the very last block looks like a torn write: it is cut, and reported.
    assert not clean, "acknowledged frames are gone and nothing is reported"
    assert journal.recovery.torn is not None
    assert replayed == frames[: len(replayed)]
    assert len(frames) - len(replayed) <= 3
    return "cut and reported"


@pytest.mark.parametrize("clean", [True, False], ids=["after a clean end", "after a crash"])
def test_every_bit_of_a_small_journal_with_its_watermark(clean: bool) -> None:
    frames = [bytes([n]) * (20 + n) for n in range(30)]
    size = 4096 + 2048
    disk = new_disk()
    journal_on(disk, frames, size, clean=clean)
    paths = ["d/journal/00000001.journal", "d/journal/watermark"]
    used = len(disk.files()[paths[0]].rstrip(b"\0"))
    assert used > 4096 + 1500
    # The whole header, every block, the first bytes after the last one, and both slots of the watermark.
    areas = [(paths[0], 0, used + 16), (paths[1], 0, 64), (paths[1], 4096, 4160)]
    bits = [(path, bit) for path, begin, end in areas for bit in range(8 * begin, 8 * end)]
    verdicts = flip_each(disk, bits, lambda: read_journal(disk, frames, size, clean=clean))
    assert sum(verdicts.values()) == len(bits) > 45_000
    assert verdicts["refused"] > 43_000
    assert verdicts.get("cut and reported", 0) < 2500
    if clean:
        assert set(verdicts) == {"refused", "harmless"}


def test_a_sample_of_a_larger_journal_of_many_segments() -> None:
    rng = random.Random(3)
    frames = [rng.randbytes(rng.randrange(10, 400)) for _ in range(400)]
    size = 4096 + 16384
    disk = new_disk()
    journal_on(disk, frames, size, clean=True)
    paths = [path for path in disk.files() if path.endswith((".journal", "watermark"))]
    assert len(paths) > 5
    bits = sampled(disk, paths, SAMPLES)
    verdicts = flip_each(disk, bits, lambda: read_journal(disk, frames, size, clean=True))
    assert set(verdicts) <= {"refused", "harmless"}
    assert verdicts["refused"] > SAMPLES // 2


# ------------------------------------------------------------------------------------------------------------ snapshot


def read_snapshot(disk: SimDisk, frames: list[bytes]) -> str:
    newest = snapshots.load_newest(disk, "d/snapshots", STORE)
    if newest.snapshot is None:
        assert len(newest.damaged) == 1
        return "refused"
    assert list(snapshots.read_frames(disk, newest.snapshot, STORE)) == frames
    return "harmless"


def test_every_bit_of_a_small_snapshot() -> None:
    frames = [bytes([n]) * (n % 40) for n in range(60)]
    disk = new_disk()
    path = snapshots.save(disk, "d/snapshots", STORE, 9, frames).path
    bits = [(path, bit) for bit in range(8 * len(disk.files()[path]))]
    assert flip_each(disk, bits, lambda: read_snapshot(disk, frames)) == {"refused": len(bits)}


def test_a_sample_of_a_larger_snapshot() -> None:
    rng = random.Random(4)
    frames = [rng.randbytes(rng.randrange(300)) for _ in range(400)]
    disk = new_disk()
    path = snapshots.save(disk, "d/snapshots", STORE, 9, frames).path
    bits = sampled(disk, [path], SAMPLES // 5)
    assert flip_each(disk, bits, lambda: read_snapshot(disk, frames)) == {"refused": len(bits)}


# --------------------------------------------------------------------------------------------------------- log segments


def batches(count: int, size_bytes: int) -> list[bytes]:
    rng = random.Random(5)
    return [
        records.stamp(records.pack([records.Record(rng.randbytes(size_bytes), b"key")]), offset, 1000 + offset)
        for offset in range(count)
    ]


def log_on(disk: SimDisk, stored: list[bytes], segment_bytes: int) -> None:
    store = FileLogStore(disk, "d/logs", segment_bytes, store=STORE)
    for offset, batch in enumerate(stored):
        store.append(1, offset, 1, batch)
    store.sync()
    store.close()


def read_log(disk: SimDisk, stored: list[bytes], segment_bytes: int) -> str:
    store = FileLogStore(disk, "d/logs", segment_bytes, store=STORE)
    store.restore(1, 0, len(stored))
    read_back: list[bytes] = []
    try:
        # A read returns what is before the damage; only the next one meets it. So a reader must continue to the end.
        while len(read_back) < len(stored):
            more = store.read(1, len(read_back), len(stored), 1 << 30)
            assert more, "records are missing and nothing is reported"
            read_back += more
            assert read_back == stored[: len(read_back)], "other bytes came back than were written"
    except CorruptLog:
        return "refused"
    return "harmless"


def test_every_bit_of_a_small_log_segment_and_its_index() -> None:
    stored = batches(12, 60)
    disk = new_disk()
    log_on(disk, stored, 1 << 16)
    paths = [path for path in disk.files() if "/logs/" in path]
    assert len(paths) == 2
    bits = [(path, bit) for path in paths for bit in range(8 * len(disk.files()[path]))]
    verdicts = flip_each(disk, bits, lambda: read_log(disk, stored, 1 << 16))
    assert verdicts["refused"] == 8 * len(disk.files()[next(path for path in paths if path.endswith(".log"))])
    assert verdicts["refused"] + verdicts["harmless"] == len(bits), "an index is a cache: damage to it costs a walk"


def test_a_sample_of_larger_log_segments() -> None:
    stored = batches(500, 300)
    disk = new_disk()
    log_on(disk, stored, 1 << 16)
    paths = [path for path in disk.files() if path.endswith(".log")]
    assert len(paths) > 2
    bits = sampled(disk, paths, SAMPLES // 5)
    assert flip_each(disk, bits, lambda: read_log(disk, stored, 1 << 16)) == {"refused": len(bits)}


# --------------------------------------------------------------------------------------------------------- whole folder


def test_verify_notices_a_flipped_bit_anywhere_in_a_folder_or_the_folder_reads_as_written() -> None:
    frames = RandomCommands(3).run(120)
    disk = SimDisk(1)
    write_folder(disk, frames, snapshot_lsn=60)
    expected = read_folder(disk)
    assert expected != "refused"

    def read() -> str:
        try:
            findings = verify(disk, PATH).findings
        except (Damaged, FormatTooNew):
            return "noticed"
        if findings:
            return "noticed"
        assert read_folder(disk) == expected, "verify noticed nothing, and the folder reads otherwise than written"
        return "harmless"

    paths = [path for path in disk.files() if path.endswith((".journal", ".snapshot", ".log", "watermark", "FORMAT"))]
    verdicts = flip_each(disk, sampled(disk, paths, SAMPLES // 25), read)
    assert set(verdicts) == {"noticed", "harmless"}
    assert verdicts["noticed"] > SAMPLES // 80


def read_folder(disk: SimDisk) -> str:
    """The state and every record, as one fingerprint. The disk is copied: opening a folder may write to it."""
    options = StorageOptions(journal_segment_bytes=SEGMENT_BYTES, log_segment_bytes=2_000)
    opened = open_folder(disk.copy(1), PATH, STORE, BrokerLimits(), SystemChance(), options)
    batches = {
        log_id: [batch[:16] + batch[24:] for batch in opened.store.read(log_id, log.start, log.end, 1 << 30)]
        for log_id, log in opened.broker.state.logs.items()
    }
    return f"{digest(opened.broker.snapshot())} {batches}"
