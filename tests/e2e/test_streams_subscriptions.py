"""Subscriptions on a real server: webhooks reach a real receiver, and a wake survives a restart."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.server import Server, running
from tests.support.wait import until_now

JSON = {"Content-Type": "application/json"}
ROOT = "/v1/stream/__ds/subscriptions"


class Receiver:
    """A webhook receiver: records calls and answers as configured."""

    def __init__(self) -> None:
        self.calls: list[dict] = []
        self.status = 200
        self.answer = b"{}"
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.calls.append(json.loads(body))
                self.send_response(receiver.status)
                self.send_header("Content-Length", str(len(receiver.answer)))
                self.end_headers()
                self.wfile.write(receiver.answer)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def receiver():
    with contextlib.closing(Receiver()) as listening:
        yield listening


def subscribe(server: Server, receiver: Receiver, lease_ms: int = 60_000) -> None:
    body = {"type": "webhook", "pattern": "events/**", "webhook": {"url": receiver.url}, "lease_ttl_ms": lease_ms}
    assert server.call("PUT", f"{ROOT}/s", body).status == 201


def callback(server: Server, call: dict, token: str, **more: object):
    body = {"wake_id": call["wake_id"], "generation": call["generation"], **more}
    return server.call("POST", f"{ROOT}/s/callback", body, {"Authorization": f"Bearer {token}"})


def test_a_wake_is_called_again_by_the_next_server_after_a_kill(tmp_path, receiver):
    folder = str(tmp_path / "data")
    server = Server(folder)
    subscribe(server, receiver)
    server.call("PUT", "/v1/stream/events/a", b"[1]", JSON)
    until_now(lambda: len(receiver.calls) == 1, 10)
    keys = server.call("GET", "/v1/stream/__ds/jwks.json").json()
    server.kill()
    with running(folder) as server:
        until_now(lambda: len(receiver.calls) == 2, 10)
        first, second = receiver.calls
        assert (first["wake_id"], first["generation"]) == (second["wake_id"], second["generation"])
        assert server.call("GET", "/v1/stream/__ds/jwks.json").json() == keys
        acks = [{"stream": "events/a", "offset": second["streams"][0]["tail_offset"]}]
        done = callback(server, second, first["callback_token"], acks=acks, done=True)
        assert (done.status, done.json()) == (200, {"ok": True, "next_wake": False})
        assert callback(server, second, second["callback_token"], done=True).json()["error"]["code"] == "FENCED"
        server.call("POST", "/v1/stream/events/a", b"[2]", JSON)
        until_now(lambda: len(receiver.calls) == 3, 10)
        assert receiver.calls[2]["generation"] == first["generation"] + 1


def test_a_receiver_that_fails_is_called_again_and_shown_as_failing(tmp_path, receiver):
    receiver.status = 500
    with running(str(tmp_path / "data")) as server:
        subscribe(server, receiver)
        server.call("PUT", "/v1/stream/events/deep/a", b"[1]", JSON)
        until_now(lambda: server.call("GET", f"{ROOT}/s").json()["status"] == "failed", 10)
        receiver.status, receiver.answer = 200, b'{"done": true}'
        until_now(lambda: server.call("GET", f"{ROOT}/s").json()["status"] == "active", 10)
        shown = server.call("GET", f"{ROOT}/s").json()
        assert shown["streams"][0]["acked_offset"] == receiver.calls[-1]["streams"][0]["tail_offset"]
        assert server.call("DELETE", f"{ROOT}/s").status == 204
        assert server.call("DELETE", f"{ROOT}/s").status == 204
        assert server.call("GET", f"{ROOT}/s").status == 404


def test_a_forged_token_and_a_bad_body_get_different_errors(tmp_path, receiver):
    with running(str(tmp_path / "data")) as server:
        subscribe(server, receiver)
        server.call("PUT", "/v1/stream/events/a", b"[1]", JSON)
        until_now(lambda: bool(receiver.calls), 10)
        call = receiver.calls[0]
        assert callback(server, call, "1.forged").json()["error"]["code"] == "TOKEN_INVALID"
        beyond = [{"stream": "events/a", "offset": "9999999999999999_9999999999999999"}]
        refused = callback(server, call, call["callback_token"], acks=beyond)
        assert (refused.status, refused.json()["error"]["code"]) == (409, "INVALID_OFFSET")
        for body in ({}, {"type": "webhook", "pattern": "a"}, {"type": "pull-wake", "pattern": "a"}, {"type": "x"}):
            refused = server.call("PUT", f"{ROOT}/t", body)
            assert (refused.status, refused.json()["error"]["code"]) == (400, "INVALID_REQUEST")
        assert server.call("POST", f"{ROOT}/none/claim", {"worker": "w"}).status == 404
