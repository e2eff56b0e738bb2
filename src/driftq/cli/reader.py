"""Whoever reads what a command prints into a pipe, and what happens when they leave while there is nothing to print."""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LOOK_MS = 200
GRACE_S = 0.2  # for a command that writes: it meets the closed pipe by itself, and puts things in order


class ReaderLeft(Exception):
    """Nobody reads any more, and nothing was written that would have told."""


@contextmanager
def while_read() -> Iterator[None]:
    """Raises `ReaderLeft` when the pipe behind the output is closed. Otherwise `driftq tail orders | head -1` would
    wait for one more message only to find that nobody wants it."""
    if not _is_pipe():
        yield
        return
    over, left = threading.Event(), threading.Event()
    looking = threading.Thread(target=_look, args=(over, left, threading.get_ident()), daemon=True)
    looking.start()
    try:
        try:
            yield
        finally:
            over.set()
            looking.join()
    except KeyboardInterrupt:
        if left.is_set():
            raise ReaderLeft from None
        raise


def _is_pipe() -> bool:
    if threading.current_thread() is not threading.main_thread() or not hasattr(select, "poll"):
        return False
    try:
        return stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def _look(over: threading.Event, left: threading.Event, main: int) -> None:
    looker = select.poll()
    looker.register(sys.stdout.fileno(), 0)  # errors are told unasked
    while not over.is_set():
        if looker.poll(LOOK_MS):
            if not over.wait(GRACE_S):
                left.set()
                signal.pthread_kill(main, signal.SIGINT)  # the interrupt that every command can bear
            return
