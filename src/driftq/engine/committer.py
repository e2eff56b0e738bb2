"""Where the journal's calls run. `ThreadCommitter` runs them on a thread of its own, so that the event loop continues
while the disk works; `InlineCommitter` runs them at once, for a journal that never waits.

Calls run one after the other, in order. A call that raises is the last one: after a failed write or sync nothing may
be written any more.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

OnDone = Callable[[Any], None]
OnFailure = Callable[[BaseException], None]
Post = Callable[..., object]  # loop.call_soon_threadsafe
_Task = tuple[Callable[[], Any], OnDone]


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
