"""Requests that are small to send and costly to read do not hold the event loop."""

from __future__ import annotations

import json

import pytest

from driftq.wire.records import Record, pack
from tests.support.measured_server import measured_server

NDJSON = {"Content-Type": "application/x-ndjson"}
JSON = {"Content-Type": "application/json"}
MIB = 1 << 20
LABELS = {str(number): "v" for number in range(900_000)}


@pytest.fixture(scope="module")
def server():
    with measured_server(None) as server:
        server.call("POST", "/v1/topics", {"name": "t"})
        server.call("PUT", "/v1/stream/s", b"", JSON)
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
            "/v1/produce/batch", b'{"topic":"t","messages":[' + b"{}," * 1_000_000 + b"{}]}", {}, 400,
            id="a million empty messages",
        ),
        pytest.param("/v1/stream/s", b"[" + b"1," * 8_000_000 + b"1]", JSON, 413, id="eight million items"),
        pytest.param(
            "/v1/dlq/t/redrive", b'{"offsets":[' + b"[0,1]," * 500_000 + b"[0,2]]}", {}, 400,
            id="half a million letters",
        ),
        pytest.param(
            "/v1/dlq/t/redrive", b'{"offsets":[' + b"[0,1]," * 10_000 + b"[0,2]]}", {}, 400, id="10,001 letters"
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


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        pytest.param(
            "/v1/produce/batch",
            json.dumps({"topic": "t", "messages": [{"value": "x" * 50, "id": str(n)} for n in range(10_000)]}).encode(),
            {}, id="10,000 jobs",
        ),
        pytest.param(
            "/v1/produce/batch?topic=t",
            b'{"value":"x","envelope":{"labels":{%b}}}\n' % b",".join(b'"%d":"v"' % n for n in range(64)) * 5_000,
            NDJSON, id="5,000 messages with 64 labels",
        ),
        pytest.param(
            "/v1/produce/packed?topic=t&partition=0",
            pack([Record(b"x", b"", b'{"envelope":{"labels":{"a":"b"}}}')] * 100_000),
            {}, id="100,000 packed envelopes",
        ),
    ],
)  # fmt: skip
def test_a_large_batch_is_stored_in_slices(server, path, body, headers):
    server.reset()
    assert server.call("POST", path, body, headers).status == 200
    server.assert_no_turn_above(0.03)


def test_a_large_append_may_be_one_message_of_many_parts(server):
    body = b"[[" + b"1," * 400_000 + b"1]]"
    assert server.call("POST", "/v1/stream/s", body, JSON).status == 204


def test_blank_lines_and_spaces_of_ndjson_are_skipped(server):
    body = b'\n\r\n  {"value":"a"}\r\n\n\t{"value":"b"}\n   \n{"value":"c"}'
    reply = server.call("POST", "/v1/produce/batch?topic=t", body, NDJSON)
    assert reply.json()["produced"] == 3


def test_a_large_message_with_an_envelope_is_produced(server):
    message = {"topic": "t", "value": "x" * 900_000, "envelope": {"labels": {"a": "\u0001" * 1_000}}}
    assert server.call("POST", "/v1/produce", message).status == 200
