"""Long reads in slices: a generator looks at the state for a few milliseconds at a time. Other requests run between.

Each slice is a query, so its items are returned when everything that it saw is durable. The state changes between two
slices: a generator must expect that what it looks at next was deleted. It yields None where there is nothing to return
yet and a slice may end, and `ColdRange` where it needs records that are only in the archive: it must catch it itself,
because a generator that raises has ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, TypeVar

from driftq.storage.cold_segments import ColdRange

if TYPE_CHECKING:
    from driftq.engine.queries import Queries, StateView

T = TypeVar("T")

SLICE_S = 0.004


async def slices(
    queries: Queries, begin: Callable[[StateView], Iterator[T | ColdRange | None]]
) -> AsyncIterator[list[T]]:
    """The items of a generator, a slice at a time. `begin` makes it from the first view."""
    items = await queries.result(begin)
    while (taken := await queries.result(lambda _: next_slice(items))) is not None:
        yield taken
        await asyncio.sleep(0)


def when_here(look: Callable[[], T]) -> Generator[ColdRange, None, T]:
    """For `yield from` in such a generator: what a look returns when the records that it needs are here."""
    while True:
        try:
            return look()
        except ColdRange as cold:
            yield cold


async def collected(queries: Queries, begin: Callable[[StateView], Iterator[T | ColdRange | None]]) -> list[T]:
    """All items of a generator."""
    return [item async for taken in slices(queries, begin) for item in taken]


async def finished(steps: Iterator[None]) -> None:
    """Run a generator to its end, a slice at a time."""
    while True:
        if next_slice(steps) is None:
            return
        await asyncio.sleep(0)


def next_slice(items: Iterator[T | ColdRange | None], slice_s: float = SLICE_S) -> list[T] | None:
    """The items of the next `slice_s`; None at the end."""
    taken: list[T] = []
    until_s = time.perf_counter() + slice_s
    try:
        for item in items:
            if isinstance(item, ColdRange):
                if not taken:
                    break  # the generator continues when the records are here
                return taken  # it yields the same again
            if item is not None:
                taken.append(item)
            if time.perf_counter() >= until_s:
                return taken
        else:
            return taken or None
    except ColdRange as cold:
        raise RuntimeError("a generator that raises has ended: it must yield what it waits for") from cold
    raise item
