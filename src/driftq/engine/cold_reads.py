"""Reads records back from the archive, off the loop: what `storage.cold_segments.ColdRange` asks for.

    a read ── ColdRange ──▶ fetch ──▶ one download per window ──▶ cache ──▶ all waiting reads, again
                              │        (DOWNLOADS threads)
                              └─ the archive is away ──▶ RecordsAway: 503, what to do, and nothing else

Readers of the same window share its download. A reader never gets fewer records because the archive is away: it gets
`RecordsAway`. After a download that failed because the store does not answer, others fail at once for `AWAY_S`, so that
readers do not queue up behind timeouts.

Used from the event loop; only `fetch_window` runs on the threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from driftq.storage.archive.object_store import ObjectMissing, ObjectStoreError
from driftq.storage.cold_segments import AHEAD_BYTES, WINDOW_BYTES, ColdRange, ColdWindow
from driftq.storage.corruption import CorruptLog
from driftq.storage.tiers import WrongObject, fetch_window
from driftq.wire.records import read_header

if TYPE_CHECKING:
    from driftq.storage.archive.object_store import ObjectStore
    from driftq.storage.log_store import LogStore
    from driftq.storage.tiers import SegmentTiers

logger = logging.getLogger("driftq.archive")

T = TypeVar("T")
DOWNLOADS = 8  # at the same time
WAITING_MAX = 1_000  # windows that are asked for; then readers get `RecordsAway`
AWAY_S = 2.0
OnFetched = Callable[["RecordsAway | None"], None]


class RecordsAway(Exception):
    """Records are only in the archive, and they cannot be had from there now. They are not lost."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"these records are only in the archive, and it cannot be read now: {reason}")


class ColdFigures(NamedTuple):
    """What is in which tier, and how it is read."""

    local_bytes: int  # of closed segments that could leave the disk
    archived_bytes: int  # of those that have left it
    cache_hits: int
    downloads: int
    downloaded_bytes: int
    failures: int
    error: str  # why the last download failed; "" if it did not


class ColdReads:
    """The downloads of one engine."""

    def __init__(self, tiers: SegmentTiers, objects: ObjectStore | None) -> None:
        self._tiers = tiers
        self._objects = objects  # None: the broker has no archive now
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(DOWNLOADS, "driftq-cold")
        self._waiting: dict[tuple[str, int, int], list[OnFetched]] = {}  # by window
        self._away_until_s = 0.0
        self._away_error = ""
        self._is_closed = False
        self._fetched_reads = 0  # reads that had to wait
        self.downloads = 0
        self.downloaded_bytes = 0
        self.failures = 0

    @property
    def is_used(self) -> bool:
        """Whether some records are only in the archive."""
        return self._tiers.cold_bytes > 0

    def figures(self) -> ColdFigures:
        """For metrics and `/v1/readyz`."""
        tiers = self._tiers
        return ColdFigures(
            tiers.local_bytes, tiers.cold_bytes, max(0, tiers.reads - self._fetched_reads), self.downloads,
            self.downloaded_bytes, self.failures, self._away_error,
        )  # fmt: skip

    def fetch(self, cold: ColdRange, on_fetched: OnFetched) -> None:
        """Get what a read was lacking; then `on_fetched` is called, in another turn of the loop."""
        reason = self._refusal()
        if reason:
            self.failures += 1
            self._loop.call_soon(on_fetched, RecordsAway(reason))
            return
        windows = cold.windows()
        self._fetched_reads += 1
        _Wait(len(windows), on_fetched).join(self._ask, windows)

    def _fetch_ahead(self, windows: Iterable[ColdWindow]) -> None:
        """Get what a reader will probably ask for next, without a caller."""
        if not self._refusal() and len(self._waiting) < DOWNLOADS:
            for window in windows:
                self._ask(window, None)

    async def wait(self, cold: ColdRange) -> None:
        """`fetch` for a coroutine. Raises `RecordsAway`."""
        future: asyncio.Future[None] = self._loop.create_future()
        self.fetch(cold, partial(_settle, future))
        await future

    async def run(self, read: Callable[[], T]) -> T:
        """What a read returns when its records are here. It may be called several times. Raises `RecordsAway`."""
        while True:
            try:
                return read()
            except ColdRange as cold:
                await self.wait(cold)

    async def read(self, store: LogStore, log_id: int, offset: int, end_offset: int, max_bytes: int) -> list[bytes]:
        """`LogStore.read`, with as much as if all of it were here. Raises `RecordsAway`, or what that raises."""
        batches = await self.run(partial(store.read, log_id, offset, end_offset, max_bytes))
        if not self.is_used:
            return batches
        end_offset = min(end_offset, store.end(log_id))
        left_bytes = max_bytes - sum(map(len, batches))
        while batches and left_bytes > 0 and (offset := read_header(batches[-1]).end_offset) < end_offset:
            try:
                more = await self.run(partial(store.read, log_id, offset, end_offset, left_bytes))
            except (CorruptLog, RecordsAway):
                break  # the next read reports it
            if not more or len(more[0]) > left_bytes:
                break
            batches += more
            left_bytes -= sum(map(len, more))
        if batches and max_bytes >= WINDOW_BYTES:  # a reader of long ranges: it continues there
            after = read_header(batches[-1]).end_offset
            self._fetch_ahead(store.cold_windows(log_id, after, AHEAD_BYTES))
        return batches

    def close(self) -> None:
        self._is_closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _refusal(self) -> str:
        if self._objects is None:
            return "the broker runs without it; start it with the archive.url that the data folder had"
        if self._is_closed:
            return "the broker stops"
        if time.monotonic() < self._away_until_s:
            return self._away_error
        return "too many reads of old records wait; try again" if len(self._waiting) >= WAITING_MAX else ""

    def _ask(self, window: ColdWindow, on_fetched: OnFetched | None) -> None:
        assert self._objects is not None
        callers = self._waiting.get(window.name)
        if callers is None:
            if on_fetched is None and all(run.batches is not None for run in window.runs):
                return  # read ahead before
            callers = self._waiting[window.name] = []
            done = self._pool.submit(fetch_window, self._objects, window)
            done.add_done_callback(partial(self._on_thread, window))
        if on_fetched is not None:
            callers.append(on_fetched)

    def _on_thread(self, window: ColdWindow, done: Future[list[tuple[list[int], list[bytes]]]]) -> None:
        if not done.cancelled() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._fetched, window, done)

    def _fetched(self, window: ColdWindow, done: Future[list[tuple[list[int], list[bytes]]]]) -> None:
        callers = self._waiting.pop(window.name)
        away: RecordsAway | None = None
        try:
            batches = done.result()
        except (ObjectStoreError, ObjectMissing, WrongObject, OSError) as error:
            away = self._failed(window, error)
        else:
            self._tiers.keep(window, batches)
            self.downloads += 1
            self.downloaded_bytes += window.size_bytes
            self._away_error, self._away_until_s = "", 0.0
        for on_fetched in callers:
            on_fetched(away)

    def _failed(self, window: ColdWindow, error: Exception) -> RecordsAway:
        self.failures += 1
        key = window.name[0]
        reason = str(error)
        if isinstance(error, ObjectMissing):
            reason = f"{key} is missing there; see `driftq archive verify`"
        elif isinstance(error, ObjectStoreError):
            self._away_until_s = time.monotonic() + AWAY_S
        if reason != self._away_error:
            logger.error("a read of records that are only in the archive failed: %s", reason)
        self._away_error = reason
        return RecordsAway(reason)


class _Wait:
    """A reader that waits for several windows."""

    def __init__(self, count: int, on_fetched: OnFetched) -> None:
        self._left = count
        self._on_fetched = on_fetched
        self._away: RecordsAway | None = None

    def join(self, ask: Callable[[ColdWindow, OnFetched], None], windows: Iterable[ColdWindow]) -> None:
        for window in windows:
            ask(window, self._one)

    def _one(self, away: RecordsAway | None) -> None:
        self._left -= 1
        self._away = self._away or away
        if not self._left:
            self._on_fetched(self._away)


def _settle(future: asyncio.Future[None], away: RecordsAway | None) -> None:
    if future.done():
        return
    if away is not None:
        future.set_exception(away)
    else:
        future.set_result(None)


async def read_cold(cold_reads: ColdReads | None, read: Callable[[], T]) -> T:
    """`ColdReads.run`, for an engine that may have none."""
    if cold_reads is None:
        return read()
    return await cold_reads.run(read)
