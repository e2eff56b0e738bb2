"""After any damage, truncation leaves exactly the prefix, and salvage finds every readable record.

A random history is written to a folder, and frames and log files are damaged. The result of repair is compared with the
history: the state before the first damage, and all records that are still readable.
"""

from __future__ import annotations

import base64
import json
import random

import pytest

from driftq.core.model import facts as f
from driftq.core.model.frames import decode
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.stream_facts import StreamCreated
from driftq.engine.clock import SystemChance
from driftq.engine.folder_storage import StorageOptions, open_folder
from driftq.engine.projection import project
from driftq.repair import folder_reader, salvage, truncate
from driftq.repair.folder_reader import new_broker, require_folder
from driftq.repair.verify import digest, verify
from driftq.storage.disk import File
from driftq.storage.log_store import MemoryLogStore
from driftq.wire import records
from tests.support.damaged_folder import PATH, SEGMENT_BYTES, STORE, damage_frame, log_segments, write_folder
from tests.support.random_commands import RandomCommands
from tests.support.simdisk import Crash, Fault, SimDisk

SEEDS = {"quick": 5, "dev": 20, "ci": 60, "release": 1_000}
Contents = dict[str, dict[int, bytes]]  # by the name of the log and by offset


def contents(frames: list[bytes]) -> Contents:
    """The records of a history, by the name of their log."""
    broker, store = new_broker(), MemoryLogStore()
    for frame in frames:
        facts = decode(frame)
        for fact in facts:
            broker.apply(fact)
        project(store, facts)
    state = broker.state
    names = {log_id: f"{log.topic}/{log.partition}" for log_id, log in state.logs.items() if log.topic}
    names |= {log_id: stream.path for log_id, stream in state.streams.by_log.items()}
    by_log: Contents = {}
    for log_id, name in names.items():
        log = state.logs[log_id]
        for batch in store.read(log_id, log.start, log.end, 1 << 30):
            header = records.read_header(batch)
            for offset, record in enumerate(records.unpack(batch), header.first_offset):
                if offset >= log.start:
                    by_log.setdefault(name, {})[offset] = record.value
    return by_log


def state_digest(frames: list[bytes]) -> tuple[int, int]:
    broker = new_broker()
    for frame in frames:
        for fact in decode(frame):
            broker.apply(fact)
    return digest(broker.snapshot())


def salvaged(disk: SimDisk, logs: list[salvage.SalvagedLog]) -> Contents:
    """What the files of a salvage hold. Lines are in the order of offsets, and each offset is there once."""
    by_log: Contents = {}
    for log in logs:
        lines = [json.loads(line) for line in disk.files()[log.file].splitlines()]
        offsets = [line["offset"] for line in lines]
        assert offsets == sorted(set(offsets)), log
        assert len(lines) == log.records == sum(end - first for first, end in log.ranges)
        for line in lines:
            value = base64.b64decode(line["value_base64"]) if "value_base64" in line else line["value"].encode()
            by_log.setdefault(log.log, {})[line["offset"]] = value
    return by_log


@pytest.mark.parametrize("log_files", [True, False], ids=["log files are there", "log files are gone"])
def test_truncation_leaves_exactly_the_prefix_and_salvage_finds_every_readable_record(log_files, profile, seed):
    cut = 0
    for number in range(seed, seed + SEEDS[profile]):
        frames = RandomCommands(number).run(150)
        chance = random.Random(number)
        snapshot_lsn = chance.choice([0, 0, chance.randrange(1, len(frames))])
        disk = SimDisk(number)
        folder = write_folder(disk, frames, snapshot_lsn=snapshot_lsn, log_files=log_files or bool(snapshot_lsn))
        damaged = {chance.randrange(2, len(frames) + 1) for _ in range(chance.choice([1, 1, 2, 5]))}
        for lsn in damaged:
            damage_frame(disk, folder, lsn, chance)
        assert verify(disk, PATH).findings, f"seed {number}: damage in lsn {damaged} was not noticed"

        readable = salvage.ReadableRecords(disk, folder)
        by_log = salvaged(disk, salvage.write(disk, readable, "out/all"))
        readable.close()
        unnamed = names_lost(frames, {lsn for lsn in damaged if lsn > snapshot_lsn})
        check_salvage(frames, damaged, by_log, unnamed, complete=log_files, what=f"seed {number}")

        kept_lsn = min((lsn for lsn in damaged if lsn > snapshot_lsn), default=len(frames) + 1) - 1
        plan = truncate.plan(disk, PATH)
        assert (plan.kept_lsn, plan.last_lsn) == (kept_lsn, len(frames)), f"seed {number}"
        done = truncate.execute(disk, plan)
        check_salvage_lists_the_prefix(disk, frames[:kept_lsn], f"seed {number}")
        disk.crash("none")
        check_prefix(disk, frames[:kept_lsn], f"seed {number}")
        if log_files:
            by_log = salvaged(disk, list(done.salvaged))
            check_cut_is_salvaged(frames, kept_lsn, by_log, unnamed, f"seed {number}")
        cut += len(done.salvaged)
    assert cut


def names_lost(frames: list[bytes], damaged: set[int]) -> dict[str, str]:
    """Logs whose name was only in a damaged frame are salvaged under their number."""
    lost: dict[str, str] = {}
    for lsn, frame in enumerate(frames, 1):
        for fact in decode(frame):
            names = {}
            if isinstance(fact, StreamCreated):
                names = {fact.path: fact.log_id}
            elif isinstance(fact, f.TopicCreated):
                topics = [f"{prefix}{fact.topic}" for prefix in ("", "dlq.")]
                names = {
                    f"{topic}/{partition}": fact.first_log_id + index * fact.partitions + partition
                    for index, topic in enumerate(topics)
                    for partition in range(fact.partitions)
                }
            for name, log_id in names.items():
                lost.pop(name, None)  # a name that was reused
                if lsn in damaged:
                    lost[name] = f"log {log_id}"
    return lost


def check_salvage(
    frames: list[bytes], damaged: set[int], by_log: Contents, unnamed: dict[str, str], *, complete: bool, what: str
) -> None:
    """Every value is the right one, and every record that is live and readable is there."""
    expected = contents(frames)
    for name, values in expected.items():
        for offset, value in by_log.get(name, {}).items():
            assert offset not in values or values[offset] == value, f"{what}: {name}, offset {offset}"
        if complete:
            salvaged_as = unnamed.get(name, name)
            assert values.keys() <= by_log.get(salvaged_as, {}).keys(), f"{what}: {name}"
    if not complete:
        for lsn, frame in enumerate(frames, 1):
            for fact in decode(frame) if lsn not in damaged else ():
                if isinstance(fact, f.Appended):
                    batch = records.unpack(fact.batch)
                    everything = {value for values in by_log.values() for value in values.values()}
                    live = {value for values in expected.values() for value in values.values()}
                    assert {record.value for record in batch} & live <= everything, f"{what}: lsn {lsn}"


def check_prefix(disk: SimDisk, frames: list[bytes], what: str) -> None:
    """The folder opens, holds the state after these frames, and serves their records; and it takes new ones."""
    assert not [finding for finding in verify(disk, PATH).findings if finding.part != "log"], what
    options = StorageOptions(journal_segment_bytes=SEGMENT_BYTES, log_segment_bytes=2_000)
    opened = open_folder(disk, PATH, STORE, BrokerLimits(), SystemChance(), options)
    assert opened.journal.tail_lsn() == len(frames), what
    assert digest(opened.broker.snapshot()) == state_digest(frames), what
    opened.journal.append(len(frames), [frames[-1]])
    opened.journal.close()
    opened.store.close()


def check_salvage_lists_the_prefix(disk: SimDisk, frames: list[bytes], what: str) -> None:
    """After a truncation, salvage lists the records that the broker has, though log files still hold what was cut."""
    folder = require_folder(disk, PATH)
    readable = salvage.ReadableRecords(disk, folder)
    listed = salvaged(disk, salvage.write(disk, readable, "out/truncated"))
    readable.close()
    assert listed == contents(frames), what


def check_cut_is_salvaged(
    frames: list[bytes], kept_lsn: int, by_log: Contents, unnamed: dict[str, str], what: str
) -> None:
    """What was cut and is live at the end of the history is in the files."""
    before, after = contents(frames[:kept_lsn]), contents(frames)
    for name, values in after.items():
        kept = before.get(name, {})
        if any(values.get(offset, value) != value for offset, value in kept.items()):
            continue  # deleted and created again: another log under the same name
        missing = {offset for offset in values if offset > max(kept, default=-1)}
        missing -= by_log.get(unnamed.get(name, name), {}).keys()
        assert not missing, f"{what}: {name}, offsets {missing}"


class BrokerAtWork(SimDisk):
    """A disk from which a running broker removes a log file, just before a reader opens it for the nth time."""

    opens_left = 0  # 0: nothing is removed
    is_started_again = False

    def open(self, path: str, *, write: bool = False) -> File:
        if "/logs/" in path and path.endswith(".log") and self.opens_left:
            self.opens_left -= 1
            if not self.opens_left:
                super().remove("test", path)
        return super().open(path, write=write)

    def remove(self, label: str, path: str) -> None:
        self.is_started_again = self.is_started_again or label == "salvage.remove"
        super().remove(label, path)


def test_salvage_starts_again_when_a_running_broker_removes_a_file(seed, monkeypatch):
    monkeypatch.setattr(folder_reader, "OPEN_LOG_FILES", 1)  # as with very many logs: files are opened again and again
    frames = RandomCommands(seed).run(600)
    started_again = 0
    for opens in range(1, 60):
        disk = BrokerAtWork(seed)
        folder = write_folder(disk, frames)
        disk.opens_left = opens
        logs = salvage.salvage(disk, folder, "out")
        assert salvaged(disk, logs) == contents(frames), f"open {opens}"
        assert {path for path in disk.files() if path.startswith("out/")} == {log.file for log in logs}
        started_again += disk.is_started_again
        if disk.opens_left:
            break
    assert started_again, "no file was removed while records were written"


def test_a_sound_folder_needs_no_truncation(seed):
    disk = SimDisk(seed)
    write_folder(disk, RandomCommands(seed).run(100), snapshot_lsn=40)
    before = disk.files()
    plan = truncate.plan(disk, PATH)
    assert not plan.is_needed
    assert plan.lines() == []
    assert disk.files() == before


def test_a_truncation_that_is_interrupted_anywhere_is_completed_by_the_next_one(seed):
    frames = RandomCommands(seed).run(60)
    for nth in range(1, 1_000):
        disk = SimDisk(nth)
        folder = write_folder(disk, frames)
        damage_frame(disk, folder, len(frames) // 2, random.Random(nth))
        originals = {data for path, data in disk.files().items() if path.endswith(".journal")}
        disk.fail_nth(nth, Fault.CRASH_AFTER)
        try:
            truncate.execute(disk, truncate.plan(disk, PATH))
        except Crash:
            disk.crash()
        else:
            return
        plan = truncate.plan(disk, PATH)
        if plan.is_needed:
            truncate.execute(disk, plan)
        check_prefix(disk, frames[: len(frames) // 2 - 1], f"interrupted at call {nth}")
        aside = {data for path, data in disk.files().items() if ".damaged-1/" in path and path.endswith(".journal")}
        assert aside == originals, "the damaged journal is kept as it was"
    pytest.fail("no run was left alone")


def test_a_damaged_batch_in_a_log_file_costs_no_other_batch(seed):
    """A run of a log file has one checksum. Salvage reads the batches around the damaged one all the same."""
    frames = RandomCommands(seed).run(150)
    disk = SimDisk(seed)
    folder = write_folder(disk, frames, snapshot_lsn=len(frames))
    for path in list(disk.files()):
        if path.endswith(".journal"):
            disk.put(path, None)
    expected = contents(frames)
    for path in log_segments(disk):
        before = disk.files()[path]
        log_bytes = before.rstrip(b"\0")
        disk.flip(path, 8 * (len(log_bytes) // 2) + 3)
        readable = salvage.ReadableRecords(disk, folder)
        by_log = salvaged(disk, salvage.write(disk, readable, f"out/{path}"))
        readable.close()
        missing = []
        for name, values in expected.items():
            present = {offset: value for offset, value in by_log.get(name, {}).items() if offset in values}
            assert present.items() <= values.items(), path
            missing += [(name, offset) for offset in values if offset not in present]
        assert len(missing) <= 3, f"{path}: {missing}"
        assert len({name for name, _ in missing}) <= 1
        disk.put(path, before)
