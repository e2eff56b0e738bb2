"""The one thread that touches the journal: it writes blocks, syncs them, and does the journal's chores in between.

Work arrives as calls and is done in order; the loop is told when each is over. A call that raises ends the thread:
after a failed write or sync nothing may be written any more.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

Done = Callable[[Any], None]
_Task = tuple[Callable[[], Any], Done]


class Committer:
    """Runs calls one after the other. `done` and `on_failure` are called in the loop's thread."""

    def __init__(self, post: Callable[..., object], on_failure: Callable[[BaseException], None]) -> None:
        self._post = post  # loop.call_soon_threadsafe
        self._on_failure = on_failure
        self.busy = 0  # calls that the loop has not heard the end of: while there are some, the journal is not its own
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="driftq-committer", daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], Any], done: Done) -> None:
        self.busy += 1
        self._tasks.put((work, done))

    def _over(self, done: Done, result: Any) -> None:
        """In the loop's thread."""
        self.busy -= 1
        done(result)

    def stop(self) -> None:
        """Finish what was asked for, then end."""
        self._tasks.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            work, done = task
            try:
                result = work()
            except BaseException as error:
                self._post(self._on_failure, error)
                return
            self._post(self._over, done, result)
