"""An unused group blocks producers: every error, status and metric names the group and what to do."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading

import pytest
from click.testing import CliRunner

import driftq
from driftq.cli.main import main
from driftq.client.errors import Overloaded
from driftq.client.transport.sansio import RetryOptions
from tests.support.server import Server, running
from tests.support.wait import until_now

LIMIT = "limits.partition_messages=3"


@pytest.fixture(scope="module")
def server():
    with running(None, LIMIT) as started:
        yield started


@pytest.fixture
def topic(server, request) -> str:
    """A topic that is full because of the group `left`."""
    name = request.node.name.removeprefix("test_")[:200]
    fill(server, name)
    return name


def fill(server: Server, name: str) -> None:
    assert server.call("POST", "/v1/topics", {"name": name}).status == 201
    for group in ("left", "busy"):
        assert server.call("POST", "/v1/claim", {"topic": name, "group": group, "owner": "o"}).status == 200
    for _ in range(3):
        assert server.call("POST", "/v1/produce", {"topic": name, "value": "v"}).status == 200
    claim = {"topic": name, "group": "busy", "owner": "o", "max": 3}
    messages = server.call("POST", "/v1/claim", claim).json()["messages"]
    held = [{"partition": 0, "offset": message["offset"], "token": message["token"]} for message in messages]
    body = {"topic": name, "group": "busy", "owner": "o", "messages": held}
    assert server.call("POST", "/v1/ack/batch", body).status == 200


def produced(server: Server, name: str) -> int:
    return server.call("POST", "/v1/produce", {"topic": name, "value": "v"}).status


def cli(server: Server, *argv: str) -> str:
    result = CliRunner().invoke(main, argv, env={"DRIFTQ_URL": server.url})
    assert result.exit_code == 0, result.output
    return result.stdout


def delete(server: Server, name: str) -> None:
    assert server.call("DELETE", f"/v1/topics/{name}/groups/left").status == 204


def test_the_refusal_names_the_group_and_a_command_that_helps(server, topic):
    refused = server.call("POST", "/v1/produce", {"topic": topic, "value": "v"})
    body = refused.json()
    assert (refused.status, body["reason"], body["group"]) == (429, "partition_buffer_full", "left")
    assert (body["topic"], body["partition"], body["lag"], body["limit"]) == (topic, 0, 3, 3)
    assert "group left" in body["message"]
    assert "groups.idle_ms" in body["message"]
    for command in body["commands"]:
        assert command in body["message"]
    delete_it, seek_it, raise_it = (command.split()[1:] for command in body["commands"])
    cli(server, *seek_it)
    assert [produced(server, topic) for _ in range(3)] == [200, 200, 200]
    assert produced(server, topic) == 429
    cli(server, *raise_it)
    assert produced(server, topic) == 200
    cli(server, *delete_it, "--yes")
    assert produced(server, topic) == 200


def test_status_metrics_and_explain_name_the_group(server, topic):
    shown = cli(server, "status")
    assert f"Partition 0 of {topic} is full: produces are refused" in shown
    assert f"driftq groups delete {topic} left" in shown
    (warning,) = (entry for entry in json.loads(cli(server, "status", "--json"))["warnings"] if entry["topic"] == topic)
    assert (warning["group"], warning["lag"]) == ("left", 3)
    page = server.call("GET", "/v1/metrics").body.decode()
    assert f'driftq_backlog_used_ratio{{topic="{topic}",group="left"}} 1.0' in page
    explained = cli(server, "explain", topic, "0:0")
    assert "producers: 3 of 3 messages wait for group left" in explained
    backlog = server.call("GET", f"/v1/topics/{topic}").json()["partitions"][0]["backlog"]
    assert (backlog["group"], backlog["used"]) == ("left", 1.0)


def test_a_client_call_logs_why_it_waits(server, topic, caplog):
    retry = RetryOptions(deadline_ms=30_000)
    with caplog.at_level(logging.WARNING, "driftq.client"), driftq.connect(server.url, retry=retry) as broker:
        sending = threading.Thread(target=lambda: broker.send(topic, "late"))
        sending.start()
        until_now(lambda: "waiting for the broker: producer overload" in caplog.text, 20)
        assert "group left" in caplog.text
        delete(server, topic)
        sending.join()
    assert server.call("GET", f"/v1/topics/{topic}").json()["partitions"][0]["messages"] == 4


def test_a_producer_logs_why_it_waits(server, topic, caplog):
    with caplog.at_level(logging.WARNING, "driftq.client"), driftq.connect(server.url) as broker:
        producer = broker.producer(topic)
        receipt = producer.send(b"late")
        until_now(lambda: "waiting for the broker: producer overload" in caplog.text, 20)
        assert not receipt.done
        delete(server, topic)
        producer.close()
        assert receipt.offset == 3


@pytest.mark.parametrize("how", ["one", "packed"])
def test_the_command_line_reports_why_it_waits(server, how):
    name = f"cli-{how}"
    fill(server, name)
    argv = [
        sys.executable,
        "-m",
        "driftq.cli.main",
        "produce",
        name,
        "late",
        *(["--packed"] if how == "packed" else []),
    ]
    process = subprocess.Popen(argv, env={**os.environ, "DRIFTQ_URL": server.url}, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        assert "waiting for the broker" in line
        assert "group left" in line
        delete(server, name)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.stderr.close()


def test_the_error_after_the_last_retry_has_all_details(server, topic):
    with driftq.connect(server.url, retry=RetryOptions(deadline_ms=100)) as broker:
        with pytest.raises(Overloaded, match="group left") as caught:
            broker.send(topic, "late")
        assert caught.value.details["group"] == "left"


def test_an_idle_group_keeps_its_position_and_blocks_no_producer_even_after_a_kill(tmp_path):
    folder = str(tmp_path / "data")
    server = Server(folder, LIMIT, "groups.idle_ms=500")
    try:
        fill(server, "t")
        assert produced(server, "t") == 429
        until_now(lambda: server.call("GET", "/v1/topics/t/groups/left").json().get("idle"), 40, pause_s=0.2)
        assert produced(server, "t") == 200
        assert "driftq_idle_groups 1.0" in server.call("GET", "/v1/metrics").body.decode()
    finally:
        server.kill()
    with running(folder, LIMIT, "groups.idle_ms=500") as again:
        left = again.call("GET", "/v1/topics/t/groups/left").json()
        assert (left["idle"], left["lag"]) == (True, 4)
        assert "idle" in cli(again, "groups", "list", "t")
        claim = {"topic": "t", "group": "left", "owner": "o", "max": 10}
        assert [message["offset"] for message in again.call("POST", "/v1/claim", claim).json()["messages"]] == [
            0,
            1,
            2,
            3,
        ]


@pytest.mark.parametrize("query", ["lease_ms=1", "lease_ms=99999999999", "start=never", "lease_ms=x"])
def test_a_refused_consume_creates_no_group(server, query):
    server.call("POST", "/v1/topics", {"name": "refused"})
    refused = server.call("GET", f"/v1/consume?topic=refused&group=g&owner=o&{query}")
    assert refused.status == 400
    assert server.call("GET", "/v1/topics/refused/groups").json() == {"groups": []}
