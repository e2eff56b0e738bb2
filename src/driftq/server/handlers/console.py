"""Handlers of `/console/`: the page of the web console and its files. Its data comes from the API."""

from __future__ import annotations

from driftq.server.console.assets import SAFETY, Asset, Assets
from driftq.server.handlers.codec import error_response
from driftq.server.http import Answer, Request, Response
from driftq.server.http.request import percent_decoded

_METHODS = ("GET", "HEAD")
_STATIC = "static/"
_PAGE_HEADERS = (*SAFETY, ("Cache-Control", "no-cache"))
_FILE_HEADERS = (*SAFETY, ("Cache-Control", "public, max-age=31536000, immutable"))
_ENCODED = ("Content-Encoding", "gzip")


class ConsoleHandlers:
    """The files are read at the first request."""

    def __init__(self) -> None:
        self._assets: Assets | None = None

    def redirect(self, request: Request) -> Answer:
        return Response(308, b"", "", [("Location", "/console/"), ("Cache-Control", "no-cache")])

    def handle(self, request: Request, rest: bytes) -> Answer:
        if request.method not in _METHODS:
            return error_response(405, "METHOD_NOT_ALLOWED", "method not allowed", headers=[("Allow", "GET, HEAD")])
        if self._assets is None:
            self._assets = Assets()
        path = percent_decoded(rest)
        if not path.startswith(_STATIC):
            return _response(request, self._assets.page, _PAGE_HEADERS)
        asset = self._assets.find(path.removeprefix(_STATIC))
        if asset is None:
            return error_response(404, "NOT_FOUND", "no such file of the console; load the page again")
        return _response(request, asset, _FILE_HEADERS)


def _response(request: Request, asset: Asset, headers: tuple[tuple[str, str], ...]) -> Response:
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(200, asset.compressed, asset.content_type, (*headers, _ENCODED))
    return Response(200, asset.body, asset.content_type, headers)
