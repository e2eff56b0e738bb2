"""Lists that come in pages, followed by their cursor: whole, or entry by entry; blocking or awaited.

class TopicWords:
    list = listing(calls.list_topics)            topics.list() -> list[str]
    iterate = iterating(calls.list_topics)       topics.iterate() -> Iterator[str]
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

from driftq.client.endpoint import AsyncApi, SyncApi, bound

if TYPE_CHECKING:
    from driftq.client.transport.async_transport import AsyncTransport
    from driftq.client.transport.sansio import Call
    from driftq.client.transport.sync_transport import Transport

P = ParamSpec("P")
T = TypeVar("T")

PAGE = 1_000  # entries that are asked for at once


class Page(NamedTuple, Generic[T]):
    """A part of a list. `after` is what the next part is asked for with; None on the last."""

    entries: list[T]
    after: str | None


class Pages(NamedTuple, Generic[T]):
    """A list that comes in parts: how to ask for one (after what, how many at most), and how many are wanted in all."""

    page: Callable[[str, int], Call[Page[T]]]
    limit: int | None = None

    def size(self, got: int) -> int:
        return PAGE if self.limit is None else min(PAGE, self.limit - got)


class listing(Generic[P, T]):
    """A word whose answer is a whole list: it follows the cursor of the broker."""

    def __init__(self, build: Callable[P, Pages[T]]) -> None:
        self._build = build
        self.__doc__ = build.__doc__
        self.__wrapped__ = build

    @overload
    def __get__(self, instance: None, owner: type) -> listing[P, T]: ...
    @overload
    def __get__(self, instance: SyncApi, owner: type) -> Callable[P, list[T]]: ...
    @overload
    def __get__(self, instance: AsyncApi, owner: type) -> Callable[P, Coroutine[Any, Any, list[T]]]: ...

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        if isinstance(instance, SyncApi):
            return bound(self._build, (), partial(collected, instance._transport))
        return bound(self._build, (), partial(collected_async, instance._transport))  # type: ignore[attr-defined]


def collected(transport: Transport, pages: Pages[T]) -> list[T]:
    found: list[T] = []
    after: str | None = ""
    while after is not None and (size := pages.size(len(found))) > 0:
        page = transport.ask(pages.page(after, size))
        found += page.entries
        after = page.after
    return found


async def collected_async(transport: AsyncTransport, pages: Pages[T]) -> list[T]:
    found: list[T] = []
    after: str | None = ""
    while after is not None and (size := pages.size(len(found))) > 0:
        page = await transport.ask(pages.page(after, size))
        found += page.entries
        after = page.after
    return found


class iterating(Generic[P, T]):
    """The same, entry by entry: a page is asked for when it is needed."""

    def __init__(self, build: Callable[P, Pages[T]]) -> None:
        self._build = build
        self.__doc__ = build.__doc__
        self.__wrapped__ = build

    @overload
    def __get__(self, instance: None, owner: type) -> iterating[P, T]: ...
    @overload
    def __get__(self, instance: SyncApi, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, instance: AsyncApi, owner: type) -> Callable[P, AsyncIterator[T]]: ...

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        if isinstance(instance, SyncApi):
            return bound(self._build, (), partial(_each, instance._transport))
        return bound(self._build, (), partial(_each_async, instance._transport))  # type: ignore[attr-defined]


def _each(transport: Transport, pages: Pages[T]) -> Iterator[T]:
    got = 0
    after: str | None = ""
    while after is not None and (size := pages.size(got)) > 0:
        page = transport.ask(pages.page(after, size))
        yield from page.entries
        got += len(page.entries)
        after = page.after


async def _each_async(transport: AsyncTransport, pages: Pages[T]) -> AsyncIterator[T]:
    got = 0
    after: str | None = ""
    while after is not None and (size := pages.size(got)) > 0:
        page = await transport.ask(pages.page(after, size))
        for entry in page.entries:
            yield entry
        got += len(page.entries)
        after = page.after
