"""Outbound calls of the broker: never to itself, not delayed by slow receivers, not stopped by a bad URL."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from driftq.core.model import subscriptions
from driftq.core.model.stream_facts import WEBHOOK, SubscriptionConfig
from driftq.engine.engine import Engine
from tests.e2e.test_streams_subscriptions import JSON, ROOT, Receiver
from tests.support.server import Server, running
from tests.support.wait import until_now


def subscribe(server: Server, name: str, url: str, pattern: str):
    body = {"type": "webhook", "pattern": pattern, "webhook": {"url": url}}
    return server.call("PUT", f"{ROOT}/{name}", body)


class SlowReceiver:
    """Sends a byte now and then, and never finishes its response."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/slow"
        self.calls = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        open_sockets = []
        self._listening.settimeout(0.1)
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                accepted = self._listening.accept()[0]
                accepted.send(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                open_sockets.append(accepted)
                self.calls += 1
            for peer in open_sockets:
                with contextlib.suppress(OSError):
                    peer.send(b"x")
        for peer in open_sockets:
            peer.close()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._listening.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with contextlib.closing(Receiver()) as receiving:
        yield receiving


def test_slow_receivers_time_out_and_delay_no_other(receiver: Receiver) -> None:
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(contextlib.closing(SlowReceiver())) for _ in range(16)]
        server = stack.enter_context(running(None, "outbound.timeout_ms=1500"))
        for number, target in enumerate(slow):
            for again in range(6):
                assert subscribe(server, f"slow-{number}-{again}", target.url, "slow/**").status == 201
        assert subscribe(server, "good", receiver.url, "good/**").status == 201
        server.call("PUT", "/v1/stream/slow/a", b"[1]", JSON)
        until_now(lambda: all(target.calls >= 1 for target in slow), 20)
        assert max(target.calls for target in slow) <= 4, "a receiver has a share of its own"
        server.call("PUT", "/v1/stream/good/a", b"[1]", JSON)
        until_now(lambda: len(receiver.calls) == 1, 20)
        until_now(lambda: server.call("GET", f"{ROOT}/slow-0-0").json()["status"] == "failed", 20)
        until_now(lambda: slow[0].calls > 4, 20)


def test_the_broker_does_not_call_itself(receiver: Receiver) -> None:
    with running(None) as server:
        server.call("POST", "/v1/topics", {"name": "t"})
        for host in ("127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "127.0.0.2", "0.0.0.0", "[::]"):
            refused = subscribe(server, "self", f"http://{host}:{server.port}/v1/topics/t/groups/g/pause", "**")
            assert (refused.status, refused.json()["error"]["code"]) == (400, "WEBHOOK_URL_REJECTED"), host
        for address in ("10.0.0.1", "169.254.169.254", "[64:ff9b::a00:1]", "[2002:a00:1::]", "[::ffff:10.0.0.1]"):
            refused = subscribe(server, "inside", f"https://{address}/", "**")
            assert refused.status == 400, address
            assert "outbound.allow" in refused.json()["error"]["message"]


def test_a_router_cannot_be_the_broker_itself() -> None:
    with running(None, "router.kind=webhook", "router.target=http://127.0.0.1:1/v1/route") as server:
        port = server.port
    settings = ("router.kind=webhook", f"router.target=http://localhost:{port}/v1/topics?name=made")
    server = Server(None, *settings, port=0)
    server.call("POST", "/v1/topics", {"name": "t"})
    assert server.call("POST", "/v1/produce", {"topic": "t", "value": "v"}).status == 200
    assert server.stop() == 0
    with pytest.raises(AssertionError, match="does not call itself"):
        Server(None, *settings, port=port)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/caf\u00e9", "http://127.0.0.1:9/a b", "http://127.0.0.1:9/\r\nX: y"]
)
def test_a_url_that_cannot_be_sent_is_refused_at_its_creation(url: str) -> None:
    with running(None) as server:
        refused = subscribe(server, "s", url, "**")
        assert (refused.status, refused.json()["error"]["code"]) == (400, "WEBHOOK_URL_REJECTED")
        assert server.call("GET", f"{ROOT}/s").status == 404


async def _stored_by_an_older_version(folder: str, url: str) -> None:
    engine = await Engine.open(folder)
    await engine.submit(subscriptions.MakeSigningKey(b"s" * 32))
    config = SubscriptionConfig(WEBHOOK, "**", (), url, "", 30_000, "")
    await engine.submit(subscriptions.CreateSubscription("old", config, "http://127.0.0.1"))
    await engine.close()


def test_a_stored_url_that_cannot_be_sent_fails_like_any_call_and_stops_nothing(
    tmp_path: Path, receiver: Receiver
) -> None:
    folder = str(tmp_path / "data")
    asyncio.run(_stored_by_an_older_version(folder, f"{receiver.url}/caf\u00e9"))
    with running(folder) as server:
        assert subscribe(server, "good", receiver.url, "**").status == 201
        server.call("PUT", "/v1/stream/a", b"[1]", JSON)
        until_now(lambda: len(receiver.calls) == 1, 20)
        until_now(lambda: server.call("GET", f"{ROOT}/old").json()["status"] == "failed", 20)
    assert not any("Traceback" in line for line in server.lines)
