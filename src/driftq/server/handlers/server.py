"""The server about itself: alive, ready, version."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec import json

import driftq
from driftq.core.model.replies import Rejected
from driftq.server.handlers.base import Context, error_response, json_response, refusal
from driftq.server.http import Answer, Request, Response
from driftq.server.metrics.registry import CONTENT_TYPE, Metrics
from driftq.server.openapi.document import document
from driftq.server.openapi.page import HEADERS, PAGE
from driftq.server.openapi.shapes import Readiness
from driftq.wire.admin import ClockInfo
from driftq.wire.message import to_rfc3339

if TYPE_CHECKING:
    from driftq.engine.clock import ClockReading


class ServerHandlers:
    """Handlers that answer from what the process is."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def healthz(self, request: Request) -> Answer:
        return json_response({"status": "ok"})

    def readyz(self, request: Request) -> Answer:
        engine = self._context.engine
        sequencer = engine.sequencer
        if sequencer.waiting_bytes() > sequencer.unsynced_bytes_max // 2:
            return error_response(503, "UNAVAILABLE", "the disk is slow: much is waiting to be written")
        if sequencer.is_full():
            message = "the disk is full: new work is refused, reading and settling continue; free some space"
            details = {"reason": "disk_full", "folder": engine.folder}
            return error_response(503, "UNAVAILABLE", message, details, [("Retry-After", "1")])
        reading = engine.read_clock()
        return json_response(Readiness("ready", [reading.advice()] if reading.held else []))

    def version(self, request: Request) -> Answer:
        durable = self._context.engine.report is not None
        return json_response(
            {
                "version": driftq.__version__,
                "commit": os.environ.get("DRIFTQ_COMMIT", "unknown"),
                "wal_enabled": durable,
                "durability": "fsync" if durable else "memory (nothing is kept)",
            }
        )


# --- `/v1/metrics`: the numbers of the server in the text format of Prometheus ---


class MetricsHandlers:
    """One page."""

    def __init__(self, context: Context) -> None:
        self._metrics = context.metrics or Metrics(context.engine)

    async def page(self, request: Request) -> Response:
        return Response(200, await self._metrics.page(), CONTENT_TYPE)


# --- `/v1/openapi.json` and `/v1/docs`: the API described, for machines and for people ---


HTML = "text/html; charset=utf-8"


class OpenapiHandlers:
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


# --- `/v1/clock`: the broker's time beside the machine's, and an operator's word that the machine's is right ---


logger = logging.getLogger("driftq.clock")


class ClockHandlers:
    """Two handlers."""

    def __init__(self, context: Context) -> None:
        self._engine = context.engine

    def show(self, request: Request) -> Answer:
        return json_response(_info(self._engine.read_clock()))

    async def accept(self, request: Request) -> Response:
        before = self._engine.read_clock()
        reply = await self._engine.accept_clock()
        if isinstance(reply, Rejected):
            return refusal(reply)
        logger.warning("the machine's clock was accepted: the broker's time moved by %d ms", before.ahead_ms)
        return json_response(_info(self._engine.read_clock()))


def _info(reading: ClockReading) -> ClockInfo:
    advice = reading.advice() if reading.held else ""
    return ClockInfo(
        to_rfc3339(reading.broker_ms), to_rfc3339(reading.machine_ms), reading.ahead_ms, reading.held, advice
    )
