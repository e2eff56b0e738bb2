"""What is left of a history after frames were lost folds together again, whichever frames they were.

A random history is written down frame by frame; some frames are taken out; what the mender makes of the rest must be an
ordinary history (it folds without a word), lose no record that is left, give out no offset twice and leave every
message of every group in exactly one place.
"""

from __future__ import annotations

import random

import pytest

from driftq.core.broker import Broker
from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.frames import decode, encode
from driftq.core.model.replies import Claimed, Rejected
from driftq.core.state.state import State
from driftq.engine.projection import project
from driftq.repair.salvage import LogFiles, Salvager, StartOver, new_broker
from driftq.repair.verify import digest
from driftq.storage.data_folder import DataFolder
from driftq.storage.log_store import MemoryLogStore
from driftq.storage.segments import SegmentLogStore
from driftq.wire import records
from tests.support.broker_fixture import Desk, held, packed, produce
from tests.support.simdisk import SimDisk

STORE = bytes(range(16))
SEEDS = {"quick": 10, "dev": 40, "ci": 150, "release": 3_000}


class Chaos:
    """Somebody who asks for everything, in no order."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.desk = Desk(seed=seed)
        self.claims: list[tuple[str, str, Claimed]] = []
        self.seqs: dict[str, int] = {}
        self.values = 0

    def run(self, steps: int) -> list[bytes]:
        actions = [self.produce] * 6 + [self.claim] * 5 + [self.settle] * 6 + [self.stream] * 3
        actions += [self.stage, self.administer, self.passes]
        self.desk.do(c.CreateTopic("t0", 2))
        for _ in range(steps):
            self.random.choice(actions)()
        return self.desk.journal

    def topic(self) -> str:
        return self.random.choice(["t0", "t0", "t1"])

    def value(self) -> str:
        self.values += 1
        return f"v{self.values}"

    def produce(self) -> None:
        pick = self.random
        topic, partition = self.topic(), pick.randrange(2)
        values = [self.value() for _ in range(pick.choice([1, 1, 3]))]
        marks: tuple[f.RecordSchedule, ...] = ()
        producer = None
        if pick.random() < 0.3:
            delay_ms = pick.choice([0, 0, 500])
            not_before_ms = self.desk.now_ms + delay_ms if delay_ms else 0
            marks = (f.RecordSchedule(0, pick.randrange(3), pick.choice(["", "a"]), "", not_before_ms),)
        if pick.random() < 0.3:
            name = f"{topic}/{partition}"
            producer = f.ProducerSequence(name, 1, self.seqs.get(name, 0), 7)
        reply = self.desk.do(produce(*values, topic=topic, partition=partition, marks=marks, producer=producer))
        if producer is not None and not isinstance(reply, Rejected):
            self.seqs[producer.producer] = producer.seq + 1

    def claim(self) -> None:
        topic, group = self.topic(), self.random.choice(["g", "h"])
        reply = self.desk.do(c.Claim(topic, group, "w", self.random.randrange(1, 6), 1_000))
        if isinstance(reply, Claimed) and reply.deliveries:
            self.claims.append((topic, group, reply))

    def settle(self) -> None:
        if not self.claims:
            return
        pick = self.random
        topic, group, claimed = self.claims.pop(pick.randrange(len(self.claims)))
        for delivery in claimed.deliveries:
            runs = held((delivery.first, delivery.end), partition=delivery.partition, token=claimed.token)
            kind = pick.choice([c.Ack, c.Ack, c.Ack, c.Nack, c.ReleaseMessages, c.RejectMessages, c.Extend])
            self.desk.do(kind(topic, group, "w", runs))

    def stream(self) -> None:
        pick = self.random
        path = pick.choice(["/a", "/b", "/c"])
        batch, count, size = packed(self.value())
        kind = pick.randrange(8)
        if kind == 0:
            self.desk.do(c.CreateStream(path, "text/plain"))
        elif kind == 1:
            self.desk.do(c.CreateStream(path, "text/plain", source=pick.choice(["/a", "/b"])))
        elif kind == 2:
            self.desk.do(c.DeleteStream(path))
        else:
            self.desk.do(c.AppendStream(path, "text/plain", batch, count, size, close=kind == 3))

    def stage(self) -> None:
        batch, count, size = packed(self.value())
        number = self.random.randrange(1_000)
        self.desk.do(c.Stage("w", f"h{number}", batch, count, size, topic="t0", partition=0))
        if self.random.random() < 0.6:
            self.desk.do(c.Publish("w", self.desk.now_ms, (f"h{number}",)))

    def administer(self) -> None:
        pick = self.random
        topic, group = self.topic(), pick.choice(["g", "h"])
        command = pick.choice(
            [
                c.CreateTopic("t1", 2),
                c.CreateTopic("t1", 2),
                c.DeleteTopic("t1"),
                c.DeleteGroup(topic, group),
                c.SeekGroup(topic, group, "earliest"),
                c.PauseGroup(topic, group, pick.random() < 0.5),
                c.TrimTopic(topic, 0, pick.randrange(5)),
            ]
        )
        self.desk.do(command)

    def passes(self) -> None:
        self.desk.pass_ms(self.random.choice([1, 100, 1_500]))


def stored(frames: list[bytes], disk: SimDisk) -> LogFiles:
    """The log files as a broker that took all frames would have left them."""
    folder = DataFolder("d", STORE)
    store = SegmentLogStore(disk, folder.logs, 2_000, store=STORE)
    for frame in frames:
        project(store, decode(frame))
    store.close()
    return LogFiles(disk, folder)


def mended(frames: list[bytes], gone: set[int], files: LogFiles) -> tuple[Salvager, list[bytes]]:
    without: dict[int, str] = {}
    while True:
        mender = Salvager(files, without)
        written: list[bytes] = []
        try:
            for lsn, frame in enumerate(frames, 1):
                written.append(mender.hole(lsn, lsn) if lsn in gone else mender.frame(lsn, frame))
            written += mender.closing([])
        except StartOver as again:
            without[again.lsn] = again.reason
            continue
        assert not without, without  # the net is there, but nothing should fall into it
        return mender, written


def contents(frames: list[bytes]) -> tuple[Broker, dict[int, dict[int, bytes]]]:
    """Fold as any broker does, into a log store too; returns what each log holds, by offset."""
    broker, store = new_broker(), MemoryLogStore()
    for frame in frames:
        facts = decode(frame)
        for fact in facts:
            broker.apply(fact)
        project(store, facts)
    held_by: dict[int, dict[int, bytes]] = {}
    for log_id, log in broker.state.logs.items():
        for batch in store.read(log_id, log.start, log.end, 1 << 30):
            header = records.read_header(batch)
            for index, record in enumerate(records.unpack(batch)):
                held_by.setdefault(log_id, {})[header.first_offset + index] = record.value
    return broker, held_by


def places(state: State) -> list[str]:
    """Messages that are in no place, or in two."""
    wrong: list[str] = []
    for group in state.groups.values():
        for progress in group.progress:
            log = state.logs[progress.log_id]
            for offset in range(progress.floor, log.end):
                lane = log.lane_of(offset)
                cursor = progress.cursor if lane is None else progress.lane_cursors.get(lane, 0)
                found = [
                    name
                    for name, there in (
                        ("settled", offset in progress.settled),
                        ("held", progress.held.lease_at(offset) is not None),
                        ("entry", offset in progress.entries),
                        ("ready", offset in progress.ready),
                        ("fresh", offset >= cursor),
                    )
                    if there
                ]
                if "fresh" in found and len(found) > 1 and set(found) <= {"fresh", "settled"}:
                    continue  # cancelled or lost before it was delivered: passed over
                if lane is not None and set(found) == {"fresh", "entry"}:
                    continue  # it rests before its first delivery
                if len(found) != 1:
                    wrong.append(f"{group.name}, log {log.log_id}, offset {offset}: {found}")
    return wrong


@pytest.mark.parametrize("has_files", [True, False], ids=["log files are there", "log files are gone"])
def test_whatever_is_lost_the_rest_folds_and_every_message_is_in_one_place(has_files, profile, seed):
    left_out = saved = lost = 0
    for each in range(seed, seed + SEEDS[profile]):
        frames = Chaos(each).run(150)
        assert not places(contents(frames)[0].state), "the check itself is wrong"
        chance = random.Random(each)
        first = chance.randrange(1, len(frames))
        gone = set(range(first, min(len(frames), first + chance.choice([1, 2, 5, 30])) + 1))
        disk = SimDisk(each)
        files = stored(frames if has_files else [], disk)
        mender, written = mended(frames, gone, files)
        broker, found = contents(written)
        assert digest(broker.snapshot()) == digest(mender.broker.snapshot())
        again = new_broker()
        for image in broker.snapshot():
            again.apply(image)
        assert digest(again.snapshot()) == digest(broker.snapshot())
        assert not places(broker.state), f"seed {each}: {places(broker.state)[:5]}"
        check_records(frames, gone, mender, broker, found, files, each)
        left_out += len(mender.losses.left_out)
        saved += len(mender.losses.saved)
        lost += len(mender.losses.lost)
    assert left_out
    assert saved if has_files else lost


def check_records(frames, gone, mender, broker, found, files, seed):
    """Nothing is where something else was, and what was left and fits is still there."""
    _, true = contents(frames)
    out = {entry.lsn for entry in mender.losses.left_out}
    for log_id, values in found.items():
        for offset, value in values.items():
            if log_id in true and offset in true[log_id]:
                assert value == true[log_id][offset], f"seed {seed}: log {log_id} offset {offset}"
    for lsn, frame in enumerate(frames, 1):
        if lsn in gone or lsn in out:
            continue
        for fact in decode(frame):
            if isinstance(fact, f.Appended) and fact.log_id in broker.state.logs:
                log = broker.state.logs[fact.log_id]
                for offset in range(max(fact.first_offset, log.start), fact.first_offset + fact.count):
                    assert offset in found[fact.log_id], f"seed {seed}: lsn {lsn} offset {offset}"
    for log_id, log in broker.state.logs.items():
        assert log.end >= max(found.get(log_id, {0: b""})), f"seed {seed}"
        for first, end in log.lost:
            assert not set(range(first, end)) & set(found.get(log_id, {}))
    assert broker.state.next_log_id > max(files.ids(), default=0), "a number would be given out twice"


def test_without_a_hole_every_frame_stays_as_it_was(seed):
    frames = Chaos(seed).run(150)
    _, written = mended(frames, set(), stored(frames, SimDisk(seed)))
    assert written == frames


def test_a_frame_that_fails_half_way_starts_the_fold_over_without_it():
    frames = [encode([f.TopicCreated("t", 1, 1, 1, f.TopicConfig())])]
    mender = Salvager(stored([], SimDisk(1)), {})
    assert mender.frame(1, frames[0]) == frames[0]
    with pytest.raises(StartOver) as again:
        mender.frame(2, encode([f.Appended(9, 0, 1, 1, 1, b"")]))
    mender = Salvager(stored([], SimDisk(1)), {2: again.value.reason})
    mender.frame(1, frames[0])
    assert decode(mender.frame(2, encode([f.Appended(9, 0, 1, 1, 1, b"")]))) == [f.HoleMade(2, 2)]
