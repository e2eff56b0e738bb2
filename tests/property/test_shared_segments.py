"""The log store with shared segments against a model: appends, restores to an earlier end with other bytes, crashes,
trims, drops and compaction, in any order. Whatever a log holds according to the model is what the store reads."""

from __future__ import annotations

from random import Random

import pytest

from driftq.storage.corruption import CorruptLog
from driftq.storage.disk import DiskFull
from driftq.storage.file_log_store import FileLogStore
from driftq.storage.log_store import LogStore
from tests.simulation.planted import Bug, planted_bugs
from tests.support.simdisk import SimDisk
from tests.unit.storage.suites import STORE, batch

Kept = dict[int, tuple[int, list[tuple[int, int, bytes]]]]  # by log: its start and its batches


class Machine:
    """A log store, the journal of what was appended to it as a list, and two snapshots of the model."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimDisk(seed)
        self.disk.make_folder("t", "d")
        self.disk.sync_folder("t", "")
        self.share_bytes = self.random.choice((2_500, 6_000, 1 << 20))
        self.segment_bytes = self.random.choice((300, 1_000, 4_000))
        self.logs: Kept = {}
        self.snapshots: list[tuple[int, int, Kept]] = [(0, 1, {})]  # lsn, the next log, the logs
        self.lsn = 0
        self.timeline = 0
        self.next_log = 1
        self.store: LogStore = self.open()

    def open(self) -> FileLogStore:
        return FileLogStore(
            self.disk, "d/logs", 1_500, store=STORE, open_files=4, share_bytes=self.share_bytes,
            shared_segment_bytes=self.segment_bytes,
        )  # fmt: skip

    def end(self, log_id: int) -> int:
        start, batches = self.logs[log_id]
        return batches[-1][0] + batches[-1][1] if batches else start

    def append(self) -> None:
        if not self.logs or self.random.random() < 0.3:
            log_id, self.next_log = self.next_log, self.next_log + 1
            self.logs[log_id] = (0, [])
        log_id = self.random.choice(list(self.logs))
        start, batches = self.logs[log_id]
        first, count = self.end(log_id), self.random.randrange(1, 4)
        data = batch(first, count, at_ms=self.lsn, size_bytes=self.random.randrange(10, 60), salt=f"{self.timeline}.")
        self.logs[log_id] = (start, [*batches, (first, count, data)])
        self.lsn += 1
        self.store.append(log_id, first, count, data)

    def trim(self) -> None:
        log_id = self.random.choice(list(self.logs))
        start, batches = self.logs[log_id]
        start = self.random.randrange(start, self.end(log_id) + 1)
        if start < self.end(log_id):
            self.lsn += 1
            kept = [placed for placed in batches if placed[0] + placed[1] > start]
            self.logs[log_id] = (start, kept)
            self.store.trim(log_id, start)

    def drop(self) -> None:
        log_id = self.random.choice(list(self.logs))
        self.lsn += 1
        del self.logs[log_id]
        self.store.drop(log_id)

    def checkpoint(self) -> None:
        self.store.sync()
        self.snapshots = [self.snapshots[-1], (self.lsn, self.next_log, dict(self.logs))]
        for _ in range(self.random.randrange(3)):
            self.store.tidy()  # between the sync and the end of the checkpoint
        self.store.collect(self.lsn, self.snapshots[0][0])

    def restart(self) -> None:
        """From one of the kept snapshots, with the same history after it or, as after a truncation, with another."""
        if self.random.random() < 0.5:
            self.disk.crash()
        else:
            self.store.make_room()
            self.disk.restart()
        tail, lsn = self.logs, self.lsn
        if self.random.random() < 0.2:
            self.snapshots[-1] = self.snapshots[0]  # the newer one is damaged
        snapshot_lsn, next_log, kept = self.snapshots[-1]
        self.store = self.open()
        self.logs, self.lsn = dict(kept), snapshot_lsn
        self.store.restore_numbers(next_log)
        for log_id, (start, batches) in kept.items():
            self.store.restore(log_id, start, batches[-1][0] + batches[-1][1] if batches else start)
        if self.random.random() < 0.3:
            self.timeline += 1  # numbers of logs are used again, offsets get other bytes
            self.next_log = next_log
            return
        for log_id, (start, batches) in tail.items():
            begins = self.end(log_id) if log_id in self.logs else 0
            for first, count, data in self.replayed(log_id, batches, begins):
                self.store.append(log_id, first, count, data)
            self.store.trim(log_id, start)
        for log_id in self.logs.keys() - tail.keys():
            self.store.drop(log_id)
        self.logs, self.lsn = tail, lsn

    def replayed(self, log_id: int, batches: list[tuple[int, int, bytes]], begins: int) -> list[tuple[int, int, bytes]]:
        """What the journal after the snapshot appended. Batches that were trimmed since are not in the model; their
        bytes do not matter."""
        later = [placed for placed in batches if placed[0] >= begins]
        first_kept = later[0][0] if later else self.model_end(batches, begins)
        if first_kept > begins:
            later.insert(0, (begins, first_kept - begins, batch(begins, first_kept - begins, salt="trimmed")))
        return later

    def model_end(self, batches: list[tuple[int, int, bytes]], begins: int) -> int:
        return max(begins, batches[-1][0] + batches[-1][1] if batches else begins)

    def check(self) -> None:
        for log_id, (start, batches) in self.logs.items():
            if batches:
                assert self.store.end(log_id) == self.end(log_id)
                assert self.store.read(log_id, start, 1 << 40, 1 << 40) == [data for _, _, data in batches]
                middle = batches[len(batches) // 2]
                assert self.store.read(log_id, max(start, middle[0]), middle[0] + 1, 1)[:1] == [middle[2]] or (
                    start > middle[0]
                )
        for log_id in range(self.next_log):
            if log_id not in self.logs:
                assert self.store.read(log_id, 0, 1 << 40, 1 << 40) == [], "a dropped log is gone"


def run(seed: int, steps: int = 120) -> Machine:
    machine = Machine(seed)
    for _ in range(steps):
        chance = machine.random.random()
        if chance < 0.6 or not machine.logs:
            machine.append()
        elif chance < 0.66:
            machine.trim()
        elif chance < 0.74:
            machine.drop()
        elif chance < 0.84:
            machine.checkpoint()
        elif chance < 0.92:
            machine.store.tidy()
        else:
            machine.restart()
            machine.check()
    machine.check()
    return machine


def test_a_store_with_shared_segments_reads_what_the_model_holds(profile: str) -> None:
    for seed in range(60 if profile == "quick" else 600):
        run(seed)


SHARED = "storage.shared_segments:SharedSegments"
BUGS = {
    "the oldest entry counts": Bug(f"{SHARED}.entries", "reversed(self._segments)", "self._segments"),
    "a stale entry is kept at the start": Bug(f"{SHARED}.entries", "first if first > start else start", "first"),
    "compaction revives a stale entry": Bug(f"{SHARED}._copy", "entry.segment is segment and entry.row == row", "1"),
    "compaction loses an entry": Bug(f"{SHARED}._copy", "self.append(log_id, first, count, ", "bool("),
    "compaction forgets older snapshots": Bug(
        "storage.file_log_store:FileLogStore._is_live", "return log_id in self._unsafe_drops", "return False"
    ),
    "a trim counts at once": Bug("storage.file_log_store:FileLogStore._is_live", "log.kept_from", "log.start"),
    "removed before the copies are durable": Bug(f"{SHARED}._compact", "self._retired.", "self._removable."),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    with planted_bugs(BUGS[name]):
        for seed in range(600):
            try:
                run(seed)
            except (AssertionError, CorruptLog):
                return
    raise AssertionError(f"{name} was not found")


def test_files_of_dropped_logs_go_in_the_end() -> None:
    machine = Machine(7)
    for _ in range(200):
        machine.append()
    machine.checkpoint()
    while machine.logs:
        machine.drop()
    machine.append()
    for _ in range(5):
        machine.checkpoint()
        while machine.store.tidy():
            pass
    names = [path for path in machine.disk.files() if "/shared/" in path and path.endswith(".log")]
    assert len(names) <= 2, names
    machine.check()


def test_a_full_disk_keeps_shared_batches_in_memory() -> None:
    machine = Machine(3)
    machine.share_bytes = 1 << 20
    machine.store = machine.open()
    for _ in range(20):
        machine.append()
    machine.store.make_room()
    machine.disk.capacity_bytes = machine.disk.used_bytes + 10
    for _ in range(60):
        machine.append()
    assert not machine.store.make_room()
    assert machine.store.is_full()
    with pytest.raises(DiskFull):
        machine.store.sync()
    machine.check()
    machine.disk.capacity_bytes = None
    machine.checkpoint()
    assert not machine.store.is_full()
    machine.restart()
    machine.check()


def test_damage_of_a_shared_entry_stops_only_its_own_reads() -> None:
    for seed in range(40):
        machine = Machine(seed)
        machine.share_bytes, machine.segment_bytes = 1 << 20, 1 << 20
        machine.store = machine.open()
        for _ in range(30):
            machine.append()
        machine.checkpoint()
        machine.disk.restart()
        path = next(path for path in machine.disk.files() if "/shared/" in path and path.endswith(".log"))
        size = len(machine.disk.files()[path])
        if seed % 2:  # with and without its index
            machine.disk.put(path.replace(".log", ".index"), None)
        machine.disk.flip(path, machine.random.randrange(64 * 8, size * 8))
        machine.store = machine.open()
        for log_id, (start, _) in machine.logs.items():
            machine.store.restore(log_id, start, machine.end(log_id))
        wrong = 0
        for log_id, (_, batches) in machine.logs.items():
            for first, _, data in batches:
                try:
                    batches_read = machine.store.read(log_id, first, first + 1, 1)
                except CorruptLog:
                    wrong += 1
                else:
                    assert batches_read == [data]
        assert wrong == 1, "one entry is damaged, and it is not shown as sound"
