"""The gate before the routes: who may call, and what happens until the journal is recovered.

    request ──> handler cached with the head? ──yes──> handler
                  │no
                  ▼
                OriginGuard ──refused──> 403
                  │
                  ▼
                recovered? ──yes──> App
                  │no
                  ▼
                wait up to RECOVERY_WAIT_S, then 503 (readyz: 503 at once; healthz: 200)

The check of hosts and origins and the choice of the handler depend on the head alone, so both are cached with it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from driftq.server import http
from driftq.server.access.origin_guard import OriginGuard
from driftq.server.handlers.responses import error_response

if TYPE_CHECKING:
    from driftq.server.access_log import AccessLog
    from driftq.server.app import App
    from driftq.server.settings import Settings

RECOVERY_WAIT_S = 20.0
WAITING_MAX = 1_000  # requests; more get 503 at once


class ReadinessGate:
    """Holds requests until recovery is complete, for a limited time; then passes them to the routes."""

    def __init__(self, settings: Settings, access_log: AccessLog) -> None:
        self.app: App | None = None
        self._recovered: asyncio.Future[App] = asyncio.get_running_loop().create_future()
        self._waiting = 0
        self._guard = OriginGuard(settings)
        self._access_log = access_log

    def __call__(self, request: http.Request) -> http.Answer:
        if self._access_log.enabled:
            self._access_log.on_request(request)
        handler = request.head.handler
        if handler is not None:
            return handler(request)  # type: ignore[no-any-return]
        refused = self._guard.refusal(request)
        if refused is not None:
            return refused
        if self.app is not None:
            return self.app(request)
        if request.raw_path == b"/v1/healthz":
            return http.Response(200, b'{"status":"ok"}\n')
        if request.raw_path == b"/v1/readyz" or self._waiting >= WAITING_MAX:
            return _recovering()
        return self._wait(request)

    def open(self, app: App) -> None:
        self.app = app
        self._recovered.set_result(app)

    async def _wait(self, request: http.Request) -> http.Reply:
        self._waiting += 1
        try:
            app = await asyncio.wait_for(asyncio.shield(self._recovered), RECOVERY_WAIT_S)
        except TimeoutError:
            return _recovering()
        finally:
            self._waiting -= 1
        return await http.reply_of(app(request))


def _recovering() -> http.Response:
    headers = [("Retry-After", "1")]
    return error_response(503, "UNAVAILABLE", "recovering: not ready yet", {"retry_after_ms": 1_000}, headers)
