"""Every endpoint and every error of the queue API, as transcripts (see `transcripts.py`)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from driftq.engine.engine import Engine
from driftq.server.app import RouteSpec
from driftq.server.handlers.context import Context
from driftq.server.routes import routes
from driftq.server.settings import Settings
from tests.conformance.transcripts import replay
from tests.support.access import PAGES

ELSEWHERE = (
    "/v1/metrics", "/v1/openapi.json", "/v1/docs", "/v1/backup", "/v1/overview", "/v1/series", "/v1/series/names",
    "/v1/events", "/v1/config", "/.well-known/jwks.json",
)  # fmt: skip
GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.http")), ids=lambda path: path.stem)
def test_the_server_answers_exactly_as_the_transcript_says(path: Path, rewrite: bool) -> None:
    answered = replay(path)
    if rewrite:
        path.write_text(answered, encoding="utf-8")
    assert answered == path.read_text(encoding="utf-8"), "run with --rewrite and read the diff"


async def all_routes() -> list[RouteSpec]:
    engine = Engine.in_memory()
    try:
        return routes(Context(engine, Settings()))
    finally:
        await engine.close()


def test_every_route_is_in_some_transcript() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in GOLDEN.glob("*.http"))
    asked = {line[2:].split("?")[0] for line in text.splitlines() if line.startswith("> ") and " /v1" in line}
    missing = []
    for route in asyncio.run(all_routes()):
        if "stream" in route.path or route.path in ELSEWHERE or f"{route.method} {route.path}" in PAGES:
            continue  # these have their own suites
        pattern = [part if not part.startswith("{") else None for part in route.path.split("/")]
        is_covered = any(
            method == route.method and _fits(pattern, path.split("/"))
            for method, path in (line.split(" ", 1) for line in asked)
        )
        if not is_covered:
            missing.append(f"{route.method} {route.path}")
    assert not missing


def _fits(pattern: list[str | None], given: list[str]) -> bool:
    return len(pattern) == len(given) and all(want in (None, part) for want, part in zip(pattern, given, strict=True))
