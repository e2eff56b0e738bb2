"""The trace of a run: one hash and, on request, readable lines.

The hash covers every frame that was written, every reply that was sent and every restart. Two runs of one seed must
have the same hash, in any process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable


class Trace:
    """A running hash and an optional printer."""

    def __init__(self, printer: Callable[[str], None] | None = None) -> None:
        self._hash = hashlib.blake2b(digest_size=12)
        self.add = self._hash.update
        self._printer = printer
        self.talks = printer is not None

    def say(self, text: str) -> None:
        """Add a line to the hash, and print it on request."""
        self._hash.update(text.encode())
        if self._printer is not None:
            self._printer(text)

    def show(self, text: str) -> None:
        """Only printed, not part of the hash."""
        if self._printer is not None:
            self._printer(text)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
