"""A real broker whose old segments are only in its archive: small files, so that it takes a second."""

from __future__ import annotations

from tests.support.server import Server
from tests.support.wait import until_now

SMALL_FILES = (
    "storage.segment_bytes=65536", "limits.batch_bytes=65536", "archive.base_bytes=50000", "archive.interval_ms=20",
)  # fmt: skip
LOCAL = "storage.local_bytes=1"
VALUE = "v" * 2_000


def tiers_of(server: Server) -> dict[str, int]:
    return server.call("GET", "/v1/readyz").json().get("tiers", {})


def fill(server: Server, topic: str, count: int) -> None:
    for first in range(0, count, 20):
        items = [{"value": f"{number} {VALUE}"} for number in range(first, min(count, first + 20))]
        assert server.call("POST", "/v1/produce/batch", {"topic": topic, "messages": items}).status == 200


def move(server: Server, at_least: int) -> None:
    """Keep producing to a topic of its own, which drives checkpoints, until so many bytes have left the disk."""
    server.call("POST", "/v1/topics", {"name": "load"})

    def has_moved() -> bool:
        fill(server, "load", 20)
        return tiers_of(server).get("archived_bytes", 0) >= at_least

    until_now(has_moved, 90, pause_s=0.05)
