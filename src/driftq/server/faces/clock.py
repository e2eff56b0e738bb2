"""`/v1/clock`: the broker's time beside the machine's, and an operator's word that the machine's is right."""

from __future__ import annotations

import logging

from driftq.core.replies import Rejected
from driftq.engine.clock import ClockReading
from driftq.server.context import Context, json_response
from driftq.server.http import Answer, Request, Response
from driftq.server.problems import refusal
from driftq.wire.admin import ClockInfo
from driftq.wire.times import to_rfc3339

logger = logging.getLogger("driftq.clock")


class ClockFace:
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
