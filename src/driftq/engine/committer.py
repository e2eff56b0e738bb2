"""The committer: runs the commits of an engine, one after the other for as long as there is work.

    idle ──wake()──▶ scheduled ──end of the loop's turn──▶ delayed ──▶ committing ──▶ idle, or scheduled again
                                                            │  ▲
                                                            └──┘ one turn of the loop each

A commit starts at the end of the loop's turn, so that everything that arrived in the same turn shares its sync. The
append runs on the committer; the loop continues in the meantime, unless the policy says that the loop should append by
itself. The policy is in `engine.group_commit`.

`CommitLoop` is the part on the event loop. A `Committer` is where the journal's calls run: `ThreadCommitter` runs them
on a thread of its own, so that the event loop continues while the disk works; `InlineCommitter` runs them at once, for
a journal that never waits. Calls run one after the other, in order. A call that raises is the last one: after a failed
write or sync nothing may be written any more.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from driftq.engine.frame_queue import CommitBatch
    from driftq.engine.group_commit import GroupCommit
    from driftq.engine.loop_monitor import LoopMonitor
    from driftq.engine.sequencer import Sequencer
    from driftq.storage.journal import Journal

OnCommit = Callable[[int, float, float], None]  # frames, seconds until durable, seconds of writing and syncing
OnDone = Callable[[Any], None]
OnFailure = Callable[[BaseException], None]
Post = Callable[..., object]  # loop.call_soon_threadsafe
_Task = tuple[Callable[[], Any], OnDone]


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
        monitor: LoopMonitor,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sequencer = sequencer
        self._group = group
        self._journal = journal
        self._committer = committer
        self._on_failure = on_failure
        self._monitor = monitor
        self._start_turn = monitor.timed("commit", self._start)
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
            self._loop.call_soon(self._start_turn)

    async def drain(self) -> None:
        """Wait until everything that was submitted is durable and answered, or the engine has failed."""
        if not self._stopped and (self.is_busy or self._group.has_work()):
            self._drained = self._loop.create_future()
            await self._drained

    def stop(self) -> None:
        """No commit starts after this, and none that is under way is reported."""
        self._stopped = True
        self._report_drained()

    def close(self) -> None:
        """End the committer, after `drain` or `stop`. Calls that it accepted are finished first."""
        self._committer.stop()

    def _start(self) -> None:
        if self._stopped:
            return
        if self._group.is_delayed(time.perf_counter()):
            self._loop.call_soon(self._start_turn)
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
        if self._stopped:
            return
        turn_s = self._monitor.begin()
        try:
            self._publish(*result)
        finally:
            self._monitor.end("commit", turn_s)

    def _publish(self, lsn: int, room_bytes: int, append_s: float) -> None:
        took_s = time.perf_counter() - self._started_s
        self._sequencer.room.free_bytes = room_bytes
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


# --- where the journal's calls run ---


class Committer(Protocol):
    """Runs calls that touch the journal. `on_done` and `on_failure` are called on the event loop's thread."""

    def call(self, work: Callable[[], Any], on_done: OnDone) -> None:
        """Run `work`, then pass its result to `on_done`."""

    def call_inline(self, work: Callable[[], Any], on_done: OnDone) -> None:
        """Like `call`, but on the calling thread if no other call is under way."""

    def stop(self) -> None:
        """Finish the calls that were accepted, then end."""


class ThreadCommitter:
    """One thread, for a journal whose calls wait for a device."""

    def __init__(self, post: Post, on_failure: OnFailure) -> None:
        self._post = post
        self._on_failure = on_failure
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._pending = 0  # calls whose result the event loop has not seen yet
        self._thread = threading.Thread(target=self._run, name="driftq-committer", daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], Any], on_done: OnDone) -> None:
        self._pending += 1
        self._tasks.put((work, on_done))

    def call_inline(self, work: Callable[[], Any], on_done: OnDone) -> None:
        if self._pending:
            self.call(work, on_done)
            return
        try:
            result = work()
        except BaseException as error:
            self._pending += 1  # nothing runs after a failure, neither here nor on the thread
            self._tasks.put(None)
            self._on_failure(error)
        else:
            on_done(result)

    def stop(self) -> None:
        self._tasks.put(None)
        self._thread.join()

    def _done(self, on_done: OnDone, result: Any) -> None:
        self._pending -= 1
        on_done(result)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            work, on_done = task
            try:
                result = work()
            except BaseException as error:
                self._post(self._on_failure, error)
                return
            self._post(self._done, on_done, result)


class InlineCommitter:
    """No thread, for a journal in memory."""

    def __init__(self, post: Post, on_failure: OnFailure) -> None:
        self._on_failure = on_failure

    def call(self, work: Callable[[], Any], on_done: OnDone) -> None:
        try:
            result = work()
        except BaseException as error:
            self._on_failure(error)
        else:
            on_done(result)

    call_inline = call

    def stop(self) -> None:
        pass
