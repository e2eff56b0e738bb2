"""Hooks of workers: what runs when a process starts and ends, and around each attempt at a message.

    startup(context)                     once, before the first claim
        around(message)                  a context manager around everything below
            before(message)
            the handler
            after(message, result)       it returned
            on_failure(message, error)   it raised, or took too long
        on_dead(message, reason)         the broker has confirmed: the message is a dead letter now
    shutdown(context)                    once, after the last settlement

A `Middleware` is an object with some of these methods; `Hooks` is one that is made of functions. The first of a list is
the outermost: what the second raises, the first sees as a failure. Hooks may be plain or async, whatever the handler
is. An error in `before` ends the attempt as one of the handler would. Errors in `after`, `on_failure` and `on_dead` are
logged: they come too late to change anything.

A worker without middleware is called directly: `HookChain.of` returns None, and nothing here runs.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from driftq.client.claims import Release
from driftq.client.errors import Busy, InvalidCall

if TYPE_CHECKING:
    from driftq.client.worker.attempt import AnyMessage
    from driftq.client.worker.options import Handler

logger = logging.getLogger("driftq.worker")

F = TypeVar("F", bound=Callable[..., Any])


class WorkerContext(dict[str, Any]):
    """Values that live as long as a run of workers: `startup` puts them in, handlers read them."""


_context: ContextVar[WorkerContext] = ContextVar("driftq_context")


def current_context() -> WorkerContext:
    """The values that `startup` hooks stored: connections, clients, models.

    Raises `InvalidCall` outside of a worker.
    """
    context = _context.get(None)
    if context is None:
        raise InvalidCall("there is no context: this code was not called by a worker")
    return context


def current_context_or_new() -> WorkerContext:
    context = _context.get(None)
    return context if context is not None else WorkerContext()


def enter_context(context: WorkerContext) -> None:
    """Make this the context of the current task or thread."""
    _context.set(context)


class Middleware:
    """Base of middleware: override the hooks that you need. Every hook may be plain or async, except `around`."""

    def startup(self, context: WorkerContext) -> Any:
        """Before the first claim of a process. An error ends the process."""

    def shutdown(self, context: WorkerContext) -> Any:
        """After the last settlement of a process."""

    def around(self, message: Any) -> AbstractContextManager[Any] | None:
        """A context manager around the attempt, entered in the thread or task of the handler; None for none."""

    def before(self, message: Any) -> Any:
        """Before the handler. An error ends the attempt, as an error of the handler does."""

    def after(self, message: Any, result: Any) -> Any:
        """The handler returned `result`. The message is acked after this."""

    def on_failure(self, message: Any, error: BaseException) -> Any:
        """The attempt failed. Not for `Release`, which is no failure."""

    def on_dead(self, message: Any, reason: str) -> Any:
        """The message became a dead letter, by this attempt. One whose worker dies has none to call."""

    def functions(self, name: str) -> Sequence[Callable[..., Any]]:
        """The functions to call for a hook: none if it is not overridden."""
        if getattr(type(self), name) is getattr(Middleware, name):
            return ()
        return (getattr(self, name),)


class Hooks(Middleware):
    """Middleware made of functions: `hooks = driftq.Hooks()`, then `@hooks.startup` before each function."""

    def __init__(self) -> None:
        self._functions: dict[str, list[Callable[..., Any]]] = {}

    def functions(self, name: str) -> Sequence[Callable[..., Any]]:
        return self._functions.get(name, ())

    def _add(self, name: str, function: F) -> F:
        self._functions.setdefault(name, []).append(function)
        return function

    def startup(self, function: F) -> F:
        """Call this with the context before the first claim."""
        return self._add("startup", function)

    def shutdown(self, function: F) -> F:
        """Call this with the context after the last settlement."""
        return self._add("shutdown", function)

    def around(self, function: F) -> F:
        """Call this with each message; it returns a context manager (`@contextlib.contextmanager`)."""
        return self._add("around", function)

    def before(self, function: F) -> F:
        """Call this with each message before its handler."""
        return self._add("before", function)

    def after(self, function: F) -> F:  # type: ignore[override]
        """Call this with each message and what its handler returned."""
        return self._add("after", function)

    def on_failure(self, function: F) -> F:  # type: ignore[override]
        """Call this with each message whose attempt failed, and the error."""
        return self._add("on_failure", function)

    def on_dead(self, function: F) -> F:  # type: ignore[override]
        """Call this with each message that became a dead letter, and the reason."""
        return self._add("on_dead", function)


class _Layer(NamedTuple):
    """The hooks of one middleware around an attempt."""

    around: Sequence[Callable[..., Any]]
    before: Sequence[Callable[..., Any]]
    after: Sequence[Callable[..., Any]]
    on_failure: Sequence[Callable[..., Any]]


class HookChain:
    """The middleware of one worker."""

    def __init__(self, layers: Sequence[_Layer], on_dead: Sequence[Callable[..., Any]]) -> None:
        self._layers = layers
        self.on_dead = on_dead
        self.on_failure = [hook for layer in reversed(layers) for hook in layer.on_failure]
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def of(cls, middleware: Iterable[Middleware]) -> HookChain | None:
        """None if no hook of an attempt is used."""
        every = checked(middleware)
        layers = [_Layer(*(tuple(item.functions(name)) for name in _Layer._fields)) for item in every]
        layers = [layer for layer in layers if any(layer)]
        on_dead = [hook for item in every for hook in item.functions("on_dead")]
        return cls(layers, on_dead) if layers or on_dead else None

    def wrapped(self, handler: Handler, *, is_async: bool) -> Handler:
        """The handler with all hooks around it. Hooks of a plain handler run on its thread."""
        loop = asyncio.get_running_loop()
        for layer in reversed(self._layers):
            handler = _async_layer(layer, handler) if is_async else _plain_layer(layer, handler, loop)
        return handler

    def notify(self, hooks: Sequence[Callable[..., Any]], *arguments: Any) -> None:
        """Call hooks from the event loop, without waiting for them. Plain ones run on a thread."""
        task = asyncio.create_task(self._notify(hooks, arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self, hooks: Sequence[Callable[..., Any]], arguments: tuple[Any, ...]) -> None:
        for hook in hooks:
            try:
                if inspect.iscoroutinefunction(hook):
                    await hook(*arguments)
                else:
                    await _finished(await asyncio.to_thread(hook, *arguments))
            except Exception as error:
                _log(hook, error)

    async def finish(self) -> None:
        """Wait for the hooks that were notified."""
        while self._tasks:
            await asyncio.gather(*self._tasks)


def checked(middleware: Iterable[Middleware]) -> list[Middleware]:
    every = list(middleware)
    for item in every:
        if not isinstance(item, Middleware):
            raise InvalidCall(f"{item!r} is no middleware: derive from driftq.Middleware, or use driftq.Hooks()")
    return every


def is_failure(error: BaseException) -> bool:
    """Whether an error of a handler is a failed attempt. A release is none."""
    return not isinstance(error, Release | Busy)


def _async_layer(layer: _Layer, inner: Handler) -> Handler:
    around, before, after, on_failure = layer

    async def call(message: AnyMessage) -> Any:
        with _entered(around, message):
            for hook in before:
                await _finished(hook(message))
            try:
                result = await inner(message)
            except (Exception, SystemExit) as error:
                if is_failure(error):
                    for hook in on_failure:
                        await _quiet(hook, message, error)
                raise
            for hook in after:
                await _quiet(hook, message, result)
            return result

    return call


def _plain_layer(layer: _Layer, inner: Handler, loop: asyncio.AbstractEventLoop) -> Handler:
    around, before, after, on_failure = layer

    def finished(result: Any) -> Any:
        """An async hook of a plain handler runs on the event loop."""
        return (
            asyncio.run_coroutine_threadsafe(_finished(result), loop).result()
            if inspect.isawaitable(result)
            else result
        )

    def quiet(hook: Callable[..., Any], *arguments: Any) -> None:
        try:
            finished(hook(*arguments))
        except Exception as error:
            _log(hook, error)

    def call(message: AnyMessage) -> Any:
        with _entered(around, message):
            for hook in before:
                finished(hook(message))
            try:
                result = inner(message)
            except (Exception, SystemExit) as error:
                if is_failure(error) and not message.lost:  # lost: the thread ran on after the attempt had ended
                    for hook in on_failure:
                        quiet(hook, message, error)
                raise
            if not message.lost:
                for hook in after:
                    quiet(hook, message, result)
            return result

    return call


def _entered(around: Sequence[Callable[..., Any]], message: AnyMessage) -> AbstractContextManager[Any]:
    if not around:
        return nullcontext()
    if len(around) == 1:
        return around[0](message) or nullcontext()
    from contextlib import ExitStack  # noqa: PLC0415  # only `Hooks` may have several

    stack = ExitStack()
    with stack:
        for hook in around:
            stack.enter_context(hook(message) or nullcontext())
        return stack.pop_all()


async def _finished(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result


async def _quiet(hook: Callable[..., Any], *arguments: Any) -> None:
    try:
        await _finished(hook(*arguments))
    except Exception as error:
        _log(hook, error)


def _log(hook: Callable[..., Any], error: BaseException) -> None:
    logger.error("the hook %s failed", getattr(hook, "__qualname__", hook), exc_info=error)


# --- start and end of a run ---


class RunHooks:
    """`async with` calls the `startup` hooks of all middleware, and in the end `shutdown` of what was started."""

    def __init__(self, middleware: Iterable[Middleware]) -> None:
        self.context = WorkerContext()
        self._middleware = list({id(item): item for item in checked(middleware)}.values())  # workers may share one
        self._started: list[Middleware] = []

    async def __aenter__(self) -> WorkerContext:
        enter_context(self.context)
        try:
            for item in self._middleware:
                self._started.append(item)
                for hook in item.functions("startup"):
                    await _finished(hook(self.context))
        except BaseException:
            self._started.pop()
            await self._shut_down()
            raise
        return self.context

    async def __aexit__(self, *_: object) -> None:
        await self._shut_down()

    async def _shut_down(self) -> None:
        for item in reversed(self._started):
            for hook in item.functions("shutdown"):
                await _quiet(hook, self.context)
