"""Event loops that the client makes itself: for workers, and for producers of the blocking client.

The loop of a blocking client's producers runs on a daemon thread and is shared by all of them in a process. Knows
nothing of brokers.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A uvloop if it is installed."""
    try:
        import uvloop  # noqa: PLC0415  # costs 50 ms: only for programs that need a loop of ours
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


_lock = threading.Lock()
_shared: BackgroundLoop | None = None


class BackgroundLoop:
    """An event loop that runs on a daemon thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="driftq", daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            raise RuntimeError("this would deadlock: call it from another thread, or use the async client")
        return self.submit(coroutine).result()


def background_loop() -> BackgroundLoop:
    """The shared loop; a forked child gets its own."""
    global _shared  # noqa: PLW0603
    with _lock:
        if _shared is None or _shared.pid != os.getpid():
            _shared = BackgroundLoop()
        return _shared
