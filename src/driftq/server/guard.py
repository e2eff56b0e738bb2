"""Keeps web pages away from a broker that listens on the user's own machine.

A page on the internet can make a browser send requests to localhost, and by DNS rebinding even read the answers. So the
Host must be one of ours, and a request that changes something may not come from a foreign Origin. Streams have their
own rule (their protocol is open to all origins) and are left to it.
"""

from __future__ import annotations

from driftq.server.http import Request, Response
from driftq.server.problems import error_response
from driftq.server.settings import Listen

_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_STREAMS = b"/v1/stream/"


class Guard:
    """Judges where a request says it comes from."""

    def __init__(self, listen: Listen) -> None:
        names = [*_LOOPBACK, listen.host, f"[{listen.host}]", *listen.allowed_hosts]
        self._hosts = {name.lower().encode() for name in names}
        # Behind a public address the names are not known, and there is no secret of this machine to protect.
        self._check_host = listen.host in ("127.0.0.1", "::1", "localhost") or bool(listen.allowed_hosts)
        self._origins = {origin.lower().encode() for origin in listen.allowed_origins}

    def refusal(self, request: Request) -> Response | None:
        fields = request.head.fields
        if self._check_host and not self._is_ours(fields.get(b"host", b"")):
            message = "this Host is not served here; add it to listen.allowed_hosts if it should be"
            return error_response(403, "PERMISSION_DENIED", message)
        origin = fields.get(b"origin")
        if origin is None or request.method in _SAFE_METHODS or request.raw_path.startswith(_STREAMS):
            return None
        origin = origin.lower()
        if origin in self._origins or self._is_ours(origin.partition(b"://")[2]):
            return None
        message = "requests from this Origin are refused; add it to listen.allowed_origins if it should be"
        return error_response(403, "PERMISSION_DENIED", message)

    def _is_ours(self, host: bytes) -> bool:
        if host in self._hosts:
            return True
        name, colon, port = host.rpartition(b":")
        return bool(colon) and port.isdigit() and name.lower() in self._hosts
