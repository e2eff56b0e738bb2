"""Names that nobody else has: for owners, producers and outcomes. Straight from the system, without the weight of
`secrets`, because every program that imports this client pays for its imports."""

from __future__ import annotations

import os
import socket


def random_name() -> str:
    return os.urandom(9).hex()


def random_bits(count: int) -> int:
    return int.from_bytes(os.urandom(8), "little") & ((1 << count) - 1)


def chance() -> float:
    """From 0 up to 1."""
    return random_bits(53) / (1 << 53)


def default_owner() -> str:
    """A name for this process that no other has."""
    return f"{socket.gethostname()[:64]}:{os.getpid()}:{os.urandom(3).hex()}"
