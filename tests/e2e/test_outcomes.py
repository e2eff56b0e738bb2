"""Outcomes and late settlements over HTTP: fenced, idempotent across kills, with the checks of JSON streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import driftq
from driftq.wire.records import Record, pack
from tests.support.server import Reply, Server, running
from tests.support.wait import until_now

JSON = {"Content-Type": "application/json"}
PACKED = {"Content-Type": "application/x-driftq-batch"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(None) as running_server:
        for topic in ("in", "out"):
            running_server.call("POST", "/v1/topics", {"name": topic})
        yield running_server


def produce(server: Server, value: str, **more: object) -> None:
    assert server.call("POST", "/v1/produce", {"topic": "in", "value": value, **more}).status == 200


def claim(server: Server, group: str, owner: str, lease_ms: int = 60_000) -> dict[str, Any]:
    body = {"topic": "in", "group": group, "owner": owner, "lease_ms": lease_ms, "wait_ms": 10_000}
    [message] = server.call("POST", "/v1/claim", body).json()["messages"]
    assert isinstance(message, dict)
    return message


def held(message: dict[str, Any]) -> dict[str, Any]:
    return {name: message[name] for name in ("partition", "offset", "token")}


def outcome(server: Server, group: str, message: dict[str, Any], value: str, **more: object) -> Reply:
    acks = [{"topic": "in", "group": group, "messages": [held(message)]}]
    return server.call("POST", "/v1/outcome", {"acks": acks, "produce": [{"topic": "out", "value": value}], **more})


def settle(server: Server, verb: str, group: str, message: dict[str, Any], **more: object) -> Reply:
    return server.call("POST", f"/v1/{verb}", {"topic": "in", "group": group, **held(message), **more})


def produced(server: Server) -> list[str]:
    path = "/v1/topics/out/partitions/0/messages?offset=0&limit=1000"
    return [message["value"] for message in server.call("GET", path).json()["messages"]]


def test_a_worker_that_lost_its_message_cannot_finish_it(server: Server) -> None:
    produce(server, "pay", envelope={"retry_policy": {"max_attempts": 5, "backoff_ms": 1}})
    lost = claim(server, "zombies", "ann", 100)
    taken = claim(server, "zombies", "bob")
    assert taken["offset"] == lost["offset"]
    assert outcome(server, "zombies", lost, "by ann, late").status == 409
    assert outcome(server, "zombies", taken, "by bob").status == 200
    refused = outcome(server, "zombies", lost, "by ann, after bob")
    assert refused.status == 409
    assert "nothing of the outcome was done" in refused.json()["message"]
    assert [value for value in produced(server) if value.startswith("by ")] == ["by bob"]


def test_an_outcome_sent_again_answers_with_the_first_result_also_after_a_kill(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    server = Server(folder)
    for topic in ("in", "out"):
        server.call("POST", "/v1/topics", {"name": topic})
    server.call("PUT", "/v1/stream/log", headers={"Content-Type": "text/plain"})
    produce(server, "work")
    message = claim(server, "g", "ann")
    append = [{"path": "log", "value": "done", "content_type": "text/plain"}]
    first = outcome(server, "g", message, "receipt", streams=append)
    assert first.status == 200
    server.kill()
    server = Server(folder)
    again = outcome(server, "g", message, "receipt", streams=append)
    assert (again.status, again.json()) == (200, first.json() | {"duplicate": True})
    other = outcome(server, "g", message, "another receipt", streams=append)
    assert (other.status, other.json()["error"]) == (409, "CONFLICT")
    server.stop()  # also from a snapshot
    server = Server(folder)
    assert outcome(server, "g", message, "receipt", streams=append).json() == again.json()
    assert produced(server) == ["receipt"]
    assert server.call("GET", "/v1/stream/log?offset=-1").body == b"done"
    assert server.stop() == 0


def test_an_outcome_without_acks_can_have_a_key(server: Server) -> None:
    body = {"produce": [{"topic": "out", "value": "keyed"}], "idempotency_key": "nightly-1"}
    first = server.call("POST", "/v1/outcome", body)
    again = server.call("POST", "/v1/outcome", body)
    assert again.json() == first.json() | {"duplicate": True}
    other = server.call("POST", "/v1/outcome", body | {"produce": [{"topic": "out", "value": "other"}]})
    assert (other.status, other.json()["error"]) == (409, "KEY_CONFLICT")
    assert produced(server).count("keyed") == 1


# --- JSON streams -----------------------------------------------------------------------------------------------------


def messages_of(server: Server, path: str) -> list[object]:
    messages: list[object] = json.loads(server.call("GET", f"/v1/stream/{path}?offset=-1").body)
    return messages


def append_by_outcome(server: Server, path: str, value: str) -> Reply:
    part = {"path": path, "value": value, "content_type": "application/json"}
    body = {"streams": [part], "produce": [{"topic": "out", "value": f"with {value}"}]}
    return server.call("POST", "/v1/outcome", body)


def test_an_outcome_writes_json_as_a_post_does(server: Server) -> None:
    server.call("PUT", "/v1/stream/js", headers=JSON)
    for bad in ("{bad", "[1,", "", "[]", "charged", "1 2"):
        refused = append_by_outcome(server, "js", bad)
        assert refused.status == 400, (bad, refused)
        assert f"with {bad}" not in produced(server)
    assert server.call("POST", "/v1/stream/js", b"[]", JSON).status == 400, "as a POST is"
    assert append_by_outcome(server, "js", "[1,2]").status == 200
    assert append_by_outcome(server, "js", '{"a": 1}').status == 200
    assert append_by_outcome(server, "js", "[[3]]").status == 200
    assert messages_of(server, "js") == [1, 2, {"a": 1}, [3]]


def test_a_stage_for_a_json_stream_holds_json_in_every_record(server: Server) -> None:
    server.call("PUT", "/v1/stream/staged", headers=JSON)

    def stage(handle: str, *values: bytes) -> Reply:
        batch = pack([Record(value) for value in values])
        return server.call("POST", f"/v1/stages?writer=w&handle={handle}&path=staged", batch, PACKED)

    for values in ((b"{bad",), (b"1", b""), (b"[1", b"2],3"), (b"1,2",), (b'"\xff"',)):
        refused = stage("bad", *values)
        assert refused.status == 400, (values, refused)
        assert "record" in refused.json()["message"]
    assert stage("good", b"1", b' {"a": 2}', b"[3,4]", b'"\\ud800"').status == 201
    body = {"writer": "w", "batch": 1, "handles": ["good"]}
    assert server.call("POST", "/v1/stages/publish", body).status == 200
    assert messages_of(server, "staged") == [1, {"a": 2}, [3, 4], "\ud800"], "a record is one message, as an element is"


def test_the_client_appends_values_as_json_and_adds_no_producer(server: Server) -> None:
    with driftq.connect(server.url) as broker:
        stream = broker.stream("runs/7", "application/json")
        stream.create()
        stream.append("before")
        for number in range(3):
            produce(server, f"run {number}")
        for message in broker.claim("in", "runs", max=100):
            with message.outcome() as outcome:
                outcome.append("runs/7", "charged", content_type="application/json")
                outcome.send("out", "next")
        with broker.outcome() as outcome:
            outcome.append("runs/7", {"sum": 3}, content_type="application/json", close=True)
        charged = len([value for value in stream.read().json() if value == "charged"])
        assert charged >= 3
        assert stream.read().json() == ["before", *["charged"] * charged, {"sum": 3}]
        assert stream.describe().closed


def test_an_outcome_that_names_a_producer_as_older_clients_do_leaves_no_entry(server: Server) -> None:
    server.call("PUT", "/v1/stream/old", headers={"Content-Type": "text/plain"})
    part = {"path": "old", "value": "x", "content_type": "text/plain", "producer_id": "outcome-1"}
    first = server.call("POST", "/v1/outcome", {"streams": [part]})
    assert first.status == 200
    assert server.call("POST", "/v1/outcome", {"streams": [part]}).json() == first.json() | {"duplicate": True}
    assert server.call("GET", "/v1/stream/old?producer=outcome-1").status == 404
    assert server.call("GET", "/v1/stream/old?offset=-1").body == b"x"


# --- late settlements
# -----------------------------------------------------------------------------------------------------


def test_an_ack_of_a_dead_letter_is_refused(server: Server) -> None:
    produce(server, "poison")
    message = claim(server, "dying", "ann")
    while message["value"] != "poison":
        message = claim(server, "dying", "ann")
    body = {"topic": "in", "group": "dying", "messages": [held(message)], "reason": "bad"}
    assert server.call("POST", "/v1/reject", body).json()["refused"] == []
    refused = settle(server, "ack", "dying", message)
    assert (refused.status, refused.json()["error"]) == (409, "FAILED_PRECONDITION")
    assert "dead letter" in refused.json()["message"]
    assert server.call("POST", "/v1/reject", body).json()["refused"] == [], "a repeat by the same caller succeeds"


def test_a_nack_after_the_lease_ran_out_keeps_its_reason(server: Server) -> None:
    produce(server, "slow")
    message = claim(server, "slow", "ann", 100)
    path = f"/v1/topics/in/groups/slow/states?partition=0&offset={message['offset']}"

    def lost() -> bool:
        return "ack_timeout" in server.call("GET", path).json()["pending"]["last_error"]

    until_now(lost, 10)
    assert settle(server, "nack", "slow", message, reason="boom", delay_ms=60_000).status == 204
    pending = server.call("GET", path).json()["pending"]
    assert pending["last_error"][pending["offset"].index(message["offset"])] == "boom"


def test_a_nack_of_a_settled_message_is_refused_and_an_ack_is_not(server: Server) -> None:
    produce(server, "done")
    message = claim(server, "settled", "ann")
    assert settle(server, "ack", "settled", message).status == 204
    assert settle(server, "ack", "settled", message).status == 204
    refused = settle(server, "nack", "settled", message | {"token": "wrong"}, reason="no")
    assert (refused.status, refused.json()["error"]) == (409, "FAILED_PRECONDITION")
    assert "settled already" in refused.json()["message"]


# --- effects ----------------------------------------------------------------------------------------------------------


def test_an_effect_is_begun_again_by_its_token_or_fence_and_not_by_a_name(server: Server) -> None:
    body = {"topic": "in", "group": "effects", "key": "pay", "owner": "worker"}
    first = server.call("POST", "/v1/idempotency/begin", body | {"token": "lease-1"})
    assert first.json()["status"] == "begun"
    for stranger in ({}, {"token": "lease-2"}, {"fence": first.json()["fence"] + 1}):
        assert server.call("POST", "/v1/idempotency/begin", body | stranger).json()["error"] == "BUSY"
    again = server.call("POST", "/v1/idempotency/begin", body | {"token": "lease-1"}).json()
    assert again["fence"] > first.json()["fence"]
    assert server.call("POST", "/v1/idempotency/begin", body | {"fence": again["fence"]}).status == 200


def test_the_effect_of_a_message_can_be_begun_again_by_its_holder_alone(server: Server) -> None:
    with driftq.connect(server.url) as broker:
        for number in range(2):
            produce(server, f"pay {number}")
        message, other = broker.claim("in", "helpers", max=100)[-2:]  # under one owner and one token
        with message.effect("pay-9") as effect:
            assert effect.fresh
            with message.effect("pay-9") as again:  # as after a lost reply
                assert again.fence > effect.fence
                with pytest.raises(driftq.errors.Busy), other.effect("pay-9"):
                    raise AssertionError("another message of the same owner got the effect")
            assert message.settled
            effect.fresh = False


# --- idempotency keys -------------------------------------------------------------------------------------------------


def test_a_strict_key_stands_for_the_whole_message_and_not_for_its_value_alone() -> None:
    with running(None, "idempotency.strict=true") as server:
        server.call("POST", "/v1/topics", {"name": "in", "partitions": 2})
        envelope = {"idempotency_key": "k", "labels": {"a": "1", "b": "2"}, "run_id": "r"}
        body = {"topic": "in", "value": "same", "key": "ann", "envelope": envelope}
        first = server.call("POST", "/v1/produce", body)
        assert first.status == 200
        trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
        assert server.call("POST", "/v1/produce", body, trace).json()["duplicate"], "a trace is not the message's"
        turned = body | {"envelope": envelope | {"labels": {"b": "2", "a": "1"}}}
        assert server.call("POST", "/v1/produce", turned).json()["duplicate"]
        for other in ({"value": "other"}, {"key": "bob"}, {"envelope": envelope | {"run_id": "s"}}, {"priority": 1}):
            refused = server.call("POST", "/v1/produce", body | other)
            assert (refused.status, refused.json()["error"]) == (409, "KEY_CONFLICT"), other
