"""The metrics page, request ids and the access log of a real server process."""

from __future__ import annotations

import json

from prometheus_client.parser import text_string_to_metric_families

from tests.support.server import Server, running
from tests.support.wait import until_now


def samples(server: Server) -> dict[str, float]:
    reply = server.call("GET", "/v1/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = {}
    for family in text_string_to_metric_families(reply.body.decode()):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            values[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return values


def test_a_durable_server_shows_its_disk_and_its_syncs(tmp_path):
    with running(str(tmp_path)) as server:
        server.call("POST", "/v1/topics", {"name": "t"})
        for _ in range(3):
            server.call("POST", "/v1/produce", {"topic": "t", "value": "x"})
        metrics = samples(server)
        assert metrics["driftq_commit_seconds_count"] == metrics["driftq_fsync_seconds_count"] == 4
        assert metrics["driftq_commit_seconds_sum"] >= metrics["driftq_fsync_seconds_sum"] > 0
        assert metrics["driftq_journal_lsn{state=durable}"] == 4
        assert metrics["driftq_unsynced_bytes"] == 0
        assert metrics["driftq_disk_bytes{part=journal}"] > 0
        assert metrics["driftq_disk_bytes{part=logs}"] > 0
        assert metrics["driftq_disk_free_bytes"] > 0
        assert metrics["driftq_http_responses_total{status=200}"] == 3
        assert metrics["driftq_http_responses_total{status=201}"] == 1
        assert metrics["driftq_connections"] == 1
    with running(str(tmp_path)) as server:
        metrics = samples(server)
        assert metrics["driftq_journal_lsn{state=durable}"] == 4, "a gauge is the current value"
        assert "driftq_messages_produced_total{topic=t}" not in metrics, "a counter starts with the process"
        assert metrics["driftq_backlog_messages{topic=t}"] == 3


def test_an_open_consumer_is_an_open_stream():
    with running(None) as server:
        server.call("POST", "/v1/topics", {"name": "t"})
        connection = server.connect()
        connection.request("GET", "/v1/consume?topic=t&group=g&owner=o")
        response = connection.getresponse()
        assert response.getheader("x-request-id")
        assert samples(server)["driftq_open_streams"] == 1
        connection.sock and connection.sock.close()
        response.close()
        connection.close()
        until_now(lambda: samples(server)["driftq_open_streams"] == 0, 10)


def test_every_answer_has_a_request_id_and_a_valid_one_is_returned():
    with running(None) as server:
        seen = set()
        for method, path in (("GET", "/v1/healthz"), ("GET", "/nowhere"), ("POST", "/v1/healthz"), ("POST", "/v1/ack")):
            seen.add(server.call(method, path).headers["x-request-id"])
        assert len(seen) == 4
        assert server.call("GET", "/v1/healthz", None, {"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
        assert server.call("GET", "/v1/healthz", None, {"X-Request-Id": "a b"}).headers["x-request-id"] != "a b"
        refused = server.call("GET", "/v1/healthz", None, {"Host": "evil.example"})
        assert refused.status == 403
        assert refused.headers["x-request-id"]


def test_the_access_log_names_each_request_once():
    with running(None, "log.access=true", "log.format=json") as server:
        server.call("GET", "/v1/healthz?secret=1", None, {"X-Request-Id": "first"})
        server.call("POST", "/v1/topics", {"name": "t"}, {"X-Request-Id": "second"})
    lines = [json.loads(line) for line in server.lines if line.startswith("{")]
    mine = [
        (line["request_id"], line["method"], line["path"], line["status"]) for line in lines if "request_id" in line
    ]
    assert mine == [("first", "GET", "/v1/healthz", 200), ("second", "POST", "/v1/topics", 201)]
    assert "secret" not in "".join(server.lines)


def test_without_the_setting_requests_are_not_logged():
    with running(None) as server:
        server.call("GET", "/v1/healthz")
    assert not any("healthz" in line for line in server.lines)
