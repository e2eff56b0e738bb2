"""Which partition a key belongs to: FNV-1a, 32 bits, modulo the partitions.

Producers that pack their own batches must agree with the broker and with existing DriftQ clients, hence here.
"""

from __future__ import annotations

_BASIS = 0x811C9DC5
_PRIME = 0x01000193


def fnv1a(key: bytes) -> int:
    number = _BASIS
    for byte in key:
        number = ((number ^ byte) * _PRIME) & 0xFFFFFFFF
    return number


def partition_of(key: bytes, partitions: int) -> int:
    """The empty key goes to partition 0."""
    return fnv1a(key) % partitions if key and partitions > 1 else 0


# --- Which partition a key belongs to: the broker and its producers ask the same function ---
