"""What a request passes before its handler: may this web origin call, is the broker ready, who calls?

    request ──> handler cached with the head? ──yes, and its identity is valid──> handler
                  │no
                  ▼
                OriginGuard ──refused──> 403
                  │
                  ▼
                recovered? ──yes──> App: Authenticator ──refused──> 401, 429
                  │no                 │
                  ▼                   ▼
                wait up to          right of the route ──refused──> 403, 404
                RECOVERY_WAIT_S,      │
                then 503              ▼
                                    handler ──a produce──> TenantRates ──refused──> 429

(While it waits, readyz is 503 at once and healthz 200.) The check of hosts and origins, the choice of the handler and
the credential depend on the head alone, so all of them are cached with it.
"""

from __future__ import annotations

import asyncio
from time import time
from typing import TYPE_CHECKING

from driftq.server.access.origins import OriginGuard
from driftq.server.handlers.codec import error_response
from driftq.server.http import Answer, Reply, Request, Response, reply_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from driftq.server.logs import AccessLog
    from driftq.server.settings import Settings


RECOVERY_WAIT_S = 20.0
WAITING_MAX = 1_000  # requests; more get 503 at once


class ReadinessGate:
    """Holds requests until recovery is complete, for a limited time; then passes them to the routes."""

    def __init__(self, settings: Settings, access_log: AccessLog) -> None:
        self.app: Callable[[Request], Answer] | None = None
        self._recovered: asyncio.Future[Callable[[Request], Answer]] = asyncio.get_running_loop().create_future()
        self._waiting = 0
        self._guard = OriginGuard(settings)
        self._access_log = access_log

    def __call__(self, request: Request) -> Answer:
        if self._access_log.enabled:
            self._access_log.on_request(request)
        head = request.head
        handler = head.handler
        if handler is not None:
            identity = head.identity
            if identity is None:
                return handler(request)  # type: ignore[no-any-return]
            now_s = time()
            if identity.until_s > now_s:
                identity.used_s = now_s
                request.identity = identity
                return handler(request)  # type: ignore[no-any-return]
        refused = self._guard.refusal(request)
        if refused is not None:
            return refused
        if self.app is not None:
            return self.app(request)
        if request.raw_path == b"/v1/healthz":
            return Response(200, b'{"status":"ok"}\n')
        if request.raw_path == b"/v1/readyz" or self._waiting >= WAITING_MAX:
            return _recovering()
        return self._wait(request)

    def open(self, app: Callable[[Request], Answer]) -> None:
        self.app = app
        self._recovered.set_result(app)

    async def _wait(self, request: Request) -> Reply:
        self._waiting += 1
        try:
            app = await asyncio.wait_for(asyncio.shield(self._recovered), RECOVERY_WAIT_S)
        except TimeoutError:
            return _recovering()
        finally:
            self._waiting -= 1
        return await reply_of(app(request))


def _recovering() -> Response:
    headers = [("Retry-After", "1")]
    return error_response(503, "UNAVAILABLE", "recovering: not ready yet", {"retry_after_ms": 1_000}, headers)
