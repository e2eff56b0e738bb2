"""The archive's tier in the simulation: segments leave the disk step by step, and what left it is read from objects
that fail, are late, or have other bytes.

A move is the order of `engine.segment_mover`, with other work and crashes between its steps. A cold read waits for its
objects on the spot: every reader of the store meets it, the decisions of the core, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, TypeVar

from driftq.engine.folder_storage import Opened
from driftq.engine.segment_mover import KEPT_HERE
from driftq.storage import tiers as moves
from driftq.storage.archive import retention  # by module, so that planted bugs replace its functions
from driftq.storage.archive.object_store import ObjectMissing, ObjectStoreError
from driftq.storage.cold_segments import SUFFIX, ColdRange, decode_place
from driftq.storage.data_folder import TIERED_VERSION, finish_folder
from driftq.storage.disk import DiskFailed, DiskFull
from driftq.storage.tiers import TierLimits, WrongObject
from driftq.wire.records import read_header
from tests.simulation.checks.violation import Violation, demand

if TYPE_CHECKING:
    from collections.abc import Callable

    from driftq.storage.archive.bases import Inventory
    from driftq.storage.archive.object_store import ObjectStore
    from driftq.storage.archive.writer import ArchiveWriter
    from tests.simulation.archive import ArchivedWorld

T = TypeVar("T")
EVERYTHING = TierLimits(local_bytes=1)
TRIES = 200
RETAIN_MS = 2_000


class FlippedObjects:
    """An object store whose ranges sometimes have another byte: a bad disk there, or another object of this name."""

    def __init__(self, inner: ObjectStore, chance: Random) -> None:
        self.url = inner.url
        self._inner = inner
        self._chance = chance

    def get_range(self, key: str, position: int, size: int) -> bytes:
        data = self._inner.get_range(key, position, size)
        if data and self._chance.random() < 0.05:
            at = self._chance.randrange(len(data))
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        return data


class Tier:
    """The tier of one process's folder."""

    def __init__(self, world: ArchivedWorld, opened: Opened, seed: int) -> None:
        self._world = world
        self._opened = opened
        self._chance = Random(f"tier {seed} {world.processes}")
        self._objects = FlippedObjects(world.objects, self._chance)
        self._move: Iterator[None] | None = None
        self._read, self._offset_at = opened.store.read, opened.store.offset_at
        opened.store.read = self.read  # type: ignore[method-assign]
        opened.store.offset_at = self.offset_at  # type: ignore[method-assign]

    def check_start(self) -> None:
        """The replay has appended again what is above the snapshot. So nothing of that may be only in the archive: the
        log would have it twice."""
        disk, folder, store = self._opened.disk, self._opened.folder, self._opened.store
        for log_id, log in store._logs.items():
            path = f"{folder.logs}/{log_id}"
            names = disk.list(path)
            for name in names:
                if not name.endswith(SUFFIX) or name.replace(SUFFIX, ".log") in names:
                    continue
                file = disk.open(f"{path}/{name}")
                place = decode_place(file.read_at(0, file.size()))
                demand(place is not None, "tier", f"{path}/{name} is damaged")
                is_old = place.end_offset <= log.replayed_from
                demand(
                    is_old,
                    "tier",
                    f"log {log_id}: {name} ends at {place.end_offset}; replayed from {log.replayed_from}",
                )

    # --- reads ---

    def read(self, log_id: int, offset: int, end_offset: int, max_bytes: int) -> list[bytes]:
        """As much as if all of it were here, as `Engine.read_cold` does it."""
        batches = self._when_here(lambda: self._read(log_id, offset, end_offset, max_bytes))
        end_offset = min(end_offset, self._opened.store.end(log_id))
        while batches and (first := read_header(batches[-1]).end_offset) < end_offset:
            left_bytes = max_bytes - sum(map(len, batches))
            more = self._when_here(lambda: self._read(log_id, first, end_offset, max(1, left_bytes)))  # noqa: B023
            if not more or len(more[0]) > left_bytes:
                break
            batches += more
        return batches

    def offset_at(self, log_id: int, at_ms: int) -> int:
        return self._when_here(lambda: self._offset_at(log_id, at_ms))

    def _when_here(self, read: Callable[[], T]) -> T:
        for _ in range(TRIES):
            try:
                return read()
            except ColdRange as cold:
                for window in cold.windows():
                    self._fetch(window)
        raise Violation("tier", "a cold read does not end")

    def _fetch(self, window) -> None:
        for _ in range(TRIES):
            try:
                batches = moves.fetch_window(self._objects, window)
            except ObjectStoreError:
                self._world.counts["cold reads failed"] += 1
            except WrongObject:
                self._world.counts["wrong objects refused"] += 1
            except ObjectMissing as error:
                raise Violation("tier", f"records are nowhere: {error} is missing in the archive") from error
            else:
                self._opened.store.tiers.keep(window, batches)
                self._world.counts["cold reads"] += 1
                return
        raise Violation("tier", "an object cannot be read")

    def check(self) -> None:
        """What left the disk reads as it did before; what retention has ended is not served, from no cache either."""
        known = self._world.moved_records
        if known:
            log_id, first, end = self._chance.choice(list(known))
            log = self._opened.broker.state.logs.get(log_id)
            if log is None or log.start > first:
                del known[log_id, first, end]
            else:
                is_same = self.read(log_id, first, end, 1 << 40) == known[log_id, first, end]
                demand(is_same, "tier", f"log {log_id} differs between {first} and {end}")
        for log_id, log in list(self._opened.broker.state.logs.items()):
            if 0 < log.start <= self._opened.store.end(log_id) and log.start == self._stored_start(log_id):
                demand(not self._read(log_id, 0, log.start, 1), "tier", f"log {log_id} is read below {log.start}")

    def _stored_start(self, log_id: int) -> int:
        stored = self._opened.store._find(log_id)
        return stored.start if stored is not None else -1

    # --- moves ---

    def advance(self, inventory: Inventory | None, writer: ArchiveWriter) -> None:
        """The next step of a move. The thread that moves makes the bases, too: there is none while one is made."""
        if self._move is None and inventory is not None:
            self._move = self._steps(inventory, writer)
        if self._move is not None and next(self._move, self) is self:
            self._move = None

    def finish(self) -> None:
        """Before anything else that this thread does."""
        while self._move is not None:
            self.advance(None, None)  # type: ignore[arg-type]

    def _steps(self, inventory: Inventory, writer: ArchiveWriter) -> Iterator[None]:
        opened, tiers = self._opened, self._opened.store.tiers
        skipped: set[str] = set()
        for _ in range(3):
            candidate = tiers.next_candidate(EVERYTHING, self._world.now_ms, KEPT_HERE, skipped)
            if candidate is None:
                return
            skipped.add(candidate.path)
            yield
            try:
                place = moves.verified_place(
                    opened.disk, self._objects, opened.folder.store, opened.folder.path, candidate, inventory
                )  # type: ignore[arg-type]
                writer.beat()
            except (ObjectStoreError, WrongObject, FileNotFoundError):
                self._world.counts["moves given up"] += 1
                return
            if place is None:
                continue
            yield
            try:
                if opened.folder.version < TIERED_VERSION:
                    finish_folder(opened.disk, opened.folder, TIERED_VERSION)
                if not tiers.begin(candidate):
                    continue
                yield
                records = self._read(candidate.log_id, place.first_offset, place.end_offset, 1 << 40)
                moves.write_tier(opened.disk, candidate, place)
                yield
                tiers.finish(candidate, place)
                if records and records[0]:
                    self._world.moved_records[candidate.log_id, place.first_offset, place.end_offset] = records
                yield
                moves.delete_file(opened.disk, candidate)
                self._world.counts["segments moved"] += 1
            except (DiskFull, DiskFailed):
                self._world.counts["moves failed"] += 1
            tiers.end()

    # --- retention ---

    def retain(self, writer: ArchiveWriter) -> None:
        """What `BaseArchiver.retain` does."""
        kept = retention.retire(writer, self._world.now_ms - RETAIN_MS)
        self._world.counts["objects deleted"] += retention.delete_unneeded(self._world.objects, kept)
