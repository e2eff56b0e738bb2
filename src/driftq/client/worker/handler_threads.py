"""The threads of a worker whose handler is a plain function.

    event loop                                threads (at most `concurrency`)
    ──────────                                ──────────────────────────────
    ready.extend(…); wake()  ── a token ────▶ until nothing is ready: from ready to running, under the lock `taking`
                                              the handler · running.discard(attempt)
    on_done(attempt, result) ◀── one call ─── ended.append(…)
      for all that have ended

A thread takes its messages by itself, and reports many calls at once: a hand-over of each message, and back, would cost
more than a short handler. `ready` and `running` belong to the loop of the worker, which holds `taking` when it must see
every message in one of the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING

from driftq.client.worker.attempt import AttemptResult, RunningAttempt, called
from driftq.client.worker.hooks import current_context_or_new, enter_context

if TYPE_CHECKING:
    from driftq.client.worker.attempt import AnyMessage
    from driftq.client.worker.hooks import WorkerContext
    from driftq.client.worker.options import Handler


class HandlerThreads:
    """Calls a plain handler with the messages of `ready`. `on_done` is called on the loop."""

    def __init__(
        self,
        handler: Handler,
        concurrency: int,
        ready: deque[AnyMessage],
        running: set[RunningAttempt],
        taking: threading.Lock,
        on_done: Callable[[RunningAttempt, AttemptResult], None],
    ) -> None:
        self._handler = handler
        self._concurrency = concurrency
        self._ready = ready
        self._running = running
        self._taking = taking
        self._on_done = on_done
        self._context: WorkerContext | None = None
        self._tokens: SimpleQueue[bool] = SimpleQueue()  # True: something may be ready; False: end
        self._ended: deque[tuple[RunningAttempt, AttemptResult]] = deque()
        self._is_report_due = False
        self._threads = 0

    def wake(self) -> None:
        """Something is ready. Threads are started when there are too few."""
        ready = len(self._ready)
        for _ in range(min(self._concurrency, len(self._running) + ready) - self._threads):
            self._threads += 1
            self._context = (
                current_context_or_new() if self._context is None else self._context
            )  # a thread inherits neither
            given = asyncio.get_running_loop(), self._context
            threading.Thread(target=self._work, name=f"driftq-worker-{self._threads}", args=given).start()
        for _ in range(min(ready, self._threads)):
            self._tokens.put(True)

    def close(self) -> None:
        """Threads that still run end after their call: it cannot be stopped."""
        self._ready.clear()
        for _ in range(self._threads):
            self._tokens.put(False)

    def _work(self, loop: asyncio.AbstractEventLoop, context: WorkerContext) -> None:
        enter_context(context)
        while True:
            with self._taking:
                attempt = RunningAttempt(self._ready.popleft()) if self._ready else None
                if attempt is not None:
                    self._running.add(attempt)
            if attempt is None:
                if not self._tokens.get():
                    return
                continue
            result = called(self._handler, attempt.message)
            self._running.discard(attempt)
            self._ended.append((attempt, result))
            if not self._is_report_due:
                self._is_report_due = True
                with contextlib.suppress(RuntimeError):  # the loop is closed: the run has ended without this call
                    loop.call_soon_threadsafe(self._report)

    def _report(self) -> None:
        self._is_report_due = False  # before the first look: what ends after the last one reports itself
        while self._ended:
            self._on_done(*self._ended.popleft())
