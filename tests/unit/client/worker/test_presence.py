"""The presence of workers: heartbeats, the commands in their replies, a broker that is lost or has no registry."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import driftq
from driftq.client.worker import presence
from driftq.client.worker.presence import Presence
from driftq.server.handlers.codec import bad_request, error_response, internal_error, json_response
from driftq.server.http import Answer, Request
from driftq.server.http.listener import serve
from driftq.wire.workers import HeartbeatReply
from tests.support.wait import until


class Broker:
    """The HTTP layer of a broker, with an answer for each heartbeat."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.reply: HeartbeatReply | None = HeartbeatReply("", 10)  # None: it has no registry

    def __call__(self, request: Request) -> Answer:
        self.requests.append(f"{request.method} {request.path}")
        if request.path == "/v1/healthz":
            return json_response({"status": "ok"})
        if self.reply is None:
            return error_response(404, "NOT_FOUND", f"there is no {request.path}")
        return json_response(self.reply)


class Announced:
    """One presence that runs."""

    def __init__(self, client: driftq.AsyncDriftQ) -> None:
        self.drain, self.abort = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(Presence(client, [], self.drain, self.abort).run())


@asynccontextmanager
async def announced(broker: Broker) -> AsyncIterator[Announced]:
    listener = await serve(broker, "127.0.0.1", 0, on_bad_request=bad_request, on_error=internal_error)
    async with driftq.connect_async(f"http://127.0.0.1:{listener.port}", owner="me") as client:
        run = Announced(client)
        try:
            yield run
        finally:
            run.task.cancel()
            await asyncio.gather(run.task, return_exceptions=True)
            await listener.stop(0.1)


@pytest.mark.parametrize(("command", "aborts"), [("drain", False), ("stop", True)])
def test_a_command_ends_the_run_and_the_entry_is_removed_with_it(command, aborts):
    async def steps() -> None:
        broker = Broker()
        async with announced(broker) as run:

            async def has_announced() -> bool:
                return len(broker.requests) > 2

            await until(has_announced, 20)
            assert not run.drain.is_set()
            broker.reply = HeartbeatReply(command, 10)
            await asyncio.wait_for(run.drain.wait(), 20)
            assert run.abort.is_set() == aborts
        assert set(broker.requests[:-1]) == {"PUT /v1/workers/me"}
        assert broker.requests[-1] == "DELETE /v1/workers/me"

    asyncio.run(steps())


def test_an_older_broker_is_only_asked_whether_it_is_alive(monkeypatch):
    monkeypatch.setattr(presence, "HEARTBEAT_MS", 10)

    async def steps() -> None:
        broker = Broker()
        broker.reply = None
        async with announced(broker):

            async def has_asked() -> bool:
                return len(broker.requests) > 3

            await until(has_asked, 20)
        assert broker.requests[0] == "PUT /v1/workers/me"
        assert set(broker.requests[1:]) == {"GET /v1/healthz"}

    asyncio.run(steps())


def test_a_lost_broker_is_reported_and_so_is_its_return(caplog, monkeypatch):
    monkeypatch.setattr(presence, "HEARTBEAT_MS", 10)
    monkeypatch.setattr(presence, "WARNING_S", 0.2)

    async def steps() -> None:
        broker = Broker()
        listener = await serve(broker, "127.0.0.1", 0, on_bad_request=bad_request, on_error=internal_error)
        port = listener.port
        async with driftq.connect_async(f"http://127.0.0.1:{port}", owner="me") as client:
            run = Announced(client)

            async def logged(count: int) -> bool:
                return len(caplog.records) == count

            async def has_announced() -> bool:
                return bool(broker.requests)

            await until(has_announced, 20)
            await listener.stop(0.1)
            await until(lambda: logged(1), 20)
            assert client._transport.peer.is_lost
            await until(lambda: logged(2), 20)
            monkeypatch.setattr(presence, "WARNING_S", 60.0)
            listener = await serve(broker, "127.0.0.1", port, on_bad_request=bad_request, on_error=internal_error)
            await until(lambda: logged(3), 20)
            assert not client._transport.peer.is_lost
            run.task.cancel()
            await asyncio.gather(run.task, return_exceptions=True)
            await listener.stop(0.1)

    with caplog.at_level("WARNING", "driftq.worker"):
        asyncio.run(steps())
    lost, still, back = (record.getMessage() for record in caplog.records)
    assert lost.startswith("lost the broker at http://127.0.0.1:")
    assert still.startswith("still no reply of the broker at http://127.0.0.1:")
    assert "is back after" in back
