"""File descriptors set aside for files, so that sockets cannot use them up.

A process has one limit for files and sockets together. `DescriptorReserve` opens placeholders (`/dev/null`) and gives
one up each time a file is opened; closing the file takes it back. A file can then be opened however many clients are
connected. Knows nothing of what the files hold.
"""

from __future__ import annotations

import contextlib
import os


class DescriptorReserve:
    """Placeholders for up to `size` open files. Safe to use from several threads: every step is one list operation."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._placeholders: list[int] = []
        for _ in range(size):
            self._hold_one()

    def lend(self) -> bool:
        """Free one descriptor for a file that is opened next. False if none is left."""
        try:
            placeholder = self._placeholders.pop()
        except IndexError:
            return False
        os.close(placeholder)
        return True

    def take_back(self) -> None:
        """A file was closed: hold its descriptor again, unless something else was quicker."""
        if len(self._placeholders) < self._size:
            self._hold_one()

    def close(self) -> None:
        while self.lend():
            pass

    def _hold_one(self) -> None:
        with contextlib.suppress(OSError):
            self._placeholders.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
