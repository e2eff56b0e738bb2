"""A loop on a thread of its own, for blocking programs that need something done meanwhile. One for a process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_shared: Background | None = None


class Background:
    """A running loop."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = new_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="driftq", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            raise RuntimeError("this would wait for itself: call it from another thread, or use the async client")
        return self.start(work).result()


def background() -> Background:
    """The shared loop; a forked child gets its own."""
    global _shared  # noqa: PLW0603
    with _lock:
        if _shared is None or _shared.pid != os.getpid():
            _shared = Background()
        return _shared


def new_loop() -> asyncio.AbstractEventLoop:
    """The quick one, where there is one."""
    try:
        import uvloop  # noqa: PLC0415  # 50 ms that only those pay who need a loop of ours
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
