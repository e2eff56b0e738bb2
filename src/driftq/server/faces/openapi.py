"""`/v1/openapi.json` and `/v1/docs`: the API described, for machines and for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import json

from driftq.server.documenting.openapi import document
from driftq.server.documenting.page import HEADERS, PAGE
from driftq.server.http import Answer, Request, Response

HTML = "text/html; charset=utf-8"


class OpenapiFace:
    """`routes` gives (method, path) of all routes; it is asked at the first request, when all are known."""

    def __init__(self, routes: Callable[[], Iterable[tuple[str, str]]]) -> None:
        self._routes = routes
        self._document = b""

    def document(self, request: Request) -> Answer:
        if not self._document:
            self._document = json.encode(document(self._routes()))
        return Response(200, self._document)

    def page(self, request: Request) -> Answer:
        return Response(200, PAGE.encode(), HTML, HEADERS)
