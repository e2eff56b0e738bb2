"""A real server on a thread of this process that measures the turns of its event loop, for tests of stalls.

    with measured_server(None) as server:
        server.call("POST", "/v1/produce", {...})
        server.assert_no_turn_above(0.05)

The time is the CPU time of the loop's thread: it does not depend on how busy the machine is. Every callback of the loop
is measured, also those that `LoopMonitor` has no cause for; such a turn is named after its callback. The server runs on
asyncio's own loop, because uvloop cannot be measured like this.
"""

from __future__ import annotations

import asyncio
import gc
import re
import threading
import time
from asyncio import events
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from driftq.engine.loop_monitor import LoopMonitor
from driftq.server.run import serve_until
from driftq.server.settings import load
from tests.support.server import START_S, Reply, request

_PORT = re.compile(r"on https?://127\.0\.0\.1:(\d+)")


class MeasuredServer:
    """A server with its longest turns. `folder` None keeps everything in memory."""

    def __init__(self, folder: str | None, *settings: str) -> None:
        self.longest_s: dict[str, float] = {}  # CPU seconds of the longest turn of each cause
        self.total_s = 0.0  # CPU seconds of all turns
        self.port = 0
        self._settings = load(None, {}, ["listen.port=0", *settings]).settings
        self._folder = folder
        self._started: Future[int] = Future()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._cause = ""  # of the present turn, once `LoopMonitor` has reported it
        self._thread = threading.Thread(target=self._run, name="driftq-measured", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.port = self._started.result(START_S)
        self.reset()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def reset(self) -> None:
        """Forget the turns up to now: what follows is the work that the test is about."""
        self.on_loop(self._clear)

    def on_loop(self, function: Callable[[], Any]) -> Any:
        """Call a function on the loop's thread and return its result. Turns before it are complete."""
        done: Future[Any] = Future()
        self._loop.call_soon_threadsafe(lambda: done.set_result(function()))
        return done.result(START_S)

    def call(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Reply:
        """One request on a connection of its own. Anything but bytes is sent as JSON."""
        return request(self.port, method, path, body, headers)

    def assert_no_turn_above(self, limit_s: float) -> None:
        """No turn of the loop took more CPU time since the start or the last `reset`."""
        longest_s: dict[str, float] = self.on_loop(lambda: dict(self.longest_s))
        long = {cause: f"{took_s * 1_000:.0f} ms" for cause, took_s in longest_s.items() if took_s > limit_s}
        assert not long, f"turns above {limit_s * 1_000:.0f} ms of CPU: {long}"

    def _clear(self) -> None:
        self.longest_s.clear()
        self.total_s = 0.0

    def _run(self) -> None:
        monitor = LoopMonitor(time.thread_time, stall_s=0.0, log_s=float("inf"))

        async def main() -> None:
            serving = asyncio.ensure_future(
                serve_until(self._stop, self._settings, self._folder, self._report, monitor)
            )
            await asyncio.wait((serving,))
            if not self._started.done():
                self._started.set_exception(serving.exception() or AssertionError("the server did not start"))
            serving.result()

        with _measured_callbacks(self._turn):
            self._monitor = monitor
            self._loop.run_until_complete(main())
        self._loop.close()

    def _report(self, line: str) -> None:
        match = _PORT.search(line)
        if match and not self._started.done():
            self._monitor.on_stall = self._note_cause  # instead of the counters of the metrics
            self._started.set_result(int(match[1]))

    def _note_cause(self, cause: str, took_s: float) -> None:
        self._cause = cause

    def _turn(self, callback: str, took_s: float) -> None:
        cause, self._cause = self._cause or callback, ""
        self.total_s += took_s
        if took_s > self.longest_s.get(cause, 0.0):
            self.longest_s[cause] = took_s


@contextmanager
def measured_server(folder: str | None, *settings: str) -> Iterator[MeasuredServer]:
    server = MeasuredServer(folder, *settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        gc.unfreeze()  # the server froze what it found at its start
        gc.set_threshold(*_GC_THRESHOLD)


_GC_THRESHOLD = gc.get_threshold()


@contextmanager
def _measured_callbacks(on_turn: Callable[[str, float], None]) -> Iterator[None]:
    """Measure every callback that a loop runs on this thread."""
    thread = threading.get_ident()
    run = events.Handle._run

    def measured(handle: events.Handle) -> None:
        if threading.get_ident() != thread:
            run(handle)
            return
        started_s = time.thread_time()
        run(handle)
        took_s = time.thread_time() - started_s
        callback = handle._callback  # type: ignore[attr-defined]
        on_turn(getattr(callback, "__qualname__", type(callback).__name__), took_s)

    events.Handle._run = measured  # type: ignore[method-assign]
    try:
        yield
    finally:
        events.Handle._run = run  # type: ignore[method-assign]
