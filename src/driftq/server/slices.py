"""Long reads in slices: a generator looks at the state for a few milliseconds at a time. Other requests run between.

Each slice is a query, so its items are returned when everything that it saw is durable. The state changes between two
slices: a generator must expect that what it looks at next was deleted. It yields None where there is nothing to return
yet and a slice may end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from driftq.engine.queries import Queries, StateView

T = TypeVar("T")

SLICE_S = 0.004


async def slices(queries: Queries, begin: Callable[[StateView], Iterator[T | None]]) -> AsyncIterator[list[T]]:
    """The items of a generator, a slice at a time. `begin` makes it from the first view."""
    items = await queries.result(begin)
    while (taken := await queries.result(lambda _: next_slice(items))) is not None:
        yield taken
        await asyncio.sleep(0)


async def collected(queries: Queries, begin: Callable[[StateView], Iterator[T | None]]) -> list[T]:
    """All items of a generator."""
    return [item async for taken in slices(queries, begin) for item in taken]


def next_slice(items: Iterator[T | None], slice_s: float = SLICE_S) -> list[T] | None:
    """The items of the next `slice_s`; None at the end."""
    taken: list[T] = []
    until_s = time.perf_counter() + slice_s
    for item in items:
        if item is not None:
            taken.append(item)
        if time.perf_counter() >= until_s:
            return taken
    return taken or None
