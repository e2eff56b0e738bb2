"""A real server, killed in the middle of appends by idempotent producers: nothing is duplicated or lost, and the
order is kept.

Each producer has five batches in flight on five connections and repeats each until it has a reply.
"""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

import pytest

from driftq.wire.streams import offset_of
from tests.support.linearizability import Call, is_linearizable
from tests.support.server import Server
from tests.support.stream_model import StreamRequest, StreamResponse, StreamTail

IN_FLIGHT = 5
PATIENCE_S = 40.0


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Wire:
    """One connection that is opened again when it breaks. Raises OSError when there is no answer."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        try:
            return await self._ask(method, path, body, headers or {})
        except (OSError, asyncio.IncompleteReadError) as error:
            self.close()
            raise ConnectionError(str(error)) from error

    async def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:]) if value}
        data = await self._reader.readexactly(int(fields.get("content-length", 0)))
        return Answer(int(head[0].split()[1]), fields, data)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None


class Producer:
    """Numbers batches and sends each until it is accepted, five at a time."""

    def __init__(self, name: str, path: str, port: int, first: int) -> None:
        self.name = name
        self._path = path
        self._wires = [Wire(port) for _ in range(IN_FLIGHT)]
        self._next = first
        self.acknowledged = 0
        self.retries = 0

    async def run(self, until: asyncio.Event) -> None:
        await asyncio.gather(*(self._send(wire, until) for wire in self._wires))
        for wire in self._wires:
            wire.close()

    async def _send(self, wire: Wire, until: asyncio.Event) -> None:
        while not until.is_set():
            seq, self._next = self._next, self._next + 1
            async with asyncio.timeout(PATIENCE_S):
                await self._deliver(wire, seq)

    async def _deliver(self, wire: Wire, seq: int) -> None:
        body = b'["%b:%d","%b:%d+"]' % (self.name.encode(), seq, self.name.encode(), seq)
        headers = {"Content-Type": "application/json", "Producer-Id": self.name, "Producer-Epoch": "0"}
        while True:
            try:
                heard = await wire.ask("POST", self._path, body, {**headers, "Producer-Seq": str(seq)})
            except OSError:
                self.retries += 1
                await pause()
                continue
            if heard.status in (200, 204):
                self.acknowledged += 1
                return
            assert heard.status in (409, 503), (heard.status, heard.body)
            self.retries += 1


async def pause() -> None:
    """Between two tries at a server that is down."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.01, done.set_result, None)
    await done


KILLS = {"dev": 3, "ci": 6, "release": 60}


@pytest.mark.timeout(600)
def test_producers_write_exactly_once_through_kills(tmp_path, profile, seed):
    folder = str(tmp_path / "data")
    server = Server(folder)
    port = server.port
    chance = random.Random(seed)
    path = "/v1/stream/killed"
    assert server.call("PUT", path, b"", {"Content-Type": "application/json"}).status == 201
    producers = [Producer(f"p{number}", path, port, 0) for number in range(3)]

    async def drive() -> None:
        nonlocal server
        stop = asyncio.Event()
        writing = asyncio.gather(*(producer.run(stop) for producer in producers))
        for _ in range(KILLS[profile]):
            goal = sum(producer.acknowledged for producer in producers) + chance.randint(20, 120)
            while sum(producer.acknowledged for producer in producers) < goal:
                assert not writing.done(), writing.exception()
                await pause()
            server.kill()
            server = await asyncio.to_thread(Server, folder, port=port)
        stop.set()
        await writing

    try:
        asyncio.run(drive())
        values: list[str] = []
        offset = "-1"
        while True:
            reply = server.call("GET", f"{path}?offset={offset}")
            values += reply.json()
            offset = reply.headers["stream-next-offset"]
            if "stream-up-to-date" in reply.headers:
                break
    finally:
        server.stop()
    assert sum(producer.retries for producer in producers), "no producer was hit by a kill: this run proved nothing"
    for producer in producers:
        mine = [text for text in values if text.startswith(producer.name + ":")]
        expected = [f"{producer.name}:{seq}{part}" for seq in range(producer.acknowledged) for part in ("", "+")]
        assert mine == expected, f"{producer.name}: {len(mine)} of {len(expected)}"


# --- conditional appends ----------------------------------------------------------------------------------------------

HISTORIES = {"dev": 40, "ci": 200, "release": 2_000}


@pytest.mark.timeout(300)
def test_conditional_appends_are_linearizable(tmp_path, profile, seed):
    server = Server(str(tmp_path / "data"))
    try:
        asyncio.run(record_histories(server.port, HISTORIES[profile], seed))
    finally:
        server.stop()


async def record_histories(port: int, count: int, seed: int) -> None:
    """Five clients on one stream, each with its own view of the end; every answer is checked afterwards."""
    chance = random.Random(seed)
    wires = [Wire(port) for _ in range(5)]
    refused = 0
    for number in range(count):
        path = f"/v1/stream/history/{number}"
        assert (await wires[0].ask("PUT", path, headers={"Content-Type": "application/json"})).status == 201
        calls: list[Call[StreamRequest, StreamResponse]] = []
        plans = [[chance.random() for _ in range(4)] for _ in wires]
        await asyncio.gather(*(act(wire, path, plan, calls) for wire, plan in zip(wires, plans, strict=True)))
        assert is_linearizable(calls, StreamTail(0)), calls
        refused += sum(call.response.moved for call in calls)
    for wire in wires:
        wire.close()
    assert refused > count, "no writers conflicted: this run proved nothing"


async def act(wire: Wire, path: str, plan: list[float], calls: list[Call[StreamRequest, StreamResponse]]) -> None:
    clock = asyncio.get_running_loop().time
    seen = 0
    for dice in plan:
        invoked = int(clock() * 1e9)
        if dice < 0.25:
            heard = await wire.ask("HEAD", path)
            request = StreamRequest("tail", 0, None, False)
        else:
            condition = {} if dice < 0.4 else {"If-Match": f"0000000000000000_{seen:016d}"}
            body = b"[1,2]" if dice < 0.7 else b"1"
            heard = await wire.ask("POST", path, body, {"Content-Type": "application/json", **condition})
            request = StreamRequest("append", 2 if dice < 0.7 else 1, seen if condition else None, False)
        end = offset_of(heard.headers["stream-next-offset"])
        assert end is not None
        moved = heard.status == 412
        before = end - request.count if request.what == "append" and not moved else end
        calls.append(Call(invoked, int(clock() * 1e9), request, StreamResponse(before, moved)))
        seen = end
