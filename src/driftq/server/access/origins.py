"""Web origins: which pages may call the server from a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.server.handlers.codec import error_response
from driftq.server.http import BadRequest, Request, Response
from driftq.server.settings import LOOPBACK_HOSTS
from driftq.server.streams.requests import path_of
from driftq.server.streams.responses import preflight
from driftq.wire import streams as w

if TYPE_CHECKING:
    from driftq.server.settings import Settings

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
