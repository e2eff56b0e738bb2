"""The server's routes without sockets: a real engine in memory, with a clock turned by hand, asked through the route
table as the connection layer would ask."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from driftq.core.model.limits import BrokerLimits
from driftq.engine.clock import ClockReading
from driftq.engine.engine import Engine
from driftq.server.app import App, routes
from driftq.server.handlers.context import Context
from driftq.server.handlers.responses import bad_request
from driftq.server.http import BadRequest, Deferred, Request, Response
from driftq.server.http.request import RequestHead
from driftq.server.metrics.registry import Metrics, Sources
from driftq.server.router.caller import RouterCaller
from driftq.server.router.protocol import Router
from driftq.server.settings import Settings
from tests.support.broker_fixture import START_MS


class TurnedClock:
    """The engine's clock, turned by the test."""

    def __init__(self) -> None:
        self.at_ms = START_MS

    def now_ms(self) -> int:
        return self.at_ms

    def start_at(self, at_ms: int) -> None:
        self.at_ms = max(self.at_ms, at_ms)

    def read(self) -> ClockReading:
        return ClockReading(self.at_ms, self.at_ms, False)

    def set_to(self, at_ms: int) -> None:
        self.at_ms = at_ms


class Shown(NamedTuple):
    status: int
    body: Any


class _Waiter:
    """Takes a deferred answer."""

    def __init__(self) -> None:
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def set_reply(self, reply: object) -> None:
        self.future.set_result(reply)

    def set_error(self, error: BaseException) -> None:
        self.future.set_exception(error)


class FaceDesk:
    """`call` gives status and body; what is not JSON stays bytes."""

    def __init__(self, engine: Engine, clock: TurnedClock, settings: Settings, router: RouterCaller | None) -> None:
        self.engine = engine
        self.clock = clock
        self.router = router
        self.metrics = Metrics(engine, Sources(router=router))
        self.app = App(routes(Context(engine, settings, router, self.metrics)))

    async def call(self, method: str, target: str, body: object = None, **headers: str) -> Shown:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        fields = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        request = Request(RequestHead(method, target.encode(), fields), data, "127.0.0.1")
        try:
            answer: Any = self.app(request)
            if isinstance(answer, Deferred):
                waiter = _Waiter()
                answer.bind(waiter)
                answer = await waiter.future
            elif not isinstance(answer, Response):
                answer = await answer
        except BadRequest as error:
            answer = bad_request(error.status, error.message)
        raw = bytes(answer.body) if isinstance(answer.body, bytes) else b"".join(answer.body)
        try:
            return Shown(answer.status, json.loads(raw) if raw else None)
        except ValueError:
            return Shown(answer.status, raw)


@asynccontextmanager
async def desk(
    router: Router | None = None,
    *,
    limits: BrokerLimits | None = None,
    timeout_ms: int = 200,
    settings: Settings | None = None,
) -> AsyncIterator[FaceDesk]:
    clock = TurnedClock()
    engine = Engine.in_memory(limits=limits, clock=clock)
    asker = RouterCaller(router, engine, timeout_ms) if router is not None else None
    try:
        yield FaceDesk(engine, clock, settings or Settings(), asker)
    finally:
        if router is not None:
            await router.close()
        await engine.close()
