"""The routers: a file of rules, a Python function, or a URL. `make_router` makes the one that the settings name.

A router takes a `RouteInput` and returns a `RouteDecision`, or None to leave the message as it is. It cannot change the
payload and cannot stop a message: if it fails or takes too long, the message is produced unrouted. Both types are in
`driftq.wire.router`, because pipelines use them too. When and how often a router is called is up to `RouterCaller`.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import inspect
import queue
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from driftq.server.outbound.address_policy import AddressRefused
from driftq.server.outbound.client import OutboundFailed, target_of
from driftq.settings.loader import SettingsError
from driftq.wire.router import (
    BadRouteDecision,
    BadRules,
    RouteDecision,
    RouteInput,
    Rules,
    checked,
    load_rules,
    parse_rules,
)

if TYPE_CHECKING:
    from driftq.server.outbound.client import OutboundClient
    from driftq.server.settings import RouterSettings


class Router(Protocol):
    """Implemented by rules, Python and webhook routers. If `inline`, `route` returns its decision at once."""

    kind: str
    inline: bool

    def route(self, message: RouteInput) -> RouteDecision | Awaitable[RouteDecision | None] | None:
        """The decision. An exception counts as none."""

    async def close(self) -> None: ...


def make_router(settings: RouterSettings, outbound: OutboundClient) -> Router | None:
    """The router of the settings, if there is one. Raises `SettingsError`: an error in its target is reported at the
    start, not at the first message."""
    if settings.kind == "none":
        return None
    if not settings.target:
        raise SettingsError(f"router.kind = {settings.kind!r} needs router.target")
    if settings.kind == "rules":
        return RulesRouter.load(settings.target)
    if settings.kind == "webhook":
        return WebhookRouter(settings.target, outbound)
    call = load_function(settings.target)
    return PythonRouter(call, inline=settings.inline, threads=settings.threads)


# --- rules ---


class RulesRouter:
    """Rules from a file (`driftq.wire.router`): the first that matches decides."""

    kind = "rules"
    inline = True

    def __init__(self, rules: Rules) -> None:
        self.rules = rules.rules
        self._decide = rules.decide

    @classmethod
    def load(cls, path: str) -> RulesRouter:
        """Read a file of rules; raises `SettingsError` that names the file, the rule and what is wrong."""
        try:
            return cls(load_rules(path))
        except BadRules as error:
            raise SettingsError(f"router.target: {error}") from None

    @classmethod
    def parse(cls, text: str, path: str = "rules") -> RulesRouter:
        """The rules in a text; `path` names it in errors."""
        try:
            return cls(parse_rules(text, path))
        except BadRules as error:
            raise SettingsError(str(error)) from None

    def route(self, message: RouteInput) -> RouteDecision | None:
        return self._decide(message)

    async def close(self) -> None:
        pass


# --- a function ---
#
# A router written in Python, named `module:attribute`: a function, a coroutine function, or an object (or class) with a
# method `route`. Coroutine functions run on the event loop of the server. Plain functions run on a few threads, so that
# a slow call can time out; with `inline` they are called on the loop, which is faster, but only for functions that
# never block.


def load_function(target: str) -> Callable[[RouteInput], Any]:
    """The function named `module:attribute`. Modules are also searched in the current folder."""
    module_name, colon, path = target.partition(":")
    if not (module_name and colon and path):
        raise SettingsError(f"router.target must be module:attribute, not {target!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        target_object: Any = importlib.import_module(module_name)
        for name in path.split("."):
            target_object = getattr(target_object, name)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"router.target {target}: {error}") from error
    if inspect.isclass(target_object):
        target_object = target_object()
    call = getattr(target_object, "route", target_object)
    if not callable(call):
        raise SettingsError(f"router.target {target} is not callable and has no method `route`")
    return call  # type: ignore[no-any-return]


def is_async(call: Callable[[RouteInput], Any]) -> bool:
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(type(call).__call__)


class PythonRouter:
    """Calls a function: inline, as a coroutine, or on a thread."""

    kind = "python"

    def __init__(self, call: Callable[[RouteInput], Any], *, inline: bool = False, threads: int = 4) -> None:
        self._call = call
        self._async = is_async(call)
        self.inline = inline and not self._async
        self._threads = _Threads(threads) if not (self.inline or self._async) else None

    def route(self, message: RouteInput) -> RouteDecision | Awaitable[RouteDecision | None] | None:
        return checked(self._call(message)) if self.inline else self._route_async(message)

    async def _route_async(self, message: RouteInput) -> RouteDecision | None:
        if self._threads is None:
            return checked(await self._call(message))
        return checked(await self._threads.run(partial(self._call, message)))

    async def close(self) -> None:
        if self._threads is not None:
            self._threads.close()


class _Threads:
    """Daemon threads: a stuck call does not keep the process from exiting."""

    def __init__(self, count: int) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._count = count
        for number in range(count):
            threading.Thread(target=self._work, name=f"driftq-router-{number}", daemon=True).start()

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def work() -> None:
            if future.cancelled():
                return  # timed out while it was queued
            try:
                result = call()
            except BaseException as error:
                loop.call_soon_threadsafe(_set_error, future, error)
            else:
                loop.call_soon_threadsafe(_set_result, future, result)

        self._tasks.put(work)
        return future

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except RuntimeError:
                return  # the loop has ended

    def close(self) -> None:
        for _ in range(self._count):
            self._tasks.put(None)


def _set_result(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _set_error(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))


# --- a URL ---


class WebhookRouter:
    """Calls a router over HTTP: one POST with the message as JSON for each decision.

    The body is `{"topic", "key", "value" or "value_base64", "envelope", "task"}`. The response is `200` with a decision
    (`{"label", "target_topic", "partition_override", "meta"}`, or `null`), or `204` for none. Which addresses may be
    called and how large a response may be is up to `server.outbound`; the time limit is the caller's.
    """

    kind = "webhook"
    inline = False

    def __init__(self, url: str, outbound: OutboundClient) -> None:
        try:
            self._target = target_of(url)
            outbound.check(self._target)
        except AddressRefused as refused:
            raise SettingsError(f"router.target: {refused}") from None
        self._outbound = outbound

    async def route(self, message: RouteInput) -> RouteDecision | None:
        status, body = await self._outbound.post(self._target, encoded(message), "driftq-router", keep_alive=True)
        if status == 204:
            return None
        if status != 200:
            raise OutboundFailed(f"the router answered {status}")
        try:
            return checked(msgspec.json.decode(body))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRouteDecision(f"not JSON: {error}") from None

    async def close(self) -> None:
        """The outbound client closes the connections."""


def encoded(message: RouteInput) -> bytes:
    fields: dict[str, Any] = {"topic": message.topic, "key": message.key, "envelope": message.envelope}
    try:
        fields["value"] = message.value.decode()
    except UnicodeDecodeError:
        fields["value_base64"] = base64.b64encode(message.value).decode()
    if message.task:
        fields["task"] = message.task
    return msgspec.json.encode(fields)
