"""Live reads under load: a thousand readers of one stream, readers that do not read, and clients that disconnect."""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
import socket

import pytest

from driftq.wire.streams import token
from tests.support.server import running
from tests.support.wait import until_now

TEXT = {"Content-Type": "text/plain"}
READERS = 1_000


def memory_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


class Reader:
    """One SSE connection that counts what it got."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int, path: str, offset: str) -> Reader:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path}?live=sse&offset={offset} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head, head
        return cls(reader, writer)

    async def events(self) -> list[tuple[str, str]]:
        """All events until the server disconnects."""
        text = (await self._reader.read()).decode()
        self._writer.close()
        events = []
        for event in text.split("\n\n")[:-1]:
            lines = event.split("\n")
            data = "\n".join(line[5:].removeprefix(" ") for line in lines[1:])
            events.append((lines[0].removeprefix("event: "), data))
        return events


def test_a_thousand_readers_get_everything_once_and_the_end_last(tmp_path):
    resource.setrlimit(resource.RLIMIT_NOFILE, (4_096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    async def follow(port: int, path: str) -> list[list[tuple[str, str]]]:
        readers = await asyncio.gather(*(Reader.open(port, path, "-1") for _ in range(READERS)))
        reading = asyncio.gather(*(reader.events() for reader in readers))
        for number in range(10):
            await asyncio.to_thread(server.call, "POST", path, b"<%d>" % number, TEXT)
        await asyncio.to_thread(server.call, "POST", path, b"<end>", {**TEXT, "Stream-Closed": "true"})
        return await reading

    with running(str(tmp_path / "data")) as server:
        path = "/v1/stream/crowd"
        server.call("PUT", path, b"<begin>", TEXT)
        readers_events = asyncio.run(follow(server.port, path))
    whole = "<begin>" + "".join(f"<{number}>" for number in range(10)) + "<end>"
    for events in readers_events:
        assert "".join(data for kind, data in events if kind == "data") == whole
        controls = [json.loads(data) for kind, data in events if kind == "control"]
        assert controls[-1] == {"streamNextOffset": token(12), "streamClosed": True}
        assert not any("streamClosed" in control for control in controls[:-1])
        kinds = [kind for kind, _ in events]
        assert all(after == "control" for kind, after in itertools.pairwise(kinds) if kind == "data")


def test_readers_that_do_not_read_cost_no_memory_and_can_resume(tmp_path):
    piece = b"x" * (256 << 10)
    with running(str(tmp_path / "data"), "storage.cache_bytes=4194304") as server:
        path = "/v1/stream/slow"
        server.call("PUT", path, b"", TEXT)
        stalled = []
        for _ in range(30):
            client = socket.create_connection(("127.0.0.1", server.port))
            client.sendall(f"GET {path}?offset=now&live=sse HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            got = b""
            while b"event: control" not in got:
                got += client.recv(4_096)
            stalled.append(client)
        before = memory_bytes(server.process.pid)
        for _ in range(80):
            assert server.call("POST", path, piece, TEXT).status == 204
        grown = memory_bytes(server.process.pid) - before
        assert grown < 100 << 20, f"{grown >> 20} MiB for thirty readers that take nothing"
        healthy = server.call("GET", f"{path}?offset={token(79)}&live=long-poll")
        assert (healthy.status, len(healthy.body)) == (200, len(piece))
        received = 0
        stalled[0].settimeout(20)
        while received < 80 * len(piece):
            received += len(stalled[0].recv(1 << 20))
        for client in stalled:
            client.close()
        until_now(lambda: server.call("GET", path + "?offset=now").status == 200, 5)


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_readers_that_vanish_leave_nothing_behind(tmp_path, live):
    with running(str(tmp_path / "data"), "streams.long_poll_ms=60000") as server:
        path = "/v1/stream/vanishing"
        server.call("PUT", path, b"x", TEXT)
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(f"GET {path}?offset={token(1)}&live={live} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        for number in range(20):
            reply = server.call("POST", path, b"y", TEXT)
            assert reply.headers["stream-next-offset"] == token(number + 2)
        assert server.stop() == 0
        assert not [line for line in server.lines if "ERROR" in line or "Traceback" in line], server.lines


def test_an_old_sse_connection_is_closed_and_the_next_resumes(tmp_path):
    with running(str(tmp_path / "data"), "streams.sse_ms=200") as server:
        path = "/v1/stream/recycled"
        server.call("PUT", path, b"one", TEXT)

        async def read(offset: str) -> list[tuple[str, str]]:
            return await (await Reader.open(server.port, path, offset)).events()

        first = asyncio.run(read("-1"))
        assert first[0] == ("data", "one")
        offset = json.loads(first[-1][1])["streamNextOffset"]
        server.call("POST", path, b"two", TEXT)
        second = asyncio.run(read(offset))
        assert [data for kind, data in second if kind == "data"] == ["two"]
