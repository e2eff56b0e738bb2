"""When an archive gets a base, and what retention deletes: the work of the thread `driftq-bases`.

A base is due when enough of the journal was shipped since the last one, or enough time has passed: a restore replays
what came after it. It is made of a local snapshot at the end of a journal segment, because the copy of a journal begins
there. While one is made, the log store keeps its files (`pinned_lsn`).
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from driftq.storage.archive.bases import BaseCopy, Inventory, load_inventory
from driftq.storage.archive.manifest import bases_of
from driftq.storage.archive.retention import delete_unneeded, retire

if TYPE_CHECKING:
    from driftq.storage.archive.manifest import Base
    from driftq.storage.archive.object_store import ObjectStore
    from driftq.storage.archive.writer import ArchiveWriter, CopiedJournal

logger = logging.getLogger("driftq.archive")

Mode = Literal["async", "sync"]
SHIPPED_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """How an archive is written."""

    mode: Mode = "async"
    interval_ms: int = 250
    chunk_bytes: int = 8 << 20  # what is shipped before the interval is over
    base_bytes: int = 256 << 20  # of the journal, until the next base
    base_ms: int = 3_600_000  # the same as a time
    retain_ms: int = 7 * 86_400_000
    backlog_bytes_max: int = 16 << 30


class BaseArchiver:
    """The bases of one archiver. `copy_base(generation, lsn, segment, previous, same_process, token)` begins one."""

    def __init__(
        self,
        objects: ObjectStore,
        writer: ArchiveWriter,
        lock: threading.Lock,
        journal: CopiedJournal,
        newest_snapshot_lsn: Callable[[], int],
        copy_base: Callable[[str, int, int, Inventory | None, bool, str], BaseCopy],
        options: ArchiveOptions,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._objects = objects
        self._writer = writer
        self._lock = lock  # of the manifest
        self._journal = journal
        self._newest_snapshot_lsn = newest_snapshot_lsn
        self._copy_base = copy_base
        self._options = options
        self._is_stopping = is_stopping
        self._at_s = time.monotonic()  # when the last base was made
        self._inventory: Inventory | None = None  # of the last one that this process made
        self._published: tuple[Base | None, Inventory | None] = None, None  # as read from the archive
        self.lsn = 0  # of the last base; 0: none
        self.bytes_since = 0  # of the journal, shipped since then
        self.pinned_lsn: int | None = None  # of the one that is being made

    def published(self) -> Inventory | None:
        """What the last base has. Raises `DamagedArchive` or `ObjectStoreError`."""
        if self._inventory is not None:
            return self._inventory
        base = self._last_base()
        if base is not None and self._published[0] != base:
            self._published = base, self._last_inventory()
        return self._published[1] if base is not None else None

    def begin(self) -> None:
        """The writer has claimed a generation."""
        base = self._last_base()
        self.lsn = base.lsn if base is not None else 0
        self._at_s, self._inventory = time.monotonic(), None

    def is_due(self) -> bool:
        manifest = self._writer.present
        if manifest is None or self._journal.tail_lsn() <= self.lsn:
            return False
        if not self.lsn and manifest.generations[-1].first_lsn > 1 and not manifest.generations[-1].parent:
            return True  # without one, nothing of this history can be restored
        is_old = time.monotonic() - self._at_s >= self._options.base_ms / 1_000
        return is_old or self.bytes_since >= self._options.base_bytes

    def usable_snapshot(self) -> int:
        """The lsn of a snapshot that a base can be made of; 0 if there is none."""
        lsn = self._newest_snapshot_lsn()
        is_shipped = self.lsn < lsn <= self._writer.shipped_lsn
        return lsn if is_shipped and lsn + 1 in self._journal.segment_numbers() else 0

    def make(self) -> bool:
        """Make a base if there is a snapshot for it. Raises `FileGone`, `DamagedArchive`, `ObjectStoreError`,
        `Superseded`."""
        self.pinned_lsn = self.usable_snapshot() or None
        if self.pinned_lsn is None:
            return False
        try:
            return self._make(self.pinned_lsn)
        finally:
            self.pinned_lsn = None

    def _make(self, lsn: int) -> bool:
        began_s, bytes_before = time.monotonic(), self.bytes_since
        previous = self._inventory or self._last_inventory()
        is_own = self._inventory is not None
        segment = self._journal.segment_numbers()[lsn + 1]
        copy = self._copy_base(self._writer.generation, lsn, segment, previous, is_own, secrets.token_hex(4))
        inventory = copy.run(self._is_stopping)
        if inventory is None:
            return False
        base = copy.save(inventory, self._journal.tail_lsn(), int(time.time() * 1_000))
        while self._writer.shipped_lsn < base.valid_lsn:
            if self._is_stopping():
                return False
            time.sleep(SHIPPED_POLL_S)  # the other thread ships
        with self._lock:
            self._writer.publish(base)
        self._inventory, self.lsn, self._at_s = inventory, lsn, time.monotonic()
        self.bytes_since -= bytes_before
        logger.info(
            "archived a base at lsn %d: %d bytes, %d of them new, in %.1f s",
            lsn, base.size_bytes, copy.shipped_bytes, time.monotonic() - began_s,
        )  # fmt: skip
        return True

    def _last_base(self) -> Base | None:
        manifest = self._writer.present
        return next(bases_of(manifest, manifest.head), None) if manifest is not None else None

    def _last_inventory(self) -> Inventory | None:
        """Of the last base of this history, which another process made."""
        base = self._last_base()
        return load_inventory(self._objects, base) if base is not None and not self._writer.is_branch else None

    def retain(self) -> None:
        """Delete what retention has ended: first out of the manifest, then the objects. Raises `Superseded`,
        `DamagedArchive` or `ObjectStoreError`."""
        with self._lock:
            kept = retire(self._writer, int(time.time() * 1_000) - self._options.retain_ms)
        if count := delete_unneeded(self._objects, kept):
            logger.info("archive: %d objects deleted, its history begins at lsn %d", count, kept.first_lsn)
