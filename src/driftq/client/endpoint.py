"""Descriptors that make one function a method of both clients: blocking in `SyncApi`, awaited in `AsyncApi`.

    class TopicMethods:
        create = endpoint(admin.create_topic)        # a function that builds a `Call`

    class Topics(TopicMethods, SyncApi): ...         topics.create("orders") -> TopicReply
    class AsyncTopics(TopicMethods, AsyncApi): ...   await topics.create("orders") -> TopicReply

`endpoint` wraps a function of its arguments; `bound_endpoint` decorates a method that also needs its object. Signature
and docstring are those of the wrapped function, also for `help`, editors and type checkers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

if TYPE_CHECKING:
    from driftq.client.transport.async_transport import AsyncTransport
    from driftq.client.transport.sansio import Operation
    from driftq.client.transport.sync_transport import Transport

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")


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
    """A method that needs nothing but its arguments."""

    def __init__(self, build: Callable[P, Operation[T]]) -> None:
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
        return bind(self._build, (), instance._transport.execute)  # type: ignore[attr-defined]


class bound_endpoint(Generic[S, P, T]):
    """A method that also needs its object: decorates a method that builds a call or a flow."""

    def __init__(self, build: Callable[Concatenate[S, P], Operation[T]]) -> None:
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
        return bind(self._build, (instance,), instance._transport.execute)  # type: ignore[attr-defined]


def bind(build: Callable[..., Any], first: tuple[object, ...], execute: Callable[..., Any]) -> Callable[..., Any]:
    """A method bound to its object: a real function, so that `help` shows its parameters."""
    build_call = functools.partial(build, *first) if first else build

    @functools.wraps(build)
    def call(*args: Any, **kwargs: Any) -> Any:
        return execute(build_call(*args, **kwargs))

    call.__wrapped__ = build_call  # the signature without `self`
    return call
