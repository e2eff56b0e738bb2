"""The partition of a key: its FNV-1a hash (32 bits) modulo the number of partitions.

The broker and producers that pack their own batches must agree on it, and so must clients of DriftQ v1.
"""

from __future__ import annotations

_BASIS = 0x811C9DC5
_PRIME = 0x01000193


def fnv1a(key: bytes) -> int:
    digest = _BASIS
    for byte in key:
        digest = ((digest ^ byte) * _PRIME) & 0xFFFFFFFF
    return digest


def partition_of(key: bytes, partitions: int) -> int:
    """The empty key goes to partition 0."""
    return fnv1a(key) % partitions if key and partitions > 1 else 0
