"""A fuzzer compares the API with its OpenAPI document, with valid and with invalid requests. A server error, or a
status or a body that is not documented, is a failure.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server import Server, running

pytest.importorskip("schemathesis")

ROOT = Path(__file__).parents[2]
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
)
EXAMPLES = {"dev": 6, "ci": 12, "release": 200}
ENOUGH = {"positive": 150, "negative": 700}  # requests; fewer mean that the fuzzer did not get going


def prepare(server: Server) -> None:
    """Create an object for every name that the hooks use."""
    for topic in ("orders", "inbox"):
        server.call("POST", "/v1/topics", {"name": topic})
        for number in range(20):
            message = {"topic": topic, "value": "x", "envelope": {"retry_policy": {"max_attempts": 1}}}
            server.call("POST", "/v1/produce", {**message, "priority": number % 3})
        claim = {"topic": topic, "group": "workers", "owner": "ann", "max": 5, "lease_ms": 600_000}
        server.call("POST", "/v1/claim", claim)
        nack = {"topic": topic, "group": "workers", "owner": "ann", "partition": 0, "offset": 2}
        server.call("POST", "/v1/nack", nack)
    server.call("PUT", "/v1/stream/known", b"data", {"Content-Type": "text/plain"})


def fuzz(server: Server, folder: Path, mode: str, phases: str, checks: tuple[str, ...], examples: int) -> str:
    """Run it in `folder`, where it may write files. The requests are the same in every run."""
    command = [
        str(Path(sys.executable).with_name("schemathesis")),
        "run", f"http://127.0.0.1:{server.port}/v1/openapi.json",
        "--mode", mode, "--phases", phases, "--checks", ",".join(checks),
        "--max-examples", str(examples), "--generation-deterministic",
        "--request-timeout", "10", "--no-color",
        "--workers", "1",  # Python 3.11 parses source in one thread at a time, and bodies with any JSON make it do so
        "--exclude-path", "/v1/consume", "--exclude-path", "/v1/events",  # they never end
    ]  # fmt: skip
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.support.api_hooks", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    return done.stdout


def requests_of(report: str) -> int:
    match = re.search(r"(\d+) generated", report)
    assert match is not None, report
    return int(match[1])


def not_broken(server: Server) -> None:
    assert server.call("GET", "/v1/readyz").status == 200
    page = server.call("GET", "/v1/metrics").body.decode()
    statuses = re.findall(r'driftq_http_responses_total\{status="(\d+)"\}', page)
    assert statuses
    assert not [status for status in statuses if status.startswith("5")]


def test_valid_requests_get_documented_responses(profile, tmp_path):
    with running(None) as server:
        prepare(server)
        report = fuzz(server, tmp_path, "positive", "fuzzing", CHECKS, EXAMPLES[profile])
        assert requests_of(report) > ENOUGH["positive"]
        not_broken(server)


def test_invalid_requests_are_refused_as_documented(profile, tmp_path):
    with running(None) as server:
        prepare(server)
        checks = (*CHECKS, "negative_data_rejection", "unsupported_method")
        report = fuzz(server, tmp_path, "negative", "coverage,fuzzing", checks, EXAMPLES[profile] // 2)
        assert requests_of(report) > ENOUGH["negative"]
        not_broken(server)


def test_the_page_is_served_with_a_strict_policy():
    with running(None) as server:
        reply = server.call("GET", "/v1/docs")
        assert reply.headers["content-type"] == "text/html; charset=utf-8"
        assert reply.headers["content-security-policy"].startswith("default-src 'none';")
        assert reply.headers["x-content-type-options"] == "nosniff"
        document = server.call("GET", "/v1/openapi.json")
        assert document.json()["openapi"] == "3.1.0"
