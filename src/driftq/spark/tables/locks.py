"""Who may touch a table's folder: one writer's turn at a time, a door for short changes, and readers who stay.

Locks are `flock` on small files, so they end with the process that holds them, however it ends. They keep order among
processes that share the folder; that a batch is committed once does not rest on them but on the commit file, which
only one can create.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_S = 0.02


class TableBusy(RuntimeError):
    """Somebody else had the table for longer than the caller was ready to wait."""


@contextmanager
def held(path: Path, *, shared: bool = False, wait_s: float = 0.0) -> Iterator[None]:
    """Hold a lock for the time of a block. Raises `TableBusy` after `wait_s`."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _take(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, path, wait_s)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, how: int, path: Path, wait_s: float) -> None:
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise TableBusy(f"{path.parent.parent}: somebody else is at it ({path.name})") from None
            time.sleep(POLL_S)
        else:
            return
