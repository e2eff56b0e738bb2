"""The archiver: ships the journal of a running broker to its archive, and now and then a base, on threads of its own.

    committer ── append, sync ──▶ journal files ──▶ driftq-archiver ──▶ chunks      every `interval_ms`, or at 8 MiB
    checkpointer ─── fold ──────▶ snapshot, logs ─▶ driftq-bases ─────▶ bases       now and then, after a checkpoint

The event loop and the committer are not involved: the threads read files, and only what is durable. The loop asks
`status` for the metrics, `needed_lsn` before it trims the journal, and `wants_checkpoint` once a second.

    starting ──attach──▶ shipping ◀──▶ failing      the object store does not work: tried again, ever less often
        │                   └─────────▶ superseded  another broker took over: this one never writes again
        └─▶ waiting                                 another broker may be writing: until it is silent for SILENCE_S

**Mode "async"**: replies do not wait. If the machine is lost, so is what `lag_bytes` shows.
**Mode "sync"**: `SyncedJournal` lets an append return only when its chunk is stored, so replies and reads wait for the
archive, too. If the store is away, they wait; if another broker takes over, this one stops.

**A store that is away for long**: the journal is not trimmed, so that nothing is missing in the archive. When it has
grown to `backlog_bytes_max`, it is trimmed nevertheless: the broker continues, and the archive starts over with a base
when the store is back.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from driftq.engine.archive_bases import ArchiveOptions, BaseArchiver, Mode
from driftq.engine.archive_owner import is_ended, this_process
from driftq.storage.archive.bases import BaseCopy, FileGone, Inventory
from driftq.storage.archive.history import DamagedArchive
from driftq.storage.archive.manifest import BadManifest, Manifest, Owner
from driftq.storage.archive.object_store import ObjectStoreError
from driftq.storage.archive.writer import ArchiveWriter, ForeignArchive, OtherWriter, Superseded
from driftq.storage.corruption import CorruptJournal
from driftq.storage.journal import AppendUnknown

if TYPE_CHECKING:
    from driftq.engine.segment_mover import SegmentMover
    from driftq.storage.archive.object_store import ObjectStore
    from driftq.storage.archive.writer import CopiedJournal

logger = logging.getLogger("driftq.archive")

State = Literal["starting", "waiting", "shipping", "failing", "superseded"]

BEAT_S = 5.0
SILENCE_S = 12.0  # an owner that has not replaced the manifest for so long is gone
RETRY_MAX_S = 10.0
STOP_S = 10.0  # how long a stop waits for the archive
RETENTION_S = 600.0  # between two looks for what retention ends
BASES_POLL_S = 1.0  # between two looks for what bases and segments are due
NOT_NEEDED = 1 << 62
CLAIM_S = SILENCE_S + 10  # how long the start of a broker in mode "sync" waits for its archive


class ArchiveUnavailable(Exception):
    """Replies are to wait for an archive that cannot be claimed, so the broker does not start."""

    def __init__(self, reason: str) -> None:
        super().__init__(f'archive.mode is "sync", and the archive cannot be used: {reason}')


@dataclass(frozen=True, slots=True)
class ArchiveStatus:
    """How far an archive is."""

    url: str
    mode: Mode
    state: State
    generation: str
    shipped_lsn: int
    lag_ms: int
    lag_bytes: int
    base_lsn: int
    error: str  # why it is not shipping; "" while it is


class Archiver:
    """The archive of one engine. `copy_base` begins a base (see `engine.archive_bases`)."""

    def __init__(
        self,
        objects: ObjectStore,
        store: bytes,
        journal: CopiedJournal,
        newest_snapshot_lsn: Callable[[], int],
        copy_base: Callable[[str, int, int, Inventory | None, bool, str], BaseCopy],
        options: ArchiveOptions,
        segment_bytes: int,
        *,
        owner: Owner | None = None,
        on_failure: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self._objects = objects
        self._journal = journal
        self._options = options
        self.mode = options.mode
        self._segment_bytes = segment_bytes
        self.on_failure = on_failure  # called once, on a thread, when "sync" cannot be kept
        self._writer = ArchiveWriter(
            objects,
            store,
            journal,
            owner or this_process(),
            lambda: int(time.time() * 1_000),
            lambda: secrets.token_hex(4),
        )
        self._lock = threading.Lock()  # of the manifest: both threads replace it
        self._changed = threading.Condition()  # something was shipped, or the state changed
        self._wake = threading.Event()
        self._stop_at_s: float | None = None  # a stop has begun, and waits for the archive until then
        self._is_closing = False  # nothing is appended any more
        self._state: State = "starting"
        self._error = ""
        self._marks: deque[tuple[int, float]] = deque()  # (tail, a time before it became durable)
        self._looked_s = time.monotonic()
        self._beat_s = 0.0
        self._seen: tuple[int, float] | None = None  # another owner's beat, and when it was first seen
        self._bases = BaseArchiver(
            objects,
            self._writer,
            self._lock,
            journal,
            newest_snapshot_lsn,
            copy_base,
            options,
            lambda: self._stop_at_s is not None,
        )
        self.mover: SegmentMover | None = None  # moves segments to the archive's tier; between bases
        self._gave_up = False  # the journal was trimmed although the archive lacks it
        self._threads = [
            threading.Thread(target=self._run, name="driftq-archiver", daemon=True),
            threading.Thread(target=self._run_bases, name="driftq-bases", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Ship what is left, for up to `STOP_S`, and release the archive. Blocks."""
        self.begin_stop()
        self._is_closing = True
        self._wake.set()
        for thread in self._threads:
            thread.join()
        self._writer.close()

    def begin_stop(self) -> None:
        """From now on, nothing waits for the archive longer than `STOP_S`."""
        if self._stop_at_s is None:
            self._stop_at_s = time.monotonic() + STOP_S
            self._wake.set()

    # --- for the engine ---

    def status(self) -> ArchiveStatus:
        writer, tail_lsn = self._writer, self._journal.tail_lsn()
        lag_ms = 0
        if writer.shipped_lsn < tail_lsn:
            since_s = next((at_s for lsn, at_s in list(self._marks) if lsn > writer.shipped_lsn), self._looked_s)
            lag_ms = 1 + int((time.monotonic() - since_s) * 1_000)  # rounded up: it is a promise
        lag_bytes = writer.lag_bytes() if writer.generation else self._journal_bytes()
        return ArchiveStatus(
            self._objects.url,
            self._options.mode,
            self._state,
            writer.generation,
            writer.shipped_lsn,
            lag_ms,
            lag_bytes,
            self._bases.lsn,
            self._error,
        )

    def needed_lsn(self) -> int:
        """The journal is needed from this lsn on, and what frames after it trimmed in the log store."""
        if self._state == "superseded":
            return NOT_NEEDED
        if self._journal_bytes() > self._options.backlog_bytes_max:
            if not self._gave_up:
                self._gave_up = True
                logger.error(
                    "the archive is so far behind that the journal is trimmed without it: more than "
                    "archive.backlog_bytes_max (%d bytes) waited. It will start over with a base when it can: %s",
                    self._options.backlog_bytes_max, self._error or "the object store is too slow",
                )  # fmt: skip
            return NOT_NEEDED
        self._gave_up = False
        if not self._writer.generation:
            return 0
        pinned = self._bases.pinned_lsn
        shipped = self._writer.shipped_lsn
        return min(shipped, pinned if pinned is not None else shipped) + 1

    def wants_checkpoint(self) -> bool:
        """Whether a base is due that needs a newer snapshot."""
        return self._state == "shipping" and self._bases.is_due() and not self._bases.usable_snapshot()

    def wait_shipped(self, lsn: int) -> None:
        """Block until everything up to `lsn` is stored. Raises `AppendUnknown` if that will not happen any more."""
        self._wake.set()
        with self._changed:
            while self._writer.shipped_lsn < lsn:
                if self._state == "superseded" or self._is_over():
                    raise AppendUnknown(self._error or "the archive does not answer, and the broker stops")
                self._changed.wait(0.5)

    def wait_ready(self, lsn: int, timeout_s: float) -> str:
        """Block until the archive is claimed and has everything up to `lsn`; returns "" then, else the reason."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while not self._has(lsn):
                if self._state in ("failing", "superseded") or (
                    time.monotonic() >= deadline_s and not self._writer.generation
                ):
                    break
                self._changed.wait(0.1)
        return "" if self._has(lsn) else self._error or "the object store does not answer"

    def _has(self, lsn: int) -> bool:
        return bool(self._writer.generation) and self._writer.shipped_lsn >= lsn

    def _journal_bytes(self) -> int:
        return len(self._journal.segment_numbers()) * self._segment_bytes

    def _is_over(self) -> bool:
        return self._stop_at_s is not None and time.monotonic() >= self._stop_at_s

    # --- the thread that ships ---

    def _run(self) -> None:
        retry_s = 0.25
        while True:
            self._look()
            try:
                if not self._writer.generation:
                    with self._lock:
                        self._attach()
                self._ship_all()
                self._beat()
                self._set_state("shipping", "")
                retry_s = 0.25
                pause_s = self._options.interval_ms / 1_000
                if self._is_closing and self._writer.shipped_lsn >= self._journal.tail_lsn():
                    self._release()
                    return
            except Superseded as error:
                self._end(error)
                return
            except OtherWriter as error:
                self._set_state("waiting", str(error))
                pause_s = 1.0
            except (CorruptJournal, FileNotFoundError) as error:
                # Trimmed in the meantime, or damaged: find out what there is to continue with.
                self._set_state("failing", str(error))
                self._writer.generation = ""
                pause_s = retry_s = min(2 * retry_s, RETRY_MAX_S)
            except (ObjectStoreError, ForeignArchive, BadManifest, DamagedArchive, OSError) as error:
                self._set_state("failing", str(error))
                pause_s = retry_s = min(2 * retry_s, RETRY_MAX_S)
            if self._is_over() or (self._is_closing and self._state != "shipping"):
                return  # the next start ships the rest
            self._wake.wait(pause_s if self._stop_at_s is None else min(pause_s, 0.25))
            self._wake.clear()

    def _look(self) -> None:
        """Note how far the journal is now: what is new became durable after the last look."""
        tail_lsn, now_s = self._journal.tail_lsn(), time.monotonic()
        if not self._marks or tail_lsn > self._marks[-1][0]:
            self._marks.append((tail_lsn, self._looked_s))
        self._looked_s = now_s
        while len(self._marks) > 1 and self._marks[0][0] <= self._writer.shipped_lsn:
            self._marks.popleft()
        while len(self._marks) > 10_000:
            del self._marks[1]  # the oldest one gives the lag

    def _attach(self) -> None:
        self._writer.attach(is_gone=self._is_gone)
        self._bases.begin()
        logger.info(
            "archiving to %s, generation %s from lsn %d on",
            self._objects.url, self._writer.generation, self._writer.shipped_lsn + 1,
        )  # fmt: skip

    def _is_gone(self, manifest: Manifest) -> bool:
        """Whether the last owner has ended: its process is known to, or it is silent."""
        if is_ended(manifest.owner):
            return True
        now_s = time.monotonic()
        if self._seen is None or self._seen[0] != manifest.beat:
            self._seen = manifest.beat, now_s
        return now_s - self._seen[1] >= SILENCE_S

    def _ship_all(self) -> None:
        """Everything that waits. What becomes durable in the meantime is left for the next interval in mode "async", if
        it is less than a chunk: each object has a price, however small it is."""
        chunk_bytes, is_patient = self._options.chunk_bytes, self._options.mode == "async"
        while (run := self._writer.ship(chunk_bytes)) is not None:
            self._bases.bytes_since += len(run.data)
            with self._changed:
                self._changed.notify_all()
            self._look()
            if self._is_over() or time.monotonic() - self._beat_s > 2 * BEAT_S:
                return
            if is_patient and self._stop_at_s is None and self._writer.lag_bytes() < chunk_bytes:
                return

    def _beat(self) -> None:
        if time.monotonic() - self._beat_s >= BEAT_S:
            with self._lock:
                self._writer.beat()
            self._beat_s = time.monotonic()

    def _claim_again(self) -> None:
        """Show that the archive is still this writer's. Raises `Superseded` or `ObjectStoreError`."""
        with self._lock:
            self._writer.beat()

    def _release(self) -> None:
        with self._lock:
            self._writer.release()

    def _set_state(self, state: State, error: str) -> None:
        if (state, error) != (self._state, self._error):
            if error:
                logger.error("archive %s: %s", self._objects.url, error)
            elif self._state in ("failing", "waiting"):
                logger.warning("archive %s: shipping", self._objects.url)
        with self._changed:
            self._state, self._error = state, error
            self._changed.notify_all()

    def _end(self, error: Superseded) -> None:
        self._set_state("superseded", str(error))
        if self._options.mode == "sync":
            self.on_failure(error)

    # --- the thread that copies bases ---

    def _run_bases(self) -> None:
        pause_s, looked_s = BASES_POLL_S, time.monotonic()
        while self._stop_at_s is None and self._state != "superseded":
            time.sleep(pause_s)
            pause_s = BASES_POLL_S
            if self._state != "shipping":
                continue
            try:
                if self.mover is not None:
                    self.mover.move(self._bases.published, self._claim_again, lambda: self._stop_at_s is not None)
                is_new = self._bases.is_due() and self._bases.make()
                if is_new or time.monotonic() - looked_s >= RETENTION_S:
                    looked_s = time.monotonic()
                    self._bases.retain()
            except Superseded:
                return  # the other thread finds out, too
            except FileGone as error:
                logger.info("a base was given up, the next one needs less: %s is gone", error)
            except (ObjectStoreError, DamagedArchive, OSError) as error:
                logger.warning("archive %s: no base now: %s", self._objects.url, error)
                pause_s = RETRY_MAX_S
