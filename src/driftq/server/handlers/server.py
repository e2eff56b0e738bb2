"""The server itself: health, readiness, version, clock, metrics, and the API's own documentation."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from msgspec import json

import driftq
from driftq.core.model.commands import SetClock
from driftq.core.model.replies import Rejected
from driftq.server.handlers.codec import error_response, json_response, refusal
from driftq.server.http import Answer, Request, Response
from driftq.server.metrics.gauges import Gauges
from driftq.server.metrics.registry import tenant_page
from driftq.server.metrics.text_format import CONTENT_TYPE
from driftq.server.observation.attention import archive_info, tier_info
from driftq.server.openapi.document import document
from driftq.server.openapi.page import HEADERS, PAGE
from driftq.wire.errors import CODES, Code
from driftq.wire.fields import to_rfc3339
from driftq.wire.server_info import ClockInfo, HealthReply, ReadinessReply, VersionReply

if TYPE_CHECKING:
    from driftq.engine.clock import ClockReading
    from driftq.server.handlers.context import Context

logger = logging.getLogger("driftq.clock")

_UNAVAILABLE = CODES[Code.UNAVAILABLE]
_HTML = "text/html; charset=utf-8"


class ServerHandlers:
    """Handlers of `/v1/healthz`, `/v1/readyz` and `/v1/version`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def healthz(self, request: Request) -> Answer:
        return json_response(HealthReply("ok"))

    def readyz(self, request: Request) -> Answer:
        engine = self._context.engine
        sequencer = engine.sequencer
        if sequencer.waiting_bytes() > sequencer.room.unsynced_bytes_max // 2:
            message = "the disk is slow: much is waiting to be written"
            return error_response(_UNAVAILABLE.status, _UNAVAILABLE.error, message)
        if sequencer.is_full():
            message = "the disk is full: new work is refused, reading and settling continue; free some space"
            details = {"reason": "disk_full", "folder": engine.folder}
            return error_response(_UNAVAILABLE.status, _UNAVAILABLE.error, message, details, [("Retry-After", "1")])
        reading = engine.read_clock()
        warnings = [reading.advice()] if reading.held else []
        archive = archive_info(engine.archiver)
        if archive is not None and archive.error:
            warnings.append(f"the archive is {archive.state}: {archive.error}")
        tiers = tier_info(engine.cold_reads)
        if tiers is not None and tiers.error:
            warnings.append(f"records that are only in the archive cannot be read: {tiers.error}")
        return json_response(ReadinessReply("ready", warnings, archive, tiers))

    def version(self, request: Request) -> Answer:
        durable = self._context.engine.report is not None
        return json_response(
            VersionReply(
                version=driftq.__version__,
                commit=os.environ.get("DRIFTQ_COMMIT", "unknown"),
                wal_enabled=durable,
                durability="fsync" if durable else "memory (nothing is kept)",
            )
        )


class ClockHandlers:
    """Handlers of `/v1/clock`: the broker's time beside the machine's."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    def show(self, request: Request) -> Answer:
        return json_response(_clock_info(self._engine.read_clock()))

    async def accept(self, request: Request) -> Response:
        """An operator confirms that the machine's clock is right."""
        before = self._engine.read_clock()
        at_ms = before.machine_ms
        command = self._context.audited(request, SetClock(at_ms), "", moved_ms=before.ahead_ms)
        reply = await self._engine.accept_clock(command)
        if isinstance(reply, Rejected):
            return refusal(reply)
        logger.warning("the machine's clock was accepted: the broker's time moved by %d ms", before.ahead_ms)
        return json_response(_clock_info(self._engine.read_clock()))


def _clock_info(reading: ClockReading) -> ClockInfo:
    advice = reading.advice() if reading.held else ""
    return ClockInfo(
        to_rfc3339(reading.broker_ms), to_rfc3339(reading.machine_ms), reading.ahead_ms, reading.held, advice
    )


class MetricsHandlers:
    """The handler of `/v1/metrics`: the text format of Prometheus."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._metrics = None if context.tenant else context.observers.metrics

    async def page(self, request: Request) -> Response:
        if self._metrics is not None:
            return Response(200, await self._metrics.page(), CONTENT_TYPE)
        apps, tenant = self._context.apps, self._context.tenant
        assert apps is not None, "only they make the context of a tenant"
        row = await self._context.root_engine.queries.result(lambda _: apps.row(tenant))
        return Response(200, await tenant_page(Gauges(self._context.engine), row), CONTENT_TYPE)


class OpenapiHandlers:
    """Handlers of `/v1/openapi.json` and `/v1/docs`. `routes` returns the method and path of every route; it is called
    at the first request, when all of them are known."""

    def __init__(self, routes: Callable[[], Iterable[tuple[str, str]]]) -> None:
        self._routes = routes
        self._document = b""

    def document(self, request: Request) -> Answer:
        if not self._document:
            self._document = json.encode(document(self._routes()))
        return Response(200, self._document)

    def page(self, request: Request) -> Answer:
        return Response(200, PAGE.encode(), _HTML, HEADERS)
