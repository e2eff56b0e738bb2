"""The requests of the first Python client and of the demos around it, byte for byte as they were captured."""

from __future__ import annotations

import socket

import pytest

from tests.support.server import running

USUAL = "Accept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\nUser-Agent: driftq-py/0.1.0\r\n"


@pytest.fixture(scope="module")
def server():
    with running(None) as server:
        server.call("POST", "/v1/topics", {"name": "demo", "partitions": 1})
        yield server


def talk(port: int, first: str, body: str = "", headers: str = "", until: bytes = b"\r\n\r\n") -> tuple[int, str]:
    """Send a request as text and read until its answer is there."""
    length = f"Content-Length: {len(body.encode())}\r\nContent-Type: application/json\r\n" if body else ""
    request = f"{first} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{USUAL}{headers}{length}\r\n{body}"
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(request.encode())
        data = b""
        while until not in data:
            more = connection.recv(65_536)
            if not more:
                break
            data += more
    return int(data.split(b" ", 2)[1]), data.decode()


def test_the_health_of_the_broker(server):
    status, text = talk(server.port, "GET /v1/healthz", headers="Accept: application/json\r\n", until=b"}")
    assert status == 200
    assert '"status":"ok"' in text


def test_a_produce_with_its_key_in_the_header_and_in_the_envelope(server):
    body = (
        '{"topic":"demo","value":"hello","key":"k","envelope":{"run_id":"r1","idempotency_key":"first-1",'
        '"deadline":"2031-05-06T07:08:09.123456+00:00","labels":{"a":"b"}}}'
    )
    for repeat in (False, True):
        status, text = talk(server.port, "POST /v1/produce", body, "Idempotency-Key: first-1\r\n", until=b"}")
        assert status == 200
        assert ('"duplicate":true' in text) is repeat


def test_a_consumer_that_reads_lines_and_acks_with_its_owner(server):
    talk(server.port, "POST /v1/produce", '{"topic":"demo","value":"line"}', until=b"}")
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(
            f"GET /v1/consume?topic=demo&group=g1&owner=w1&lease_ms=5000 HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
            f"{USUAL}Accept: application/x-ndjson\r\n\r\n".encode()
        )
        data = b""
        while b'"offset":0' not in data:
            data += connection.recv(65_536)
        assert data.startswith(b"HTTP/1.1 200")
        assert b"application/x-ndjson" in data
        ack = '{"topic":"demo","group":"g1","owner":"w1","partition":0,"offset":0}'
        assert talk(server.port, "POST /v1/ack", ack)[0] == 204
        assert talk(server.port, "POST /v1/ack", ack)[0] == 204


def test_a_nack_with_and_without_a_reason(server):
    talk(server.port, "POST /v1/topics", '{"name":"nacks"}', until=b"}")
    talk(server.port, "POST /v1/produce?topic=nacks&value=one")
    claim = '{"topic":"nacks","group":"g","owner":"w","max":1}'
    assert talk(server.port, "POST /v1/claim", claim, until=b"]")[0] == 200
    nack = '{"topic":"nacks","group":"g","owner":"w","partition":0,"offset":0,"reason":"not now"}'
    assert talk(server.port, "POST /v1/nack", nack)[0] == 204
    assert talk(server.port, "POST /v1/nack?topic=nacks&group=g&owner=w&partition=0&offset=0")[0] in (204, 409)


def test_a_demo_that_sends_query_parameters_and_unknown_fields(server):
    long = "x" * 20_000
    status, _ = talk(
        server.port,
        f"POST /v1/produce?topic=demo&value={long}&idempotency_key=q1&retry_max_attempts=3&retry_backoff_ms=10"
        "&retry_jitter_ms=5",
    )
    assert status == 200


def test_a_demo_that_probes_for_the_shape_of_a_body(server):
    assert talk(server.port, "POST /v1/topics", '{"topic":"probe","partitions":1}', until=b"}")[0] in (400, 422)
    assert talk(server.port, "POST /v1/topics", '{"name":"probe","partitions":1}', until=b"}")[0] == 201
    body = '{"topic":"probe","value":"v","idempotency_key":"k"}'
    assert talk(server.port, "POST /v1/produce", body, until=b"}")[0] in (400, 422)


def test_errors_keep_the_two_fields_that_clients_read(server):
    status, text = talk(server.port, "POST /v1/produce", '{"topic":"nowhere","value":"v"}', until=b"}")
    assert status == 404
    assert '"error":' in text
    assert '"message":' in text
