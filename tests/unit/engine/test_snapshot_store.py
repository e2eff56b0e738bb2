"""What every snapshot store must do, one clause per test, run against the store in memory and the one in a folder."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from driftq.core.broker import Broker
from driftq.core.model import commands as c
from driftq.core.model.facts import Fact
from driftq.core.model.frames import decode, encode
from driftq.core.model.limits import BrokerLimits
from driftq.engine.clock import SystemChance
from driftq.engine.folder_storage import StorageOptions, open_folder
from driftq.engine.projection import StoreReader
from driftq.engine.recovery import recover
from driftq.engine.snapshot_store import (
    FolderSnapshots,
    FoldFailed,
    MemorySnapshots,
    SnapshotStore,
    apply_frames,
    empty_broker,
    snapshot_frames,
)
from driftq.storage.corruption import CorruptSnapshot
from driftq.storage.disk import OsDisk
from driftq.storage.journal import Journal, MemoryJournal
from driftq.storage.log_store import MemoryLogStore
from driftq.wire.records import pack_one

OPTIONS = StorageOptions(journal_segment_bytes=8_192)


class MemoryRig:
    """Snapshots of a journal in memory."""

    def __init__(self, _: Path) -> None:
        self.journal: Journal = MemoryJournal()
        self.snapshots: SnapshotStore = MemorySnapshots(self.journal)

    def close_segment(self) -> int:
        """An lsn that may be folded up to."""
        return self.journal.tail_lsn()

    def lose_frames(self) -> None:
        """The journal no longer begins at lsn 1."""
        self.journal.trim(self.journal.tail_lsn())

    def reopen(self) -> SnapshotStore:
        """The store as the next owner finds it."""
        return self.snapshots


class FolderRig:
    """Snapshots of a data folder on the real disk. A fold is a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._disk = OsDisk()
        opened = open_folder(self._disk, f"{folder}/data", bytes(16), BrokerLimits(), SystemChance(), OPTIONS)
        self._opened = opened
        self.journal: Journal = opened.journal
        self.snapshots: SnapshotStore = opened.snapshots

    def close_segment(self) -> int:
        lsn = self.journal.tail_lsn()
        while self.journal.closed_lsn() < lsn:
            self.journal.append(self.journal.tail_lsn(), [encode([])])
        return self.journal.closed_lsn()

    def lose_frames(self) -> None:
        min(Path(self._opened.folder.journal).glob("*.journal")).unlink()

    def reopen(self) -> SnapshotStore:
        return FolderSnapshots(self._disk, self._opened.folder)


Rig = MemoryRig | FolderRig


@pytest.fixture(params=[MemoryRig, FolderRig], ids=lambda rig: rig.__name__)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Rig:
    return request.param(tmp_path)  # type: ignore[no-any-return]


def work(rig: Rig, topic: str) -> None:
    """Append the frames of a few commands to the journal."""
    broker = empty_broker()
    apply_frames(broker, (frame for _, frame in rig.journal.replay(0)))
    commands = [c.CreateTopic(topic), *[c.Produce(topic, pack_one(b"v" * 200), 1, 200) for _ in range(20)]]
    for command in commands:
        facts = broker.decide(command, 1_000).facts
        broker.apply_all(facts)
        rig.journal.append(rig.journal.tail_lsn(), [encode(facts)])


def fold(rig: Rig) -> int:
    lsn = rig.close_segment()
    asyncio.run(rig.snapshots.fold(lsn))
    return lsn


def state_of(frames: list[bytes]) -> list[Fact]:
    broker = empty_broker()
    apply_frames(broker, frames)
    return list(broker.snapshot())


def test_a_new_store_is_empty_and_needs_the_whole_journal(rig):
    assert (rig.snapshots.newest_lsn(), rig.snapshots.newest(), rig.snapshots.first_needed_lsn()) == (0, None, 1)


def test_a_fold_holds_the_state_of_every_frame_up_to_its_lsn_and_no_later_one(rig):
    work(rig, "a")
    first_lsn = fold(rig)
    work(rig, "b")
    second_lsn = rig.close_segment()
    work(rig, "c")
    asyncio.run(rig.snapshots.fold(second_lsn))
    newest = rig.snapshots.newest()
    assert newest is not None
    assert first_lsn < second_lsn == newest.lsn == rig.snapshots.newest_lsn()
    expected = state_of([frame for lsn, frame in rig.journal.replay(0) if lsn <= second_lsn])
    assert state_of(list(rig.snapshots.read(newest))) == expected


def test_a_fold_that_is_there_already_changes_nothing(rig):
    work(rig, "a")
    lsn = fold(rig)
    before = rig.snapshots.newest()
    asyncio.run(rig.snapshots.fold(lsn))
    assert rig.snapshots.newest() == before
    assert rig.snapshots.first_needed_lsn() == 1, "there is still one generation"


def test_two_generations_are_kept_and_the_journal_is_needed_after_the_older_one(rig):
    older_lsn = 0
    for topic in ("a", "b", "c"):
        work(rig, topic)
        lsn = fold(rig)
        assert rig.snapshots.first_needed_lsn() == older_lsn + 1
        older_lsn = lsn


def test_a_fold_over_missing_frames_fails_and_changes_nothing(rig):
    work(rig, "a")
    lsn = rig.close_segment()
    work(rig, "b")
    rig.lose_frames()
    with pytest.raises(FoldFailed):
        asyncio.run(rig.snapshots.fold(lsn))
    assert (rig.snapshots.newest_lsn(), rig.snapshots.newest(), rig.snapshots.first_needed_lsn()) == (0, None, 1)


def test_a_fold_past_the_tail_fails_and_changes_nothing(rig):
    work(rig, "a")
    with pytest.raises(FoldFailed):
        asyncio.run(rig.snapshots.fold(rig.journal.tail_lsn() + 1))
    assert rig.snapshots.newest() is None


def test_a_saved_state_is_what_the_next_owner_reads(rig):
    work(rig, "a")
    lsn = rig.journal.tail_lsn()
    broker = empty_broker()
    apply_frames(broker, (frame for _, frame in rig.journal.replay(0)))
    rig.snapshots.save(lsn, rig.journal.crc_at(lsn) or 0, snapshot_frames(broker))
    assert rig.snapshots.newest_lsn() == lsn
    snapshots = rig.reopen()
    newest = snapshots.newest()
    assert newest is not None
    assert (newest.lsn, newest.chain_crc) == (lsn, rig.journal.crc_at(lsn))
    assert [fact for frame in snapshots.read(newest) for fact in decode(frame)] == list(broker.snapshot())


def test_a_recovery_from_a_snapshot_equals_one_from_the_whole_journal(rig):
    work(rig, "a")
    fold(rig)
    work(rig, "b")
    snapshots = rig.reopen()
    whole, resumed = recovered(rig, snapshots, from_snapshot=False), recovered(rig, snapshots, from_snapshot=True)
    assert list(whole.snapshot()) == list(resumed.snapshot())
    assert {"a", "b"} <= resumed.state.topics.keys()


def recovered(rig: Rig, snapshots: SnapshotStore, *, from_snapshot: bool) -> Broker:
    store = MemoryLogStore()
    broker = Broker(BrokerLimits(), StoreReader(store), SystemChance())
    newest = snapshots.newest() if from_snapshot else None
    replayed = recover(broker, rig.journal, store, snapshots, newest)
    assert replayed == rig.journal.tail_lsn() - (newest.lsn if newest is not None else 0)
    return broker


def test_a_snapshot_of_another_history_is_refused(rig):
    work(rig, "a")
    lsn = rig.journal.tail_lsn()
    rig.snapshots.save(lsn, (rig.journal.crc_at(lsn) or 0) ^ 1, [])
    with pytest.raises(CorruptSnapshot, match="history"):
        recovered(rig, rig.reopen(), from_snapshot=True)
