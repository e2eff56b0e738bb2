"""A promise was broken."""

from __future__ import annotations


class Violation(Exception):
    """Which promise (as named in docs/internals/testing.md) and how."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"[{promise}] {what}")
        self.promise = promise


def demand(holds: object, promise: str, what: str) -> None:
    """Not for hot code: the message is built even if the condition holds."""
    if not holds:
        raise Violation(promise, what)
