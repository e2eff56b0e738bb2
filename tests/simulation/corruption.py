"""Corruption that software cannot prevent and must notice: flipped bits, and a device that lies about syncs.

Bits are flipped in copies of the disk, so that the run itself is not affected. A folder with a flipped bit is refused,
or it holds exactly what was written, or the read that meets the damage fails. Only blocks above the saved watermark may
be taken for a torn tail; that limit is documented.

A refused folder is then repaired: salvage must find every record, and truncation must leave exactly a prefix.

A lying device loses what it reported as synced. The next start must notice the loss of anything that the watermark or
a snapshot proves to have been durable; other losses cannot be noticed. The state that starts is always the fold of a
prefix.
"""

from __future__ import annotations

from random import Random

from driftq.core.broker import Broker
from driftq.core.model.facts import STAGING_LOG, Fact
from driftq.core.model.frames import decode
from driftq.engine import snapshot_store
from driftq.engine.folder_storage import Opened, open_folder
from driftq.repair import salvage, truncate
from driftq.repair.folder_reader import require_folder
from driftq.storage import snapshots
from driftq.storage.corruption import CorruptLog, Damaged, FormatTooNew
from driftq.wire.records import read_header
from tests.simulation.checks.restarts import NoChance, empty_broker
from tests.simulation.checks.violation import Violation, demand
from tests.simulation.world import FOLDER, World
from tests.support.simdisk import Fault, SimDisk

FLIPS_AT_ONCE = 12


class Expected:
    """The state that the frames of a run fold to, up to any lsn. With rising lsns each frame is folded once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._broker = empty_broker(world.swarm)
        self._lsn = 0
        self._images: dict[int, list[Fact]] = {}

    def forget(self) -> None:
        """The run continued, so the frames that were not durable may have changed."""
        self._images.clear()

    def snapshot(self, lsn: int) -> list[Fact]:
        facts = self._images.get(lsn)
        if facts is None:
            facts = self._images[lsn] = list(self._at(lsn).snapshot())
        return facts

    def _at(self, lsn: int) -> Broker:
        world, broker, first = self._world, self._broker, self._lsn
        if lsn == world.audit.lsn:
            return world.audit.restarts.shadow
        if lsn < first:
            broker, first = empty_broker(world.swarm), 0
        for frame in world.frames[first:lsn]:
            for fact in decode(frame):
                broker.apply(fact)
        if broker is self._broker:
            self._lsn = lsn
        return broker


def try_flips(world: World, chance: Random, expected: Expected) -> None:
    """Flip bits in copies of the disk as it is now, one copy for each."""
    expected.forget()
    for _ in range(FLIPS_AT_ONCE):
        disk = world.disk.copy(chance.randrange(1 << 30))
        disk.restart()
        disk.fault_counts.clear()
        folds = chance.random() < 0.5
        path, bit = _random_bit(disk, chance, "/journal/0" if folds else "")
        disk.flip(path, bit)
        world.faults.counts["flip"] += 1
        if folds:
            _fold(world, disk, f"bit {bit} of {path} flipped", expected)
        _judge(world, disk, f"bit {bit} of {path} flipped", "flips", expected)


def _random_bit(disk: SimDisk, chance: Random, part: str) -> tuple[str, int]:
    """A random bit, mostly one that was written. Every file is equally likely, regardless of its size."""
    files = {path: data for path, data in disk.files().items() if data and part in path}
    vital = [path for path in sorted(files) if "/logs/" not in path]
    path = chance.choice(vital if chance.random() < 0.5 else sorted(files))
    used = len(files[path].rstrip(b"\0")) or 1
    size = used if chance.random() < 0.9 else len(files[path])
    return path, chance.randrange(8 * size)


def _fold(world: World, disk: SimDisk, what: str, expected: Expected) -> None:
    """A checkpoint over damage must fail or be right: the journal below it is trimmed afterwards."""
    opened = world.opened
    lsn = opened.journal.closed_lsn()
    if not lsn:
        return
    try:
        snapshot_store.fold(disk, opened.folder, lsn)
        newest = snapshots.load_newest(disk, opened.folder.snapshots, opened.folder.store).snapshot
    except (Damaged, FormatTooNew):
        world.counts["folds refused"] += 1
        return
    if newest is None or newest.lsn != lsn:
        return
    facts = [fact for frame in snapshots.read_frames(disk, newest, opened.folder.store) for fact in decode(frame)]
    demand(facts == expected.snapshot(lsn), "flips", f"{what}: a checkpoint over damage is wrong")
    world.counts["folds right"] += 1


def begin_lying(world: World) -> None:
    """From now on the device reports syncs of journal segments without doing them."""

    def on_call(label: str) -> Fault | None:
        world.disk.lie = label == "journal.sync"
        if world.disk.lie:
            world.faults.counts["lie"] += 1
        return None

    world.disk.on_call = on_call


def end_lying(world: World, keep: str) -> None:
    """Cut the power. `keep` is what is left of what was not synced."""
    world.disk.lie = False
    world.disk.crash(keep)
    _judge(world, world.disk, "the device lied", "lies", Expected(world))


def _judge(world: World, disk: SimDisk, what: str, kind: str, expected: Expected) -> None:
    try:
        opened = open_folder(disk, FOLDER, bytes(16), world.swarm.limits, NoChance(), world.swarm.options)
    except (Damaged, FormatTooNew):
        world.counts[f"{kind} refused" if kind == "flips" else "lies noticed"] += 1
        if kind == "flips":
            _repair(world, disk, what, expected)
        return
    except Exception as error:
        raise Violation(kind, f"{what}: the start failed with {type(error).__name__}: {error}") from error
    tail = opened.journal.tail_lsn()
    known_lsn = max(world.audit.watermark_lsn, opened.report.snapshot_lsn)
    demand(tail >= known_lsn, kind, f"{what}: the journal ends at {tail} though {known_lsn} was known to be durable")
    demand(tail <= len(world.frames), kind, f"{what}: {tail} frames, more than were written")
    for lsn in range(world.audit.lsn + 1, tail + 1):  # stored, and not acknowledged yet
        world.audit.frame(lsn, decode(world.frames[lsn - 1]), world.op_at[lsn])
    same = list(opened.broker.snapshot()) == expected.snapshot(tail)
    demand(same, kind, f"{what}: another state was started")
    unread = _unreadable(world, opened, what, kind)
    if kind == "lies":
        world.counts["lies unnoticeable" if tail < world.durable_lsn else "lies harmless"] += 1
    elif unread:
        world.counts["flips found by a read"] += 1
    else:
        world.counts["flips in the open tail" if tail < world.durable_lsn else "flips harmless"] += 1


def _repair(world: World, disk: SimDisk, what: str, expected: Expected) -> None:
    """A refused folder, repaired: salvage finds every record, and truncation leaves exactly a prefix that opens."""
    try:
        folder = require_folder(disk, FOLDER)
        plan = truncate.plan(disk, FOLDER)
    except (Damaged, FormatTooNew):
        world.counts["flips beyond repair"] += 1
        return
    readable = salvage.ReadableRecords(disk, folder)
    if len(world.frames) == world.audit.lsn:  # otherwise a log may be deleted by a frame that the audit has not seen
        for log_id, log in world.audit.ledger.logs.items():
            if log_id != STAGING_LOG and log.start < log.end:
                batches = _without_times([batch for _, batch in readable.batches(log_id)])
                kept = _without_times(log.covering(log.start, log.end))
                readable_kept = [batch for batch in kept if batch in batches]
                # A staged batch that was published after the snapshot may have no other copy than the damaged one.
                lost_max = 1 if "/logs/" in what else 0
                same = batches[-len(readable_kept) :] == readable_kept and len(kept) - len(readable_kept) <= lost_max
                demand(same, "flips", f"{what}: salvage does not find every record of log {log_id}")
        world.counts["flips salvaged"] += 1
    readable.close()
    if not plan.is_needed:
        return
    truncate.execute(disk, plan)
    opened = open_folder(disk, FOLDER, bytes(16), world.swarm.limits, NoChance(), world.swarm.options)
    demand(opened.journal.tail_lsn() == plan.kept_lsn, "flips", f"{what}: truncated to another lsn than planned")
    same = list(opened.broker.snapshot()) == expected.snapshot(plan.kept_lsn)
    demand(same, "flips", f"{what}: the truncated journal folds to another state than its prefix")
    if plan.damage is not None and plan.damage.first_lsn <= plan.kept_lsn:
        demand(plan.kept_lsn >= world.audit.watermark_lsn, "flips", f"{what}: more than the damage was cut")
    _unreadable(world, opened, what, "flips")
    world.counts["flips truncated"] += 1


def _unreadable(world: World, opened: Opened, what: str, kind: str) -> bool:
    """Read every log from its start: exact bytes, or an error that reports the damage."""
    found_damage = False
    for log_id, known in opened.broker.state.logs.items():
        offset, log = known.start, world.audit.ledger.logs.get(log_id)
        if log is None:
            continue  # its deletion was in the lost tail
        while offset < known.end:
            try:
                batches = opened.store.read(log_id, offset, known.end, 1 << 40)
            except CorruptLog:
                found_damage = True
                break
            expected = log.covering(offset, known.end)[: len(batches)]
            if batches != expected and _without_times(batches) == _without_times(expected):
                world.counts["flips in a time stamp"] += 1  # no checksum covers it until an index does
                expected = batches
            demand(batches and batches == expected, kind, f"{what}: log {log_id} reads wrong bytes after {offset}")
            offset = read_header(batches[-1]).end_offset
    return found_damage


def _without_times(batches: list[bytes]) -> list[tuple[bytes, bytes]]:
    return [(batch[:16], batch[24:]) for batch in batches]
