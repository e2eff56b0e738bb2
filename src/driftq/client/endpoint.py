"""Descriptors that make one function a method of both clients: blocking in `SyncApi`, awaited in `AsyncApi`.

    class TopicMethods:
        create = endpoint(admin.create_topic)        # a function that builds a `Call`
        list = listing(admin.list_topics)            # a function that builds `Pages`
        iterate = iterating(admin.list_topics)

    class Topics(TopicMethods, SyncApi): ...         topics.create("orders") -> TopicReply
                                                     topics.list() -> list[str]
                                                     topics.iterate() -> Iterator[str]
    class AsyncTopics(TopicMethods, AsyncApi): ...   await topics.create("orders") -> TopicReply

`endpoint` wraps a function of its arguments; `bound_endpoint` decorates a method that also needs its object. `listing`
and `iterating` follow the cursor of a list that the broker returns in pages. Parameters and docstring are those of the
wrapped function, also for `help`, editors and type checkers.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, overload

from driftq.client.pending_call import ForgottenCalls, Pending

if TYPE_CHECKING:
    from driftq.client.transport.async_transport import AsyncTransport
    from driftq.client.transport.sansio import Call, Operation
    from driftq.client.transport.sync_transport import Transport

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")

PAGE = 1_000  # entries in a request


class SyncApi:
    """Base of blocking API classes."""

    _transport: Transport

    def __init__(self, transport: Transport) -> None:
        self._transport = transport


class AsyncApi:
    """Base of async API classes."""

    _transport: AsyncTransport

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport


class endpoint(Generic[P, T]):
    """A method that needs nothing but its arguments. It is bound once for each object."""

    def __init__(self, build: Callable[P, Operation[T]]) -> None:
        self._build = build
        self._name = ""
        functools.update_wrapper(self, build)  # for `help` on the class

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> endpoint[P, T]: ...
    @overload
    def __get__(self, instance: SyncApi, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: AsyncApi, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        returns = "{}" if isinstance(instance, SyncApi) else "Awaitable[{}]"
        bound = bind(self._build, (), executor(instance, self._name), returns)
        instance.__dict__[self._name] = bound
        return bound

    def __call__(self, instance: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Called on the class: the first argument is the object."""
        return self.__get__(instance, type(instance))(*args, **kwargs)


class bound_endpoint(Generic[S, P, T]):
    """A method that also needs its object: decorates a method that builds a call or a flow."""

    def __init__(self, build: Callable[Concatenate[S, P], Operation[T]]) -> None:
        self._build = build
        functools.update_wrapper(self, build)  # for `help` on the class

    @overload
    def __get__(self, instance: None, owner: type) -> bound_endpoint[S, P, T]: ...
    @overload
    def __get__(self, instance: SyncApi, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: AsyncApi, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        return bind(self._build, (instance,), executor(instance, self._build.__name__))

    def __call__(self, instance: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Called on the class: the first argument is the object."""
        return self.__get__(instance, type(instance))(*args, **kwargs)


def executor(instance: Any, name: str) -> Callable[[Any], Any]:
    """What carries out a call: the transport. An async call that is not awaited is an error."""
    transport = instance._transport
    if not isinstance(instance, AsyncApi):
        execute: Callable[[Any], Any] = transport.execute
        return execute
    forgotten: ForgottenCalls = transport.forgotten

    def execute_later(operation: Any) -> Pending[Any]:
        forgotten.check()
        return Pending(transport.execute(operation), forgotten, name)

    return execute_later


def bind(
    build: Callable[..., Any], first: tuple[object, ...], execute: Callable[..., Any], returns: str = ""
) -> Callable[..., Any]:
    """A method bound to its object: a real function, so that `help` shows its parameters, and with `returns`, which has
    a place for the `T` of `Call[T]`, what it returns."""
    build_call = functools.partial(build, *first) if first else build

    @functools.wraps(build)
    def call(*args: Any, **kwargs: Any) -> Any:
        return execute(build_call(*args, **kwargs))

    call.__wrapped__ = build_call  # the signature without `self`
    if returns:
        call.__signature__ = signature_for_help(build, returns)  # type: ignore[attr-defined]
    return call


@functools.lru_cache(1_000)
def signature_for_help(build: Callable[..., Any], returns: str) -> inspect.Signature:
    signature = inspect.signature(build)
    result = str(signature.return_annotation).partition("[")[2].removesuffix("]")
    shown = [item.replace(annotation=_Text(item.annotation)) for item in signature.parameters.values()]
    return signature.replace(parameters=shown, return_annotation=_Text(returns.format(result)))


class _Text(str):
    """An annotation that `help` shows without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


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
        functools.update_wrapper(self, build)  # for `help` on the class

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
            return bind(self._build, (), functools.partial(collect, instance._transport), "list[{}]")
        transport: AsyncTransport = instance._transport  # type: ignore[attr-defined]

        def collect_later(pages: Pages[T]) -> Pending[list[T]]:
            transport.forgotten.check()
            return Pending(collect_async(transport, pages), transport.forgotten, self._build.__name__)

        return bind(self._build, (), collect_later, "Awaitable[list[{}]]")

    def __call__(self, instance: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Called on the class: the first argument is the object."""
        return self.__get__(instance, type(instance))(*args, **kwargs)


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
        functools.update_wrapper(self, build)  # for `help` on the class

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
            return bind(self._build, (), functools.partial(_iterate, instance._transport), "Iterator[{}]")
        transport: AsyncTransport = instance._transport  # type: ignore[attr-defined]
        return bind(self._build, (), functools.partial(_iterate_async, transport), "AsyncIterator[{}]")

    def __call__(self, instance: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Called on the class: the first argument is the object."""
        return self.__get__(instance, type(instance))(*args, **kwargs)


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
