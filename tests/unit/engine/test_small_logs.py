"""Many small logs cost no disk call each: neither while they are written, nor at a restart, nor in a sync."""

from __future__ import annotations

import time

from driftq.core.model import commands as c
from driftq.core.model.frames import encode
from driftq.core.model.limits import BrokerLimits
from driftq.engine.clock import SystemChance
from driftq.engine.folder_storage import Opened, StorageOptions, open_folder
from driftq.engine.projection import project
from driftq.engine.snapshot_store import snapshot_frames
from driftq.wire.records import pack_one
from tests.support.simdisk import SimDisk

RECORD = pack_one(b"x" * 100)


def opened(disk: SimDisk) -> Opened:
    return open_folder(disk, "d", bytes(range(16)), BrokerLimits(), SystemChance(), StorageOptions(1 << 20))


def fill(folder: Opened, streams: int) -> None:
    """A stream and a record for each command, in commits of a hundred."""
    for first in range(0, streams, 100):
        frames: list[bytes] = []
        for number in range(first, first + 100):
            command = c.CreateStream(f"s/{number}", batch=RECORD, count=1, payload_bytes=100)
            facts = folder.broker.decide(command, 1_000).facts
            folder.broker.apply_all(facts)
            frames.append(encode(facts))
            project(folder.store, facts)
        folder.journal.append(folder.journal.tail_lsn(), frames)


def restarted(streams: int, *, snapshot: bool) -> tuple[SimDisk, int, float]:
    """A disk after a kill, how many calls that change something the restart made, and its CPU time."""
    disk = SimDisk()
    disk.make_folder("t", "d")
    disk.sync_folder("t", "")
    folder = opened(disk)
    fill(folder, streams)
    if snapshot:
        folder.store.sync()
        lsn = folder.journal.tail_lsn()
        folder.snapshots.save(lsn, folder.journal.crc_at(lsn) or 0, snapshot_frames(folder.broker))
    disk.restart()
    before = sum(disk.counts.values())
    begun_s = time.thread_time()
    folder = opened(disk)
    took_s = time.thread_time() - begun_s
    calls = sum(disk.counts.values()) - before
    for number in (0, streams // 2, streams - 1):
        log_id = folder.broker.state.streams.by_path[f"s/{number}"].log_id
        assert len(folder.store.read(log_id, 0, 1, 1 << 20)) == 1
    return disk, calls, took_s


def test_a_restart_makes_no_disk_call_for_each_log() -> None:
    _, few_calls, _ = restarted(200, snapshot=True)
    disk, many_calls, _ = restarted(2_000, snapshot=True)
    assert many_calls <= few_calls + 2, "ten times as many logs"
    assert len([path for path in disk.files() if "/logs/" in path and path.endswith(".log")]) == 1


def test_a_replay_writes_many_logs_with_few_calls() -> None:
    _, calls, _ = restarted(2_000, snapshot=False)
    assert calls < 40


def test_a_restart_is_linear_in_the_number_of_logs() -> None:
    ratios = []
    for _ in range(3):  # the least disturbed of three
        _, _, few_s = restarted(1_000, snapshot=True)
        _, _, many_s = restarted(8_000, snapshot=True)
        ratios.append(many_s / few_s)
    assert min(ratios) < 16, ratios
