"""Ready middleware for workers: log lines, timing, error capture and time limits. See `Middleware` for your own.

    from driftq.middleware import Capture, Logging, TimeLimit, Timing

    middleware = [Logging(), Timing(slow_ms=1_000), Capture(sentry_sdk.capture_exception), TimeLimit(30_000)]

In a module that `driftq worker` runs, this list is for all workers of the module. `@driftq.worker(…, middleware=[…])`,
`@driftq.task(…, middleware=[…])` and `driftq.run(…, middleware=[…])` take one, too. The first is the outermost.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any

from driftq.client.claims import HandlerResult
from driftq.client.message import AsyncMessage
from driftq.client.worker.hooks import Hooks as Hooks
from driftq.client.worker.hooks import Middleware as Middleware
from driftq.client.worker.hooks import is_failure

IDLE_S = 3_600.0


def describe(message: Any) -> dict[str, Any]:
    """What identifies an attempt, for log lines and error reports. The value of the message is not in it."""
    fields = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "group": message.group,
        "attempt": message.attempts,
    }
    if message.task:
        fields["task"] = message.task
    if message.job_id:
        fields["job"] = message.job_id
    return fields


class Logging(Middleware):
    """One line for each attempt, with its fields and how long it took."""

    def __init__(self, logger: str = "driftq.attempts", level: int = logging.INFO) -> None:
        self._logger = logging.getLogger(logger)
        self._level = level

    @contextmanager
    def around(self, message: Any) -> Iterator[None]:
        began_s = time.perf_counter()
        try:
            yield
        except Exception as error:
            self._log(message, began_s, "failed" if is_failure(error) else "released", repr(error))
            raise
        self._log(message, began_s, "done")

    def on_dead(self, message: Any, reason: str) -> None:
        fields = {**describe(message), "reason": reason}
        self._logger.warning("%s became a dead letter", message.name, extra={"fields": fields})

    def _log(self, message: Any, began_s: float, end: str, error: str = "") -> None:
        fields = {**describe(message), "took_ms": round(1e3 * (time.perf_counter() - began_s), 3)}
        if error:
            fields["error"] = error
        self._logger.log(self._level, "%s %s", message.name, end, extra={"fields": fields})


Observe = Callable[[str, float, str], None]


class Timing(Middleware):
    """Measures each attempt: `observe(name, seconds, end)` gets the task or topic, the time, and "done", "failed" or
    "released". Without it, attempts that take longer than `slow_ms` are logged."""

    def __init__(self, observe: Observe | None = None, *, slow_ms: int = 1_000) -> None:
        self._observe = observe or self._log_slow
        self._slow_s = slow_ms / 1_000

    @contextmanager
    def around(self, message: Any) -> Iterator[None]:
        began_s, end = time.perf_counter(), "released"
        try:
            yield
            end = "done"
        except Exception as error:
            end = "failed" if is_failure(error) else end
            raise
        finally:
            self._observe(message.task or message.topic, time.perf_counter() - began_s, end)

    def _log_slow(self, name: str, seconds: float, end: str) -> None:
        if seconds > self._slow_s:
            logging.getLogger("driftq.timing").warning("%s took %.3f s (%s)", name, seconds, end)


class Capture(Middleware):
    """Reports unexpected errors: `capture(error)` gets each of them, and `describe(message)` if it takes `context`.

    `Retry`, `Reject` and `Release` are not reported: they were raised on purpose. For Sentry:
    `Capture(sentry_sdk.capture_exception)`.
    """

    def __init__(self, capture: Callable[..., Any], *, with_context: bool = False) -> None:
        self._capture = capture
        self._with_context = with_context

    def on_failure(self, message: Any, error: BaseException) -> Any:
        if isinstance(error, HandlerResult):
            return None
        return self._capture(error, context=describe(message)) if self._with_context else self._capture(error)


class TimeLimitExceeded(TimeoutError):
    """A handler ran longer than its `TimeLimit`."""


class TimeLimit(Middleware):
    """Raises `TimeLimitExceeded` inside a handler that runs longer than `limit_ms`, so that it can clean up.

    An async handler gets it where it awaits. A plain one gets it at its next Python instruction: code that waits in C,
    such as `time.sleep` or a query of a database, is interrupted only when it returns. The worker's `timeout_ms` is
    the limit that always holds: choose it longer than this one.
    """

    def __init__(self, limit_ms: int) -> None:
        self._limit_s = limit_ms / 1_000

    def around(self, message: Any) -> AbstractContextManager[Any]:
        return _TaskLimit(self._limit_s) if isinstance(message, AsyncMessage) else _ThreadLimit(self._limit_s)


class _TaskLimit:
    """Cancels the current task when the time is up, and turns the cancellation into the error."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._is_over = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._timer = asyncio.get_running_loop().call_later(self._limit_s, self._expire)

    def _expire(self) -> None:
        self._is_over = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._timer.cancel()
        if self._is_over and self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise TimeLimitExceeded(f"longer than {self._limit_s * 1_000:.0f} ms") from error


class _ThreadLimit:
    """Raises the error in this thread when the time is up."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s

    def __enter__(self) -> None:
        self.thread = threading.get_ident()
        _watchdog.add(self, self._limit_s)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        was_in_time = _watchdog.remove(self)
        if not was_in_time and kind is not TimeLimitExceeded:
            _raise_in(self.thread, None)  # it was not raised yet, and must not be raised later
        if kind is TimeLimitExceeded:
            raise TimeLimitExceeded(f"longer than {self._limit_s * 1_000:.0f} ms") from None


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise an error at the next instruction of a thread, or with None take it back."""
    exception = ctypes.py_object(error) if error is not None else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)


class _Watchdog:
    """One thread for the time limits of all threads of a process. It sleeps until the next limit is due."""

    def __init__(self) -> None:
        self._deadlines_s: dict[_ThreadLimit, float] = {}  # of attempts that run: as many as there are threads
        self._changed = threading.Condition()
        self._wake_s = 0.0
        self._thread: threading.Thread | None = None

    def add(self, limit: _ThreadLimit, limit_s: float) -> None:
        deadline_s = time.monotonic() + limit_s
        with self._changed:
            self._deadlines_s[limit] = deadline_s
            if self._thread is None or not self._thread.is_alive():  # a forked child has no thread
                self._thread = threading.Thread(target=self._run, name="driftq-time-limits", daemon=True)
                self._thread.start()
            elif deadline_s < self._wake_s:
                self._changed.notify()

    def remove(self, limit: _ThreadLimit) -> bool:
        """False if the limit was exceeded."""
        with self._changed:
            return self._deadlines_s.pop(limit, None) is not None

    def _run(self) -> None:
        with self._changed:
            while True:
                now_s = time.monotonic()
                for limit, deadline_s in list(self._deadlines_s.items()):
                    if deadline_s <= now_s:
                        del self._deadlines_s[limit]
                        _raise_in(limit.thread, TimeLimitExceeded)
                self._wake_s = min(self._deadlines_s.values(), default=now_s + IDLE_S)
                self._changed.wait(max(0.0, self._wake_s - now_s))


_watchdog = _Watchdog()
