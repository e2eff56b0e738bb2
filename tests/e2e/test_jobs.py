"""Job ids and job states against a real server: also after a restart, with several groups, and through a router."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Reply, Server, running
from tests.support.wait import until_now

TTL = "idempotency.ttl_ms=300"
WAIT_S = 20


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(None, TTL) as started:
        yield started


@pytest.fixture
def topic(server: Server, request: pytest.FixtureRequest) -> str:
    name: str = request.node.name[:200]
    assert server.call("POST", "/v1/topics", {"name": name}).status == 201
    return name


def enqueue(server: Server, topic: str, job_id: str, **fields: object) -> Reply:
    return server.call("POST", "/v1/jobs", {"topic": topic, "id": job_id, "value": "v", **fields})


def state(server: Server, topic: str, job_id: str) -> Any:
    reply = server.call("GET", f"/v1/jobs/{topic}/{job_id}")
    return reply.json()["state"] if reply.status == 200 else reply.status


def states(server: Server, topic: str, job_id: str) -> dict[str, str]:
    return {
        group["group"]: group["state"] for group in server.call("GET", f"/v1/jobs/{topic}/{job_id}").json()["groups"]
    }


def claim(server: Server, topic: str, group: str, **fields: object) -> Any:
    return server.call("POST", "/v1/claim", {"topic": topic, "group": group, "owner": "w", **fields}).json()


def settle(server: Server, verb: str, topic: str, group: str, claimed: Any, **fields: object) -> None:
    message = claimed["messages"][0]
    held = {"partition": message["partition"], "offset": message["offset"], "token": message["token"]}
    body = {"topic": topic, "group": group, "messages": [held], **fields}
    reply = server.call("POST", f"/v1/{verb}", body)
    assert reply.status in (200, 204), reply
    assert not (reply.body and reply.json().get("refused")), reply


def pass_ttl(server: Server, topic: str) -> None:
    """Wait for a whole TTL, until a key that is produced now would be dropped."""
    body = {"topic": topic, "value": "v", "envelope": {"idempotency_key": "clock"}}
    assert server.call("POST", "/v1/produce", body).status == 200
    until_now(lambda: not server.call("POST", "/v1/produce", body).json().get("duplicate"), WAIT_S)


def test_the_id_of_a_scheduled_job_is_taken_also_after_a_restart(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    with running(folder, TTL) as server:
        server.call("POST", "/v1/topics", {"name": "t"})
        server.call("POST", "/v1/topics", {"name": "clock"})
        assert enqueue(server, "t", "reminder", delay_ms=60_000).status == 201
        pass_ttl(server, "clock")
        assert state(server, "t", "reminder") == "scheduled"
        assert enqueue(server, "t", "reminder").json()["duplicate"] is True
        server.kill()
    with running(folder, TTL) as server:
        pass_ttl(server, "clock")
        assert state(server, "t", "reminder") == "scheduled"
        assert enqueue(server, "t", "reminder").json()["duplicate"] is True
        assert server.call("POST", "/v1/jobs/t/reminder/cancel").json()["cancelled"] is True
        assert state(server, "t", "reminder") == "cancelled"
        assert claim(server, "t", "g")["messages"] == []
        until_now(lambda: enqueue(server, "t", "reminder").status == 201, WAIT_S)
        assert [message["offset"] for message in claim(server, "t", "g", wait_ms=2_000)["messages"]] == [1]


def test_the_id_of_a_running_job_is_taken_until_its_ttl_after_the_end(server: Server, topic: str) -> None:
    server.call("POST", "/v1/topics", {"name": "clock"})
    assert enqueue(server, topic, "j", task="mail").status == 201
    claimed = claim(server, topic, "g", lease_ms=60_000)
    pass_ttl(server, "clock")
    assert state(server, topic, "j") == "running"
    assert enqueue(server, topic, "j").json()["duplicate"] is True
    settle(server, "ack/batch", topic, "g", claimed)
    assert state(server, topic, "j") == "succeeded"
    assert enqueue(server, topic, "j").json()["duplicate"] is True
    until_now(lambda: state(server, topic, "j") == 404, WAIT_S)
    assert enqueue(server, topic, "j").status == 201


def test_a_job_that_one_group_finished_is_not_ready_because_of_groups_with_other_tasks(
    server: Server, topic: str
) -> None:
    assert enqueue(server, topic, "j", task="mail").status == 201
    assert claim(server, topic, "reports", task="report")["messages"] == []
    claimed = claim(server, topic, "mails", task="mail")
    assert states(server, topic, "j") == {"reports": "unclaimed", "mails": "running"}
    settle(server, "ack/batch", topic, "mails", claimed)
    assert state(server, topic, "j") == "succeeded"
    lags = {group["group"]: group["lag"] for group in server.call("GET", f"/v1/groups?topic={topic}").json()["groups"]}
    assert lags == {"reports": 0, "mails": 0}
    claim(server, topic, "reports")
    assert states(server, topic, "j")["reports"] == "running", "a group without a filter gets it"


def test_the_reason_of_a_reject_is_shown_with_the_attempt(server: Server, topic: str) -> None:
    enqueue(server, topic, "j", task="mail")
    settle(server, "reject", topic, "g", claim(server, topic, "g"), reason="no such address")
    shown = server.call("GET", f"/v1/jobs/{topic}/j").json()
    assert shown["state"] == "dead"
    [attempt] = shown["groups"][0]["attempts"]
    assert (attempt["end"], attempt["error"]) == ("dead", "no such address")


def test_a_job_with_an_idempotency_key_is_found_by_its_id(server: Server, topic: str) -> None:
    assert enqueue(server, topic, "j", envelope={"idempotency_key": "k"}).status == 201
    assert state(server, topic, "j") == "ready"
    assert enqueue(server, topic, "j").json()["duplicate"] is True
    assert enqueue(server, topic, "other", envelope={"idempotency_key": "k"}).json()["duplicate"] is True


def test_a_routed_job_is_found_under_both_topics(server: Server, topic: str) -> None:
    server.call("POST", "/v1/topics", {"name": f"{topic}.asked"})
    placed = enqueue(server, f"{topic}.asked", "j", envelope={"target_topic": topic})
    assert (placed.status, placed.json()["topic"]) == (201, topic)
    assert state(server, topic, "j") == state(server, f"{topic}.asked", "j") == "ready"
    assert server.call("POST", f"/v1/jobs/{topic}/j/cancel").json()["cancelled"] is True
    assert state(server, f"{topic}.asked", "j") == "cancelled"


def test_expired_keys_are_dropped_without_new_produces(server: Server, topic: str) -> None:
    messages = [{"value": "v", "envelope": {"idempotency_key": f"k{number}"}} for number in range(500)]
    assert server.call("POST", "/v1/produce/batch", {"topic": topic, "messages": messages}).status == 200

    def remembered() -> int:
        lines = server.call("GET", "/v1/metrics").body.decode().splitlines()
        return int(float(next(line for line in lines if line.startswith("driftq_idempotency_keys ")).split()[1]))

    until_now(lambda: remembered() < 100, WAIT_S)
