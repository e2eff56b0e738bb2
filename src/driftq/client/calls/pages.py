"""Lists that the broker returns in pages: descriptors like `endpoint`, for a whole list or entry by entry.

class TopicMethods:
    list = listing(admin.list_topics)            topics.list() -> list[str]
    iterate = iterating(admin.list_topics)       topics.iterate() -> Iterator[str]
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar, overload

from driftq.client.endpoint import AsyncApi, SyncApi, bind

if TYPE_CHECKING:
    from driftq.client.transport.async_transport import AsyncTransport
    from driftq.client.transport.sansio import Call
    from driftq.client.transport.sync_transport import Transport

P = ParamSpec("P")
T = TypeVar("T")

PAGE = 1_000  # entries in a request


class Page(NamedTuple, Generic[T]):
    """A part of a list. `after` is the cursor of the next page; None on the last."""

    entries: list[T]
    after: str | None


class Pages(NamedTuple, Generic[T]):
    """A list in pages: `page(after, size)` builds the call for one, `limit` bounds the entries of all pages."""

    page: Callable[[str, int], Call[Page[T]]]
    limit: int | None = None

    def size(self, received: int) -> int:
        """The size of the next page after so many entries."""
        return PAGE if self.limit is None else min(PAGE, self.limit - received)


class listing(Generic[P, T]):
    """A method that returns a whole list: it follows the broker's cursor."""

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
            return bind(self._build, (), partial(collect, instance._transport))
        return bind(self._build, (), partial(collect_async, instance._transport))  # type: ignore[attr-defined]


def collect(transport: Transport, pages: Pages[T]) -> list[T]:
    entries: list[T] = []
    after: str | None = ""
    while after is not None and (size := pages.size(len(entries))) > 0:
        page = transport.execute(pages.page(after, size))
        entries += page.entries
        after = page.after
    return entries


async def collect_async(transport: AsyncTransport, pages: Pages[T]) -> list[T]:
    entries: list[T] = []
    after: str | None = ""
    while after is not None and (size := pages.size(len(entries))) > 0:
        page = await transport.execute(pages.page(after, size))
        entries += page.entries
        after = page.after
    return entries


class iterating(Generic[P, T]):
    """A method that iterates over a list: a page is requested when it is needed."""

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
            return bind(self._build, (), partial(_iterate, instance._transport))
        return bind(self._build, (), partial(_iterate_async, instance._transport))  # type: ignore[attr-defined]


def _iterate(transport: Transport, pages: Pages[T]) -> Iterator[T]:
    received = 0
    after: str | None = ""
    while after is not None and (size := pages.size(received)) > 0:
        page = transport.execute(pages.page(after, size))
        yield from page.entries
        received += len(page.entries)
        after = page.after


async def _iterate_async(transport: AsyncTransport, pages: Pages[T]) -> AsyncIterator[T]:
    received = 0
    after: str | None = ""
    while after is not None and (size := pages.size(received)) > 0:
        page = await transport.execute(pages.page(after, size))
        for entry in page.entries:
            yield entry
        received += len(page.entries)
        after = page.after
