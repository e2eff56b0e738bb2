"""What a request passes before its handler: is the broker ready, may this web origin call, is the tenant in its rate?

    request ──> handler cached with the head? ──yes──> handler
                  │no
                  ▼
                OriginGuard ──refused──> 403
                  │
                  ▼
                recovered? ──yes──> App ──> handler ──a produce──> TenantRates ──refused──> 429
                  │no
                  ▼
                wait up to RECOVERY_WAIT_S, then 503 (readyz: 503 at once; healthz: 200)

The check of hosts and origins and the choice of the handler depend on the head alone, so both are cached with it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from driftq.core.model.replies import Rejected
from driftq.server.handlers.codec import error_response
from driftq.server.http import Answer, BadRequest, Reply, Request, Response, reply_of
from driftq.server.settings import LOOPBACK_HOSTS, Settings
from driftq.server.streams.requests import path_of
from driftq.server.streams.responses import preflight
from driftq.wire import streams as w
from driftq.wire.errors import Code

if TYPE_CHECKING:
    from driftq.server.app import App
    from driftq.server.logs import AccessLog
    from driftq.server.settings import Settings, TenantSettings


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

    def __call__(self, request: Request) -> Answer:
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
            return Response(200, b'{"status":"ok"}\n')
        if request.raw_path == b"/v1/readyz" or self._waiting >= WAITING_MAX:
            return _recovering()
        return self._wait(request)

    def open(self, app: App) -> None:
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


# --- web origins ---

_METHODS = "GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS"
_EXPOSED = b"Retry-After, X-Request-Id, Driftq-Next-Offset, Driftq-Start-Offset, Driftq-End-Offset"
_SAME_SITE = (b"same-origin", b"none")  # none: typed, or a bookmark
_STREAMS = w.ROOT.encode()
_CONSUME = b"/v1/consume"
_VARY = b"Vary: Origin\r\n"


class OriginGuard:
    """Checks the Host and the origin of requests.

    Protects the broker from web pages of other origins (cross-site requests, DNS rebinding), and answers CORS. A web
    page can make a browser send requests to this machine, and by DNS rebinding even read the responses. Therefore the
    Host must be one of ours, and a request that a browser marks as coming from another origin (`Origin`,
    `Sec-Fetch-Site`) is refused, whatever its method and path, unless its origin is listed. `streams.cors_prefixes`
    opens reads of some streams to more origins. Clients that are not browsers send neither header and are not affected.

    `head.cross_origin` gets the CORS header lines of the response.
    """

    def __init__(self, settings: Settings) -> None:
        listen, streams = settings.listen, settings.streams
        names = ["localhost", "127.0.0.1", "[::1]", listen.host, f"[{listen.host}]", *listen.allowed_hosts]
        self._hosts = {name.lower().encode() for name in names}
        # At a public address the names are not known, and DNS rebinding gains nothing.
        self._check_host = listen.host in LOOPBACK_HOSTS or bool(listen.allowed_hosts)
        # A proxy in front of a plain listener may speak TLS to the browser; nothing turns https into http.
        self._schemes = (b"https",) if listen.tls_certificate else (b"http", b"https")
        self._origins = {origin.lower().encode() for origin in listen.allowed_origins}
        self._cors_prefixes = streams.cors_prefixes
        self._cors_origins = {origin.lower().encode() for origin in streams.cors_origins}
        self._varies = bool(self._origins) or (bool(self._cors_prefixes) and b"*" not in self._cors_origins)

    def refusal(self, request: Request) -> Response | None:
        """The response to a request that is refused, or to a preflight; None for everything else."""
        fields = request.head.fields
        host = fields.get(b"host", b"").strip(b" \t").lower()
        if self._check_host and not self._is_our_host(host):
            return _denied("this Host is not served here; add it to listen.allowed_hosts if it should be")
        if request.raw_path == _CONSUME and fields.get(b"sec-fetch-dest", b"empty").strip(b" \t").lower() != b"empty":
            return _denied(
                "a browser may consume with fetch only: a page or an image that opens this would take messages"
            )
        if self._varies and request.raw_path.startswith(_STREAMS):
            request.head.cross_origin = _VARY
        origin = fields.get(b"origin")
        if origin is not None:
            return self._check_origin(request, origin.strip(b" \t").lower(), host)
        site = fields.get(b"sec-fetch-site")
        if site is None or site.strip(b" \t").lower() in _SAME_SITE:
            return None
        return _denied("a page of another origin sent this without naming its origin: use fetch or EventSource")

    def _check_origin(self, request: Request, origin: bytes, host: bytes) -> Response | None:
        scheme, separator, name = origin.partition(b"://")
        if separator and name == host and scheme in self._schemes:
            return None
        preflight_method = (
            request.head.fields.get(b"access-control-request-method") if request.method == "OPTIONS" else None
        )
        method = request.method if preflight_method is None else preflight_method.strip(b" \t").decode("latin-1")
        is_stream = request.raw_path.startswith(_STREAMS)
        if origin in self._origins:
            allow = b"Access-Control-Allow-Origin: %b\r\n%b" % (origin, _VARY)
        elif is_stream and method in ("GET", "HEAD") and self._may_read(request, origin):
            open_to_all = b"*" in self._cors_origins
            allow = b"Access-Control-Allow-Origin: %b\r\n%b" % ((b"*", b"") if open_to_all else (origin, _VARY))
        elif preflight_method is not None and is_stream:
            return None  # the response follows the protocol, but nothing in it allows the request
        else:
            return _denied("requests from this Origin are refused; add it to listen.allowed_origins if it should be")
        request.head.cross_origin = (
            allow if is_stream else b"%bAccess-Control-Expose-Headers: %b\r\n" % (allow, _EXPOSED)
        )
        return (
            None
            if preflight_method is None
            else preflight(_METHODS if origin in self._origins else "GET, HEAD, OPTIONS")
        )

    def _may_read(self, request: Request, origin: bytes) -> bool:
        """Whether `streams.cors_prefixes` opens this path. Reserved paths need a prefix that names them."""
        if not (self._cors_origins & {origin, b"*"}):
            return False
        try:
            path = path_of(request.raw_path[len(_STREAMS) :])
        except BadRequest:
            return False
        reserved = path.startswith("__")
        return any(
            path.startswith(prefix) and (not reserved or prefix.startswith(f"{w.TOPICS}/"))
            for prefix in self._cors_prefixes
        )

    def _is_our_host(self, host: bytes) -> bool:
        if host in self._hosts:
            return True
        name, colon, port = host.rpartition(b":")
        return bool(colon) and port.isdigit() and name in self._hosts


def _denied(message: str) -> Response:
    return error_response(403, "PERMISSION_DENIED", message)


# --- rates of tenants ---

TENANTS_MAX = 100_000


class _Bucket:
    """Tokens that refill with time, up to the burst."""

    __slots__ = ("at_ms", "messages", "size_bytes")

    def __init__(self, messages: float, size_bytes: float, at_ms: int) -> None:
        self.messages = messages
        self.size_bytes = size_bytes
        self.at_ms = at_ms


class TenantRates:
    """Messages and bytes per second that a tenant may produce, with a burst.

    A token bucket for each tenant, in a table of bounded size from which the oldest is dropped. Nothing here is
    durable: a restart fills every bucket. Without a limit in the settings, nothing is looked up.
    """

    def __init__(self, tenants: TenantSettings) -> None:
        self._messages_per_s = tenants.messages_per_s
        self._bytes_per_s = tenants.bytes_per_s
        self._burst_s = tenants.burst_ms / 1_000
        self._buckets: dict[str, _Bucket] = {}
        self.active = bool(self._messages_per_s or self._bytes_per_s)

    def take(self, tenant: str, messages: int, size_bytes: int, now_ms: int) -> Rejected | None:
        """Charge a produce to the tenant's bucket; refused if the bucket does not hold enough."""
        bucket = self._buckets.get(tenant)
        if bucket is None:
            bucket = self._new(tenant, now_ms)
        passed_s = max(0, now_ms - bucket.at_ms) / 1_000
        bucket.at_ms = now_ms
        bucket.messages = min(self._messages_per_s * self._burst_s, bucket.messages + passed_s * self._messages_per_s)
        bucket.size_bytes = min(self._bytes_per_s * self._burst_s, bucket.size_bytes + passed_s * self._bytes_per_s)
        wait_s = max(
            self._wait_s(bucket.messages, messages, self._messages_per_s),
            self._wait_s(bucket.size_bytes, size_bytes, self._bytes_per_s),
        )
        if wait_s > 0:
            wait_ms = max(1, int(wait_s * 1_000))
            message = f"tenant {tenant!r} produces faster than it may; try again in {wait_ms} ms"
            return Rejected(Code.OVERLOADED, message, {"reason": "tenant_rate", "retry_after_ms": wait_ms})
        bucket.messages -= messages
        bucket.size_bytes -= size_bytes
        return None

    def _wait_s(self, available: float, needed: int, per_s: int) -> float:
        """How long until the bucket holds enough. A full bucket admits anything and goes into debt; otherwise a produce
        larger than the burst could never pass."""
        if not per_s:
            return 0.0
        enough = min(needed, per_s * self._burst_s)
        return 0.0 if available >= enough else (enough - available) / per_s

    def _new(self, tenant: str, now_ms: int) -> _Bucket:
        if len(self._buckets) >= TENANTS_MAX:
            del self._buckets[next(iter(self._buckets))]
        bucket = _Bucket(self._messages_per_s * self._burst_s, self._bytes_per_s * self._burst_s, now_ms)
        self._buckets[tenant] = bucket
        return bucket
