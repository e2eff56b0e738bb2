"""Bugs that the simulation found, each as a short test: a seed can change its meaning, a test does not."""

from __future__ import annotations

import pytest

from driftq.core.broker import Broker
from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.frames import decode
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Done, EffectBegun, Rejected, Reply
from driftq.engine import snapshot_store
from driftq.engine.folder_storage import StorageOptions, open_folder
from driftq.engine.group_commit import COMMIT_FRAMES_MAX
from driftq.engine.journal_room import JournalRoom
from driftq.engine.projection import StoreReader
from driftq.engine.sequencer import Sequencer
from driftq.storage.corruption import CorruptJournal
from driftq.storage.file_journal import FileJournal
from driftq.storage.file_log_store import FileLogStore
from driftq.storage.log_store import MemoryLogStore
from driftq.wire.errors import Code
from driftq.wire.message import RetryPolicy
from driftq.wire.records import stamp
from tests.simulation.checks.restarts import NoChance
from tests.support.broker_fixture import BrokerFixture, SeededChance, held, offsets, packed, produce
from tests.support.simdisk import Crash, Fault, SimDisk


def test_a_group_with_gaps_still_delivers_everything():
    fixture = BrokerFixture(BrokerLimits())
    fixture.topic()
    urgent = f.RecordSchedule(0, priority=9)
    for number in range(8):
        fixture.do(produce(f"m{number}", marks=(urgent,) if number % 2 else ()))
    first = fixture.claim(3)
    assert offsets(first) == [1, 3, 5]
    fixture.do(c.Ack("t", "g", "w", held(1, 3, 5, token=first.token)))

    seen: list[int] = []
    while claimed := offsets(reply := fixture.claim(1)):
        seen += claimed
        fixture.do(c.Ack("t", "g", "w", held(*claimed, token=reply.token)))
    assert sorted(seen) == [0, 2, 4, 6, 7]


def test_an_effect_whose_lease_ran_out_can_be_committed_after_a_restart_too():
    fixture = BrokerFixture(BrokerLimits(effect_lease_ms=100))
    key = c.EffectKey("", "t", "g", "e")
    begun = fixture.do(c.BeginEffect(key, "w"))
    assert isinstance(begun, EffectBegun)
    fixture.advance(1_000)
    fixture.topic()  # a fact at a later time
    commit = c.CommitEffect(key, begun.fence, b"result")
    for broker in (fixture.broker, fixture.restarted(), fixture.replayed()):
        assert broker.decide(commit, fixture.now_ms).reply == Done()


def test_states_that_folded_the_same_facts_give_the_same_snapshot():
    fixture = BrokerFixture(BrokerLimits(key_ttl_ms=100_000))
    fixture.do(c.CreateStream("s"))
    fixture.topic()  # its logs have higher numbers than the stream's, and are restored before it

    def keyed(key: str, ttl_ms: int = 0) -> None:
        fixture.do(produce(key, once=c.ProduceKey("", "t", key, 1, ttl_ms)))

    for number in range(6):
        keyed(f"long{number}")
    keyed("short", 50)
    keyed("last")
    fixture.advance(100)
    keyed("another")
    beside, done = fixture.restarted(), len(fixture.journal)  # folded from a snapshot in which one key has expired
    keyed("short")
    for frame in fixture.journal[done:]:
        for fact in decode(frame):
            beside.apply(fact)
    folded = [list(broker.snapshot()) for broker in (fixture.broker, beside, fixture.replayed(), fixture.restarted())]
    assert folded[0] == folded[1] == folded[2] == folded[3]


def grown_folder(disk: SimDisk):
    """A folder whose journal has several closed segments and no snapshot."""
    disk.make_folder("t", "d")
    options = StorageOptions(12 << 10, 4_000)
    opened = open_folder(disk, "d", bytes(16), BrokerLimits(), NoChance(), options)
    sequencer = Sequencer(opened.broker, opened.store, 0, JournalRoom(1 << 40))
    sequencer.submit(c.CreateTopic("t"), 1, lambda _: None)
    for number in range(60):
        batch, count, size = packed(f"{number}".ljust(400, "."))
        sequencer.submit(c.Produce("t", batch, count, size, b"", 0), 1, lambda _: None)
        taken = sequencer.take_batch(COMMIT_FRAMES_MAX)
        assert taken is not None
        sequencer.on_durable(opened.journal.append(taken.expected_lsn, taken.frames))
    assert opened.journal.closed_lsn() > 20
    return opened


def test_a_checkpoint_over_a_damaged_segment_is_refused():
    disk = SimDisk()
    opened = grown_folder(disk)
    disk.flip("d/journal/00000001.journal", 8 * 6_000)
    with pytest.raises(CorruptJournal):
        snapshot_store.fold(disk, opened.folder, opened.journal.closed_lsn())
    assert disk.list("d/snapshots") == []


def test_a_checkpoint_over_a_journal_without_its_first_segment_is_refused():
    disk = SimDisk()
    opened = grown_folder(disk)
    disk.remove("t", "d/journal/00000001.journal")
    with pytest.raises(CorruptJournal):
        snapshot_store.fold(disk, opened.folder, opened.journal.closed_lsn())


def test_a_snapshot_that_was_found_is_made_durable_before_anything_is_trimmed():
    disk = SimDisk()
    opened = grown_folder(disk)
    disk.sync_folder("t", "")
    lsn = opened.journal.closed_lsn()
    disk.fail_nth(1, Fault.CRASH_BEFORE, "snapshot.sync_folder")
    with pytest.raises(Crash):  # the process that folds is killed when the name is there, but not durable
        snapshot_store.fold(disk, opened.folder, lsn)
    disk.on_call = None
    snapshot_store.fold(disk, opened.folder, lsn)
    disk.crash("none")
    assert disk.list("d/snapshots") == [f"{lsn:020d}.snapshot"]


def test_segments_are_removed_only_after_the_watermark_is_durable():
    disk = SimDisk()
    opened = grown_folder(disk)
    disk.sync_folder("t", "")
    disk.fail_nth(1, Fault.CRASH_BEFORE, "journal.watermark.sync")
    with pytest.raises(Crash):  # killed in a trim: the new watermark is written and not synced
        opened.journal.trim(opened.journal.closed_lsn())
    disk.restart()
    again = FileJournal.open(disk, "d/journal", opened.folder.store, segment_bytes=12 << 10)
    assert again.recovery.removed
    disk.crash("none")
    FileJournal.open(disk, "d/journal", opened.folder.store, segment_bytes=12 << 10)


def test_an_index_that_promises_more_than_the_file_holds_does_not_stop_a_start():
    disk = SimDisk()
    disk.make_folder("t", "d")
    store = FileLogStore(disk, "d/logs", 4_000, store=bytes(16))
    batches = [packed(f"{number}".ljust(100, "."))[0] for number in range(3)]
    for number, batch in enumerate(batches):
        store.append(1, number, 1, batch[:8] + number.to_bytes(8, "little") + batch[16:])
    store.sync()
    (name,) = [name for name in disk.list("d/logs/1") if name.endswith(".log")]
    kept = disk.files()[f"d/logs/1/{name}"][: 64 + len(batches[0])]
    disk.put(f"d/logs/1/{name}", kept)  # a truncation that became durable, without the writes after it

    again = FileLogStore(disk, "d/logs", 4_000, store=bytes(16))
    again.restore(1, 0, 1)  # the end in the snapshot: the journal restores the rest
    again.append(1, 1, 1, batches[1])
    assert again.read(1, 1, 2, 1) == [batches[1]]


def test_a_frame_that_is_too_large_for_a_full_disk_is_refused_as_a_whole():
    store = MemoryLogStore()
    broker = Broker(BrokerLimits(), StoreReader(store), SeededChance())
    sequencer = Sequencer(broker, store, 0, JournalRoom(1 << 30, block_bytes=2_000, reserve_bytes=2_000))
    replies: list[Reply] = []

    def do(command: c.Command, now_ms: int) -> Reply:
        sequencer.submit(command, now_ms, replies.append)
        while (taken := sequencer.take_batch(COMMIT_FRAMES_MAX)) is not None:
            sequencer.on_durable(taken.expected_lsn + len(taken.frames))
        return replies[-1]

    do(c.CreateTopic("t", 1, f.TopicConfig(retry=RetryPolicy(1, 10))), 1)
    for number in range(20):
        do(produce(f"{number}".ljust(500, ".")), 1)
    do(c.Claim("t", "g", "w", 20, 1_000), 1)
    sequencer.room.free_bytes = 8_000  # enough for a sweep as such, not for twenty dead letters
    before = list(broker.snapshot())
    refused = do(c.Sweep((("group", 1, 1),)), 5_000)
    assert isinstance(refused, Rejected)
    assert refused.code is Code.DISK_FULL
    assert list(broker.snapshot()) == before
    sequencer.room.free_bytes = 1 << 30
    do(c.Sweep((("group", 1, 1),)), 5_000)
    assert store.end(2) == 20


def test_a_time_is_found_in_a_log_whose_last_segment_a_full_disk_left_empty():
    disk = SimDisk()
    disk.make_folder("t", "d")
    store = FileLogStore(disk, "d/logs", 300, store=bytes(16))
    batches = [stamp(packed(f"{number}".ljust(150, "."))[0], number, number) for number in range(3)]
    for number in range(2):
        store.append(1, number, 1, batches[number])
    disk.capacity_bytes = disk.used_bytes + 100  # room for a header, not for the batch after it
    store.append(1, 2, 1, batches[2])
    assert store.is_full()
    assert [store.offset_at(1, at_ms) for at_ms in (0, 1, 2, 3)] == [0, 1, 2, 3]
