"""A task that does nothing, as a plain and as an async function, and one that keeps a core busy."""

import driftq

ROUNDS = 20_000


@driftq.task("plain", topic="plain", concurrency=8)
def plain(number: int) -> None:
    """On one of eight threads."""


@driftq.task("awaited", topic="awaited", concurrency=8)
async def awaited(number: int) -> None:
    """On the event loop."""


@driftq.task("busy", topic="busy")
def busy(number: int) -> None:
    """About a millisecond of work that holds the interpreter."""
    total = 0
    for value in range(ROUNDS):
        total += value
