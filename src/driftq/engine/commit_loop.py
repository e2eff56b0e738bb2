"""Drives group commit with asyncio: one commit after the other for as long as there is work.

    idle ──wake()──▶ scheduled ──end of the loop's turn──▶ delayed ──▶ committing ──▶ idle, or scheduled again
                                                            │  ▲
                                                            └──┘ one turn of the loop each

A commit starts at the end of the loop's turn, so that everything that arrived in the same turn shares its sync. The
append runs on the committer; the loop continues in the meantime, unless the policy says that the loop should append by
itself. The policy is in `engine.group_commit`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from driftq.engine.committer import Committer
    from driftq.engine.group_commit import GroupCommit
    from driftq.engine.sequencer import CommitBatch, Sequencer
    from driftq.storage.journal import Journal

OnCommit = Callable[[int, float, float], None]  # frames, seconds until durable, seconds of writing and syncing


class CommitLoop:
    """The commits of one engine."""

    def __init__(
        self,
        sequencer: Sequencer,
        group: GroupCommit,
        journal: Journal,
        committer: Committer,
        on_failure: Callable[[BaseException], None],
        after_commit: Callable[[], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sequencer = sequencer
        self._group = group
        self._journal = journal
        self._committer = committer
        self._on_failure = on_failure
        self._after_commit = after_commit  # called whenever a commit started or ended: deadlines may have changed
        self.on_commit: OnCommit | None = None  # for metrics
        self.is_busy = False  # a commit is scheduled, delayed or running
        self._started_s = 0.0  # when the running commit was handed to the committer
        self._stopped = False
        self._drained: asyncio.Future[None] | None = None  # `drain` waits for it

    def wake(self) -> None:
        """Something was submitted: schedule a commit, unless there is nothing to do or one is under way."""
        if not self.is_busy and self._group.has_work():
            self.is_busy = True
            self._loop.call_soon(self._start)

    async def drain(self) -> None:
        """Wait until everything that was submitted is durable and answered, or the engine has failed."""
        if not self._stopped and (self.is_busy or self._group.has_work()):
            self._drained = self._loop.create_future()
            await self._drained

    def stop(self) -> None:
        """No commit starts after this, and none that is under way is reported."""
        self._stopped = True
        self._report_drained()

    def _start(self) -> None:
        if self._stopped:
            return
        if self._group.is_delayed(time.perf_counter()):
            self._loop.call_soon(self._start)
            return
        batch = self._group.take_batch()
        if batch is None:
            self._finish()
            return
        self._started_s = time.perf_counter()
        run = self._committer.call_inline if self._group.is_inline(batch) else self._committer.call
        run(partial(self._append, batch), self._committed)
        self._after_commit()

    def _append(self, batch: CommitBatch) -> tuple[int, int, float]:
        """On the committer, or inline."""
        started_s = time.perf_counter()
        lsn = self._journal.append(batch.expected_lsn, batch.frames)
        return lsn, self._journal.room_bytes(), time.perf_counter() - started_s

    def _committed(self, result: tuple[int, int, float]) -> None:
        lsn, room_bytes, append_s = result
        if self._stopped:
            return
        took_s = time.perf_counter() - self._started_s
        self._sequencer.room_bytes = room_bytes
        frames = lsn - self._sequencer.durable_lsn
        try:
            self._group.on_durable(lsn)
        except BaseException as error:  # the log store's disk failed
            self._on_failure(error)
            return
        if self.on_commit is not None:
            self.on_commit(frames, took_s, append_s)
        self._group.start_delay(append_s, time.perf_counter())
        self._finish()

    def _finish(self) -> None:
        """Schedule the next commit, or report that there is nothing left to do."""
        self.is_busy = False
        self.wake()
        if not self.is_busy:
            self._report_drained()
        self._after_commit()

    def _report_drained(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
