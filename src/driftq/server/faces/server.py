"""The server about itself: alive, ready, version."""

from __future__ import annotations

import os

import driftq
from driftq.server.context import Context, json_response
from driftq.server.documenting.shapes import Readiness
from driftq.server.http import Answer, Request
from driftq.server.problems import error_response


class ServerFace:
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
