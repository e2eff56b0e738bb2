"""Moves closed segments to the archive's tier, one after the other, on the thread that makes the archive's bases.

    archive thread                                   event loop
      ask for the oldest candidate        ─────────▶ SegmentTiers.next_candidate
      compare it with the archived object
      this writer still owns the archive?
      ask to begin                        ─────────▶ SegmentTiers.begin     nothing else deletes files
      write the tier file, durably
      ask to switch                       ─────────▶ SegmentTiers.finish    reads go to the archive
      delete the file                     ─────────▶ SegmentTiers.end

Running between bases, it cannot race with a base that lists files, nor with retention that deletes objects. A segment
that differs from its object is reported and stays. See `storage.tiers` for the order and its proof.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from driftq.core.model.facts import STAGING_LOG
from driftq.storage.archive.object_store import ObjectMissing
from driftq.storage.data_folder import TIERED_VERSION, finish_folder
from driftq.storage.disk import DiskFailed, DiskFull
from driftq.storage.tiers import Candidate, TierLimits, WrongObject, delete_file, verified_place, write_tier

if TYPE_CHECKING:
    from driftq.storage.archive.bases import Inventory
    from driftq.storage.archive.object_store import ObjectStore
    from driftq.storage.cold_segments import ColdPlace
    from driftq.storage.data_folder import DataFolder
    from driftq.storage.disk import Disk
    from driftq.storage.tiers import SegmentTiers

logger = logging.getLogger("driftq.archive")

T = TypeVar("T")
KEPT_HERE = frozenset({STAGING_LOG})  # read when a publication is projected, which cannot wait
POLL_S = 0.5


class _Stopping(Exception):
    """The event loop does not answer any more."""


class SegmentMover:
    """The moves of one engine."""

    def __init__(
        self,
        disk: Disk,
        folder: DataFolder,
        tiers: SegmentTiers,
        objects: ObjectStore,
        limits: TierLimits,
        now_ms: Callable[[], int],
        post: Callable[..., object],
    ) -> None:
        """`post` runs a call on the event loop, soon."""
        self._disk = disk
        self._folder = folder
        self._tiers = tiers
        self._objects = objects
        self._limits = limits
        self._now_ms = now_ms
        self._post = post
        self._is_marked = folder.version >= TIERED_VERSION
        self._wrong: set[str] = set()  # paths of segments that differ from their objects
        self.moved = 0

    def move(
        self,
        published: Callable[[], Inventory | None],
        claim_again: Callable[[], None],
        is_stopping: Callable[[], bool],
    ) -> None:
        """Move what should leave the disk and is in the last base. Raises `ObjectStoreError`, `DamagedArchive` or
        `Superseded`."""
        skipped = set(self._wrong)
        try:
            while not is_stopping():
                choose = partial(self._tiers.next_candidate, self._limits, self._now_ms(), KEPT_HERE, skipped)
                candidate = self._on_loop(choose, is_stopping)
                inventory = published() if candidate is not None else None
                if candidate is None or inventory is None:
                    return
                skipped.add(candidate.path)
                place = self._verified(candidate, inventory)
                if place is not None:
                    claim_again()
                    self._move(candidate, place, is_stopping)
        except _Stopping:
            return
        except (DiskFull, DiskFailed) as error:
            logger.error("a segment stays on this disk: %s", error)

    def _verified(self, candidate: Candidate, inventory: Inventory) -> ColdPlace | None:
        try:
            return verified_place(
                self._disk, self._objects, self._folder.store, self._folder.path, candidate, inventory
            )
        except FileNotFoundError:
            return None  # retention was quicker
        except (WrongObject, ObjectMissing) as error:
            self._wrong.add(candidate.path)
            logger.error("a segment stays on this disk, see `driftq archive verify`: %s", error)
            return None

    def _move(self, candidate: Candidate, place: ColdPlace, is_stopping: Callable[[], bool]) -> None:
        if not self._is_marked:
            finish_folder(self._disk, self._folder, TIERED_VERSION)  # an older version would miss the segments
            self._is_marked = True
        if not self._on_loop(partial(self._tiers.begin, candidate), is_stopping):
            return
        try:
            write_tier(self._disk, candidate, place)
            self._on_loop(partial(self._tiers.finish, candidate, place), is_stopping)
            delete_file(self._disk, candidate)
            self.moved += 1
        finally:
            self._post(self._tiers.end)

    def _on_loop(self, call: Callable[[], T], is_stopping: Callable[[], bool]) -> T:
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(call())
            except BaseException as error:
                done.set_exception(error)

        self._post(run)
        while True:
            try:
                return done.result(POLL_S)
            except TimeoutError:
                if done.done():
                    raise
                if is_stopping():
                    raise _Stopping from None
