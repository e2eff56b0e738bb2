"""A simulated broker with an archive: every seed ships, crashes, restores and is taken over, under faults of the object
store.

Checked at any time: what can be restored is exactly the history up to the point that was shipped, at least, and nothing
that is not durable; every earlier point, too. In mode "sync" nothing that was acknowledged is missing. At the end the
machine is lost for some: a copy that is restored elsewhere takes the archive over, while the old broker, not knowing
it, continues to write.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from random import Random

from driftq.core.broker import Broker
from driftq.core.model import commands as c
from driftq.core.model.frames import decode
from driftq.engine.folder_storage import Opened, open_folder
from driftq.engine.projection import StoreReader, project
from driftq.engine.sequencer import Sequencer
from driftq.repair.restore import RestorePoint, restore
from driftq.storage.archive.bases import BaseCopy, FileGone, Inventory
from driftq.storage.archive.history import load_manifest
from driftq.storage.archive.manifest import Manifest, Owner, bases_of
from driftq.storage.archive.object_store import MemoryObjects, ObjectStoreError
from driftq.storage.archive.writer import ArchiveWriter, Superseded
from driftq.storage.log_store import MemoryLogStore
from tests.simulation.checks.restarts import NoChance
from tests.simulation.checks.violation import Violation, demand
from tests.simulation.run import Result, perform
from tests.simulation.swarm import Swarm, draw
from tests.simulation.tiers import RETAIN_MS, Tier
from tests.simulation.trace import Trace
from tests.simulation.world import FOLDER, World
from tests.support.faulty_objects import FaultyObjects
from tests.support.simdisk import Crash, SimDisk

CHUNK_BYTES = 2_000
OPERATIONS = 800
HEALED_OPERATIONS = 600
LAST_OPERATIONS = 200
LATE_FRAMES = 20  # after a snapshot


class ArchiveDisk(SimDisk):
    """A disk that lets another thread run just before the journal is synced."""

    before_sync = staticmethod(lambda: None)

    def enter(self, label: str):
        if label == "journal.sync":
            self.before_sync()
        return super().enter(label)


class ArchivedWorld(World):
    """A world whose broker has an archive."""

    def __init__(self, swarm: Swarm, trace: Trace) -> None:
        super().__init__(swarm, trace)
        self.disk = ArchiveDisk(swarm.seed)
        self.disk.make_folder("world", FOLDER)
        self.disk.sync_folder("world", "")
        self.disk.before_sync = self._ship_before_sync
        chance = Random(f"archive {swarm.seed}")
        self.archive_random = chance
        self.is_synced = chance.random() < 0.3
        self.objects = FaultyObjects(MemoryObjects(), swarm.seed, chance.choice((0.0, 0.1, 0.3)))
        self.writer: ArchiveWriter | None = None
        self.makes_late_bases = has_late_bases(swarm.seed)
        self.processes = 0
        self.shipped_lsn = 0  # everything up to here was stored, as far as the writer knows
        self.inventory: Inventory | None = None
        self.copies = 0
        self.moved_records: dict[tuple[int, int, int], list[bytes]] = {}  # what was read before a segment left the disk

    def _begin(self, opened: Opened) -> None:
        self.processes += 1
        self.tier = Tier(self, opened, self.swarm.seed)
        self.tier.check_start()
        super()._begin(opened)
        self.inventory = None
        owner = Owner("simulated", self.processes, "", "")
        self.writer = ArchiveWriter(
            self.objects, opened.folder.store, opened.journal, owner, lambda: self.now_ms, self._token
        )
        if self.is_synced:
            append = opened.journal.append

            def append_and_ship(expected_lsn: int, frames: Sequence[bytes]) -> int:
                lsn = append(expected_lsn, frames)
                while self.writer.shipped_lsn < lsn:
                    if self.faults.enabled and self.archive_random.random() < 0.002:
                        raise Crash("while an append waits for the archive")
                    self._try(self._ship)
                return lsn

            opened.journal.append = append_and_ship  # type: ignore[method-assign]
            while self.writer.shipped_lsn < opened.journal.tail_lsn() or not self.writer.generation:
                self._try(self._ship)  # before anything is served

    def _token(self) -> str:
        return f"{self.archive_random.getrandbits(32):08x}"

    def kept_lsn(self) -> int:
        assert self.writer is not None
        return self.writer.shipped_lsn + 1 if self.writer.generation else 0

    # --- steps ---

    def work(self) -> None:
        super().work()
        roll = self.archive_random.random()
        if roll < 0.2:
            self._try(self._ship)
        elif roll < 0.22:
            self._try(self._beat)
        elif roll < 0.3:
            errors = self.counts["object store errors"]
            if self.faults.enabled and self.makes_late_bases:
                self._base_with_late_segments()
            else:
                self._try(self._base)
            if self.counts["object store errors"] > errors and self.archive_random.random() < 0.5:
                self._try(self._retain)  # it must not delete what was published although the reply was lost
        elif roll < 0.304:
            self.check_restore()
        elif roll < 0.55:
            self._try(self._move)
        elif roll < 0.555:
            self._try(self._retain)

    def _try(self, step) -> None:
        try:
            step()
        except ObjectStoreError:
            self.counts["object store errors"] += 1
        except FileGone:
            self.counts["bases given up"] += 1
        except Superseded as error:
            raise Violation("archive", f"a writer that is alone was replaced: {error}") from error

    def _attached(self) -> bool:
        assert self.writer is not None
        if self.writer.generation:
            return True
        self.writer.attach(is_gone=lambda manifest: True)
        self.counts["generations"] += 1
        # One that begins in the middle has to make a base first; here the first process begins at lsn 1.
        demand(not self.writer.is_branch or self.counts["generations"] == 1, "archive",
               f"the archive has what the journal has not: {self.writer.shipped_lsn}")  # fmt: skip
        return True

    def _ship(self) -> None:
        if self._attached():
            run = self.writer.ship(CHUNK_BYTES)
            if run is not None:
                self.shipped_lsn = max(self.shipped_lsn, run.last_lsn)
                self.counts["chunks"] += 1

    def _ship_before_sync(self) -> None:
        """The thread that ships may run between the write of a block and its sync."""
        if self.writer is not None and self.writer.generation and self.archive_random.random() < 0.2:
            self._try(self._ship)

    def _beat(self) -> None:
        if self._attached():
            self.writer.beat()

    def _move(self) -> None:
        """Not where copies of the disk are read and repaired: the archive is no part of them."""
        if self.swarm.kind not in ("flips", "lies") and self._attached():
            self.tier.advance(self.inventory, self.writer)
            self.tier.check()

    def _base_with_late_segments(self) -> None:
        """A base of a snapshot that is not new any more has segments that were closed after it. If one of them left the
        disk now, and the process died before the next checkpoint, the next one would start in the middle of it."""
        if self.checkpoint.snapshot_lsn + LATE_FRAMES > self.opened.journal.tail_lsn():
            return
        bases = self.counts["bases"]
        self._try(self._base)
        if self.counts["bases"] > bases:
            self.move_all()
            self.die("before a checkpoint, after segments left the disk")

    def _retain(self) -> None:
        if self._attached():
            self.tier.finish()
            self.tier.retain(self.writer)

    def _base(self) -> None:
        if not self._attached():
            return
        self.tier.finish()
        opened, writer = self.opened, self.writer
        lsn = self.checkpoint.snapshot_lsn
        newest = max((base.lsn for base in writer.present.bases), default=0)
        if not newest < lsn <= writer.shipped_lsn or lsn + 1 not in opened.journal.segment_numbers():
            return
        same = self.inventory is not None
        segment = opened.journal.segment_numbers()[lsn + 1]
        copy = BaseCopy(
            self.objects, self.disk, opened.folder, writer.generation, lsn, segment, self.inventory, same_process=same,
            token=self._token(),
        )  # fmt: skip
        inventory = copy.run()
        valid_lsn = opened.journal.tail_lsn()
        base = copy.save(inventory, valid_lsn, self.now_ms)
        while writer.shipped_lsn < valid_lsn:
            self._ship()
        writer.publish(base)
        self.inventory = inventory
        self.counts["bases"] += 1

    def end_two_generations(self) -> None:
        """Two processes that make no base, and then retention: the history goes through what they wrote, or did not
        write."""
        for _ in range(2):
            self.die("before it makes a base")
            for _ in range(100):
                self._try(self._attached)
        self.now_ms += 2 * RETAIN_MS
        for _ in range(10):
            self._try(self._retain)

    def move_all(self) -> None:
        """Until everything has left the disk that may."""
        moved = -1
        while self.counts["segments moved"] > moved:
            moved = self.counts["segments moved"]
            for _ in range(100):
                self._try(self._move)

    def make_base(self) -> None:
        """One that has everything, if the journal can close its segment."""
        count = self.counts["bases"]
        self.opened.journal.close_segment()
        for _ in range(100):
            self.checkpoint.advance(self)
            self._try(self._ship)
            self._try(self._base)
            if self.counts["bases"] > count:
                return

    # --- checks ---

    def check_restore(self) -> None:
        """Restore the newest point and an earlier one, and compare with what was written."""
        try:
            manifest = load_manifest(self.objects.inner)
        except Exception:
            return  # nothing was archived yet
        tail = self._check(RestorePoint(), self.frames)
        least = self.durable_lsn if self.is_synced else self.shipped_lsn
        demand(tail >= least, "archive", f"lsn {tail} was restored, {least} was promised")
        demand(tail <= self.promised_lsn, "archive", f"lsn {tail} was restored; durable is {self.promised_lsn}")
        first_lsn = _first_point(manifest)
        if tail > first_lsn:
            self._check(RestorePoint(lsn=self.archive_random.randrange(first_lsn, tail)), self.frames)
        self.counts["restores compared"] += 1

    def _check(self, target: RestorePoint, frames: list[bytes]) -> int:
        opened = self._restored(target)
        tail = opened.journal.tail_lsn()
        demand(tail <= len(frames), "archive", f"lsn {tail} was restored; there are {len(frames)} frames")
        base = opened.report.snapshot_lsn
        stored = [frame for _, frame in opened.journal.replay(base)]
        demand(stored == frames[base:tail], "archive", f"the journal after lsn {base} is not what was written")
        expected_store = MemoryLogStore()
        expected = Broker(self.swarm.limits, StoreReader(expected_store), NoChance())
        for frame in frames[:tail]:
            facts = decode(frame)
            for fact in facts:
                expected.apply(fact)
            project(expected_store, facts)
        demand(list(opened.broker.snapshot()) == list(expected.snapshot()), "archive", f"the state at {tail} differs")
        for log_id, log in expected.state.logs.items():
            one = opened.store.read(log_id, log.start, log.end, 1 << 40)
            other = expected_store.read(log_id, log.start, log.end, 1 << 40)
            demand(one == other, "archive", f"log {log_id} differs at lsn {tail}")
        self.counts["restored from a base"] += base > 0
        return tail

    def _restored(self, target: RestorePoint) -> Opened:
        self.copies += 1
        disk = SimDisk(self.swarm.seed + self.copies)
        disk.make_folder("world", FOLDER)
        report = restore(self.objects.behind(self.copies), disk, FOLDER, target, threads=0)
        demand(report.gap is None, "archive", f"there is a gap: {report.gap}")
        demand(not report.damaged, "archive", f"a base is damaged: {report.damaged}")
        return open_folder(disk, FOLDER, bytes(16), self.swarm.limits, self.chance, self.swarm.options)

    def take_over(self) -> None:
        """A copy is restored elsewhere and takes the archive over; the old broker does not know."""
        while self.writer.shipped_lsn < self.promised_lsn:
            self._try(self._ship)
        self.disk.before_sync = lambda: None
        target = RestorePoint()
        first_lsn = _first_point(load_manifest(self.objects.inner))
        if self.archive_random.random() < 0.5 and first_lsn < self.promised_lsn:
            target = RestorePoint(lsn=self.archive_random.randrange(first_lsn, self.promised_lsn))
        opened = self._restored(target)
        frames = self.frames[: opened.journal.tail_lsn()]
        owner = Owner("elsewhere", 1, "", "")
        other = ArchiveWriter(
            self.objects.inner, opened.folder.store, opened.journal, owner, lambda: self.now_ms, self._token
        )
        other.attach(is_gone=lambda manifest: True)
        self._old_broker_continues()
        for number in range(3):
            frames += _create_topic(opened, f"elsewhere{number}", self.now_ms)
            while other.ship(CHUNK_BYTES) is not None:
                pass
            self._old_broker_continues()
            other.beat()
        tail = self._check(RestorePoint(), frames)
        demand(tail == len(frames), "archive", f"{tail} of {len(frames)} frames of the new broker are there")
        self.counts["taken over"] += 1

    def _old_broker_continues(self) -> None:
        """What it decides after the takeover may be durable on its disk, but must not get into the history."""
        journal = self.opened.journal
        lsn = journal.tail_lsn()
        type(journal).append(journal, lsn, [b"a frame that the old broker decided"])
        refused = 0
        for step in (lambda: self.writer.ship(CHUNK_BYTES), self.writer.beat):
            try:
                step()
            except Superseded:
                refused += 1
        demand(refused == 2, "archive", "a broker that was replaced could still write to the archive")
        self.counts["zombies refused"] += 1


def _first_point(manifest: Manifest) -> int:
    """The first lsn that can be restored: retention removes what came before."""
    if manifest.first_lsn == 1:
        return 1
    return min(base.valid_lsn for base in bases_of(manifest, manifest.head))


def _create_topic(opened: Opened, name: str, now_ms: int) -> list[bytes]:
    room = opened.options.journal_room(opened.journal.room_bytes())
    sequencer = Sequencer(opened.broker, opened.store, opened.journal.tail_lsn(), room)
    sequencer.submit(c.CreateTopic(name), now_ms, lambda reply: None)
    batch = sequencer.take_batch(100)
    assert batch is not None
    opened.journal.append(batch.expected_lsn, batch.frames)
    sequencer.on_durable(opened.journal.tail_lsn())
    return batch.frames


def has_late_bases(seed: int) -> bool:
    """Whether bases of this seed are made late, of logs with many segments."""
    return seed % 4 == 2  # none of those whose disks lie or lose bits: their segments stay


def run_archive_seed(seed: int, operations: int = OPERATIONS) -> Result:
    """One seed, whole."""
    swarm = draw(seed, operations)
    if has_late_bases(seed):
        options = dataclasses.replace(swarm.options, log_segment_bytes=600, share_bytes=0)
        swarm = dataclasses.replace(swarm, options=options)
    result = Result(seed, swarm.kind)
    world = ArchivedWorld(swarm, Trace(None))
    try:
        world.start()
        cast = perform(world)
        world.heal()
        world.die("the last kill before healing")
        cast.act(world.operations + HEALED_OPERATIONS)  # one process that makes several bases
        world.commit_all()
        world.check_restore()
        world.move_all()
        cast.act(world.operations + LAST_OPERATIONS)
        world.commit_all()
        world.make_base()  # of what is here and of what is not
        world.end_two_generations()
        world.check_restore()
        world.objects.chance = 0.0
        world.take_over()
    except Violation as violation:
        result.error, result.promise = str(violation), violation.promise
    result.counts = world.counts + world.objects.counts
    result.operations = world.operations
    return result
