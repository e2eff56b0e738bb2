"""A router written in Python, named `module:attribute`.

Coroutine functions run on the event loop of the server. Plain functions run on a few threads, so that a slow call can
time out; with `inline` they are called on the loop, which is faster, but only for functions that never block.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import queue
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from driftq.settings.loader import SettingsError
from driftq.wire.router import RouteDecision, RouteInput, checked


def load(target: str) -> Callable[[RouteInput], Any]:
    """The function named `module:attribute`. Modules are also searched in the current folder."""
    module_name, colon, path = target.partition(":")
    if not (module_name and colon and path):
        raise SettingsError(f"router.target must be module:attribute, not {target!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        target_object: Any = importlib.import_module(module_name)
        for name in path.split("."):
            target_object = getattr(target_object, name)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"router.target {target}: {error}") from error
    if inspect.isclass(target_object):
        target_object = target_object()
    call = getattr(target_object, "route", target_object)
    if not callable(call):
        raise SettingsError(f"router.target {target} is not callable and has no method `route`")
    return call  # type: ignore[no-any-return]


def is_async(call: Callable[[RouteInput], Any]) -> bool:
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)


class PythonRouter:
    """Calls a function: inline, as a coroutine, or on a thread."""

    kind = "python"

    def __init__(self, call: Callable[[RouteInput], Any], *, inline: bool = False, threads: int = 4) -> None:
        self._call = call
        self._async = is_async(call)
        self.inline = inline and not self._async
        self._threads = _Threads(threads) if not (self.inline or self._async) else None

    def route(self, message: RouteInput) -> RouteDecision | Awaitable[RouteDecision | None] | None:
        return checked(self._call(message)) if self.inline else self._route_async(message)

    async def _route_async(self, message: RouteInput) -> RouteDecision | None:
        if self._threads is None:
            return checked(await self._call(message))
        return checked(await self._threads.run(partial(self._call, message)))

    async def close(self) -> None:
        if self._threads is not None:
            self._threads.close()


class _Threads:
    """Daemon threads: a stuck call does not keep the process from exiting."""

    def __init__(self, count: int) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._count = count
        for number in range(count):
            threading.Thread(target=self._work, name=f"driftq-router-{number}", daemon=True).start()

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def work() -> None:
            if future.cancelled():
                return  # timed out while it was queued
            try:
                result = call()
            except BaseException as error:
                loop.call_soon_threadsafe(_set_error, future, error)
            else:
                loop.call_soon_threadsafe(_set_result, future, result)

        self._tasks.put(work)
        return future

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except RuntimeError:
                return  # the loop has ended

    def close(self) -> None:
        for _ in range(self._count):
            self._tasks.put(None)


def _set_result(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _set_error(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))
