"""One word for both clients: a function that builds a call becomes a method that blocks or one that is awaited.

    class TopicWords:
        create = word(calls.create_topic)

    class Topics(TopicWords, Blocking): ...          topics.create("orders") -> TopicReply
    class AsyncTopics(TopicWords, Awaiting): ...     await topics.create("orders") -> TopicReply

Signature and documentation are those of the function, for people, editors and type checkers alike.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

if TYPE_CHECKING:
    from driftq.client.transport.async_transport import AsyncTransport
    from driftq.client.transport.sansio import Asked
    from driftq.client.transport.sync_transport import Transport

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")


class SyncApi:
    """Whose words block."""

    _transport: Transport

    def __init__(self, transport: Transport) -> None:
        self._transport = transport


class AsyncApi:
    """Whose words are awaited."""

    _transport: AsyncTransport

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport


class endpoint(Generic[P, T]):
    """A word that needs nothing but its arguments."""

    def __init__(self, build: Callable[P, Asked[T]]) -> None:
        self._build = build
        self.__doc__ = build.__doc__
        self.__wrapped__ = build

    @overload
    def __get__(self, instance: None, owner: type) -> endpoint[P, T]: ...
    @overload
    def __get__(self, instance: SyncApi, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: AsyncApi, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        return bound(self._build, (), instance._transport.ask)  # type: ignore[attr-defined]


class bound_endpoint(Generic[S, P, T]):
    """A word that also needs its owner: decorates a method that builds a call."""

    def __init__(self, build: Callable[Concatenate[S, P], Asked[T]]) -> None:
        self._build = build
        self.__doc__ = build.__doc__
        self.__wrapped__ = build

    @overload
    def __get__(self, instance: None, owner: type) -> bound_endpoint[S, P, T]: ...
    @overload
    def __get__(self, instance: SyncApi, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: AsyncApi, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        return bound(self._build, (instance,), instance._transport.ask)  # type: ignore[attr-defined]


def bound(build: Callable[..., Any], first: tuple[object, ...], send: Callable[..., Any]) -> Callable[..., Any]:
    """A word with its owner, ready to be called: a real function, so that `help` shows what it takes."""
    ready = functools.partial(build, *first) if first else build

    @functools.wraps(build)
    def call(*args: Any, **kwargs: Any) -> Any:
        return send(ready(*args, **kwargs))

    call.__wrapped__ = ready  # its signature, without the owner
    return call
