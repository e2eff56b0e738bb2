"""What happened, as one number and, if wanted, as lines a person can read.

The number covers every frame that was written, every reply that left, every restart. Two runs of one seed must give the
same number, in any process. Knows nothing about what the events mean.
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
        """One line; it counts for the hash too."""
        self._hash.update(text.encode())
        if self._printer is not None:
            self._printer(text)

    def show(self, text: str) -> None:
        """For a listener only."""
        if self._printer is not None:
            self._printer(text)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
