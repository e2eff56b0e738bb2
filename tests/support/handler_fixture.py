"""The server's handlers without sockets: a real engine in memory, with a clock that the test moves, called through the
route table as the connection layer calls it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from driftq.core.model.limits import BrokerLimits
from driftq.engine.engine import Engine
from driftq.server.app import App
from driftq.server.handlers.codec import bad_request
from driftq.server.handlers.context import Context
from driftq.server.http import BadRequest, Deferred, PieceResponse, Request, Response
from driftq.server.http.request import RequestHead
from driftq.server.http.response import made
from driftq.server.metrics.registry import Metrics, Sources
from driftq.server.router.caller import RouterCaller
from driftq.server.router.routers import Router
from driftq.server.routes import routes
from driftq.server.settings import Settings
from driftq.testing.clock import HandClock


class HandlerReply(NamedTuple):
    status: int
    body: Any


class _Waiter:
    """Receives a deferred response."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def set_reply(self, reply: object) -> None:
        self.future.set_result(reply)

    def set_error(self, error: BaseException) -> None:
        self.future.set_exception(error)


class HandlerFixture:
    """`call` returns status and body; a body that is not JSON stays bytes."""

    def __init__(self, engine: Engine, clock: HandClock, settings: Settings, router: RouterCaller | None) -> None:
        self.engine = engine
        self.clock = clock
        self.router = router
        self.last_headers = b""  # the lines that the last response added to the usual ones
        self.metrics = Metrics(engine, Sources(router=router))
        self.app = App(routes(Context(engine, settings, router, self.metrics)))

    async def call(self, method: str, target: str, body: object = None, **headers: str) -> HandlerReply:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        fields = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        request = Request(RequestHead(method, target.encode(), fields), data, "127.0.0.1")
        try:
            response: Any = self.app(request)
            if isinstance(response, Deferred):
                waiter = _Waiter()
                response.bind(waiter)
                response = await waiter.future
            elif not isinstance(response, Response):
                response = await response
        except BadRequest as error:
            response = bad_request(error.status, error.message)
        response = made(response)
        self.last_headers = getattr(response, "extra", b"")
        if isinstance(response, PieceResponse):
            response = Response(response.status, list(iter(response.source.next_piece, b"")))
        raw = bytes(response.body) if isinstance(response.body, bytes) else b"".join(response.body)
        try:
            return HandlerReply(response.status, json.loads(raw) if raw else None)
        except ValueError:
            return HandlerReply(response.status, raw)


@asynccontextmanager
async def handler_fixture(
    router: Router | None = None,
    *,
    limits: BrokerLimits | None = None,
    timeout_ms: int = 200,
    settings: Settings | None = None,
) -> AsyncIterator[HandlerFixture]:
    clock = HandClock()
    engine = Engine.in_memory(limits=limits, clock=clock)
    caller = RouterCaller(router, engine, timeout_ms) if router is not None else None
    try:
        yield HandlerFixture(engine, clock, settings or Settings(), caller)
    finally:
        if router is not None:
            await router.close()
        await engine.close()
