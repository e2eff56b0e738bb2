"""Requests that are small to send and costly to read do not hold the event loop."""

from __future__ import annotations

import json

import pytest

from driftq.wire.records import Record, pack
from tests.support.measured_server import measured_server

NDJSON = {"Content-Type": "application/x-ndjson"}
MIB = 1 << 20
LABELS = {str(number): "v" for number in range(900_000)}


@pytest.fixture(scope="module")
def server():
    with measured_server(None) as server:
        server.call("POST", "/v1/topics", {"name": "t"})
        yield server


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        pytest.param(
            "/v1/produce/packed?topic=t", pack([Record(b"x", b"", b" " * (64 * MIB - 100))], compress=True), {}, 413,
            id="a head of 64 MiB",
        ),
        pytest.param(
            "/v1/produce/packed?topic=t", pack([Record(b"x", b"", b" " * (7 * MIB))] * 2, compress=True), {}, 400,
            id="two heads of 7 MiB",
        ),
        pytest.param(
            "/v1/produce/packed?topic=t", pack([Record(b"x", b"", b'{"job":{"task":"a"}}')] * 100_000), {}, 413,
            id="100,000 scheduled records",
        ),
        pytest.param(
            "/v1/produce/batch?topic=t", b" \n" * (7 * MIB) + b'{"value":"x"}', NDJSON, 200, id="blank lines"
        ),
        pytest.param(
            "/v1/produce/batch?topic=t", b'{"value":"x"}\n' + b" \n" * (7 * MIB) + b'{"value":"x"}', NDJSON, 200,
            id="blank lines between messages",
        ),
        pytest.param(
            "/v1/produce",
            json.dumps({"topic": "t", "value": "x", "envelope": {"labels": LABELS}}).encode(),
            {}, 400, id="900,000 labels",
        ),
        pytest.param(
            "/v1/outcome", json.dumps({"produce": [{"topic": "t", "value": "x"}] * 20_000}).encode(), {}, 400,
            id="an outcome of 20,000 messages",
        ),
    ],
)  # fmt: skip
def test_a_costly_request_is_refused_before_it_costs(server, path, body, headers, status):
    server.reset()
    reply = server.call("POST", path, body, headers)
    assert reply.status == status, reply.body[:200]
    server.assert_no_turn_above(0.05)


def test_blank_lines_and_spaces_of_ndjson_are_skipped(server):
    body = b'\n\r\n  {"value":"a"}\r\n\n\t{"value":"b"}\n   \n{"value":"c"}'
    reply = server.call("POST", "/v1/produce/batch?topic=t", body, NDJSON)
    assert reply.json()["produced"] == 3


def test_a_large_message_with_an_envelope_is_produced(server):
    message = {"topic": "t", "value": "x" * 900_000, "envelope": {"labels": {"a": "\u0001" * 1_000}}}
    assert server.call("POST", "/v1/produce", message).status == 200
