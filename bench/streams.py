"""Durable streams compared with the reference server from npm (file-backed), in the same run on the same machine.

Both get the same load over real sockets. Cases are interleaved; the median of the runs is reported, with the server's
CPU time per operation. Without Node.js or the reference's package only DriftQ is measured. Both servers sync every
append before they reply.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from bench.load_client import LoadClient, closed_loop, post
from bench.report import emit, median, quantile

ROOT = Path(__file__).parents[1]
REFERENCE = """
import { DurableStreamTestServer } from "@durable-streams/server"
const server = new DurableStreamTestServer({ port: 0, host: "127.0.0.1", dataDir: process.argv[1] })
console.log(await server.start())
"""
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Target:
    """A server process under load."""

    def __init__(self, name: str, command: list[str], cwd: Path, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            listening = re.search(r"http://(?:127\.0\.0\.1|localhost):(\d+)", line)
            if listening:
                self.port = int(listening[1])
                return
        raise RuntimeError(f"{name} did not start")

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_S

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def targets(folder: str | None) -> list[Target]:
    data = Path(tempfile.mkdtemp(prefix="bench-streams-", dir=folder))
    command = [sys.executable, "-m", "driftq.cli.main", "serve", "--listen", "127.0.0.1:0", "--data", str(data)]
    servers = [Target("driftq", command, ROOT, data)]
    packages = next(iter(sorted((ROOT / "build").glob("node-*/installed"))), None)
    if packages is not None and shutil.which("node"):
        data = Path(tempfile.mkdtemp(prefix="bench-streams-", dir=folder))
        node = ["node", "--input-type=module", "--eval", REFERENCE, str(data)]
        servers.append(Target("reference", node, packages.parent, data))
    else:
        print("the reference server is not installed; run the conformance tests once", file=sys.stderr)
    return servers


# --- the load ---------------------------------------------------------------------------------------------------------


def put(path: str, content_type: str) -> bytes:
    lines = (f"PUT {path} HTTP/1.1", "Host: localhost", f"Content-Type: {content_type}", "Content-Length: 0")
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


class Streams:
    """One target with a fresh path for every case."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.created = 0

    async def create(self, content_type: str) -> str:
        self.created += 1
        path = f"/v1/stream/bench/{self.created}"
        client = await LoadClient.connect(self.target.port)
        status, _ = await client.send(put(path, content_type))
        assert status == 201, status
        client.close()
        return path

    async def append(self, path: str, body: bytes, content_type: str, flights: int, seconds: float) -> float:
        """Appends per second, one connection for each in flight."""
        request = post(path, body, content_type)
        rate, _ = await closed_loop(self.target.port, lambda: request, flights, seconds)
        return rate

    async def fill(self, path: str, body: bytes, content_type: str, count: int) -> None:
        request = post(path, body, content_type)
        client = await LoadClient.connect(self.target.port)
        for _ in range(count):
            status, _ = await client.send(request)
            assert status in (200, 204), status
        client.close()

    def catch_up(self, path: str) -> float:
        """MB/s of reading the whole stream, in as many responses as the server sends. The client blocks and ignores the
        bytes, so that the server is what is measured."""
        offset, size = "-1", 0
        buffer = memoryview(bytearray(1 << 20))
        with socket.create_connection(("127.0.0.1", self.target.port)) as connection:
            began_s = time.perf_counter()
            while True:
                connection.sendall(get(f"{path}?offset={offset}"))
                head, rest = _head(connection, buffer)
                size += _skip_body(connection, buffer, head, rest)
                next_offset = re.search(r"stream-next-offset: (\S+)", head)
                assert next_offset is not None, head
                offset = next_offset[1]
                if "stream-up-to-date: true" in head:
                    return size / 1e6 / (time.perf_counter() - began_s)

    async def follow(self, path: str, content_type: str, readers: int, messages: int, pause_s: float) -> list[float]:
        """Milliseconds from sending an append to its arrival at each SSE reader."""
        followers = [Follower() for _ in range(readers)]
        loop = asyncio.get_running_loop()
        for follower in followers:
            await loop.create_connection(lambda protocol=follower: protocol, "127.0.0.1", self.target.port)
            follower.ask(get(f"{path}?offset=now&live=sse"))
        await asyncio.gather(*(follower.ready for follower in followers))
        client = await LoadClient.connect(self.target.port)
        for number in range(messages):
            sent_s = time.perf_counter()
            arrivals = [follower.expect(b"<%d>" % number, sent_s) for follower in followers]
            status, _ = await client.send(post(path, b"<%d>" % number + b"." * 95, content_type))
            assert status == 204, status
            await asyncio.wait_for(asyncio.gather(*arrivals), 60)
            await asyncio.sleep(pause_s)
        client.close()
        for follower in followers:
            follower.close()
        return [1_000 * value for follower in followers for value in follower.waits_s]


def _head(connection: socket.socket, buffer: memoryview) -> tuple[str, bytes]:
    received = b""
    while b"\r\n\r\n" not in received:
        size = connection.recv_into(buffer)
        assert size, "the server closed the connection"
        received += buffer[:size]
    head, _, rest = received.partition(b"\r\n\r\n")
    return head.decode("latin-1").lower(), rest


def _skip_body(connection: socket.socket, buffer: memoryview, head: str, rest: bytes) -> int:
    """Read a body and return its size; a chunked one is read up to its last chunk."""
    length = re.search(r"content-length: (\d+)", head)
    if length is not None:
        left = int(length[1]) - len(rest)
        while left:
            left -= connection.recv_into(buffer, min(left, len(buffer)))
        return int(length[1])
    size, tail = len(rest), rest[-7:]
    while not tail.endswith(b"\r\n0\r\n\r\n"):
        count = connection.recv_into(buffer)
        size += count
        tail = (tail + bytes(buffer[max(0, count - 7) : count]))[-7:]
    return size


class Follower(asyncio.Protocol):
    """One SSE reader; it costs little CPU, so that the server is what is measured."""

    def __init__(self) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waits_s: list[float] = []
        self._marker = b"event: control"
        self._waiter: asyncio.Future[None] = self.ready
        self._sent_s = 0.0
        self._rest = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def ask(self, request: bytes) -> None:
        assert self._transport is not None
        self._transport.write(request)

    def expect(self, marker: bytes, sent_s: float) -> asyncio.Future[None]:
        self._marker, self._sent_s = marker, sent_s
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def data_received(self, data: bytes) -> None:
        if self._waiter.done():
            return
        self._rest = self._rest[-64:] + data
        if self._marker in self._rest:
            self._rest = b""
            if self._sent_s:
                self.waits_s.append(time.perf_counter() - self._sent_s)
            self._waiter.set_result(None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


# --- the cases --------------------------------------------------------------------------------------------------------

TEXT = "text/plain"
JSON = "application/json"
SMALL = b"x" * 100
BATCH = b"[" + b",".join(b'{"n":%d,"text":"%b"}' % (n, b"y" * 80) for n in range(100)) + b"]"
Case = Callable[[Streams], Awaitable[dict[str, float]]]


def cases(seconds: float, readers: int, history_mb: int) -> dict[str, tuple[str, Case]]:
    async def appends(streams: Streams, flights: int, body: bytes, kind: str, messages: int) -> dict[str, float]:
        path = await streams.create(kind)
        return {"value": messages * await streams.append(path, body, kind, flights, seconds)}

    async def catch_up(streams: Streams, body: bytes, kind: str, count: int) -> dict[str, float]:
        path = await streams.create(kind)
        await streams.fill(path, body, kind, count)
        return {"value": max([await asyncio.to_thread(streams.catch_up, path) for _ in range(3)])}

    async def live(streams: Streams, count: int, filled_mb: int) -> dict[str, float]:
        path = await streams.create(TEXT)
        await streams.fill(path, b"h" * (1 << 20), TEXT, filled_mb)
        waits_ms = await streams.follow(path, TEXT, count, max(5, int(20 * seconds)), 0.01)
        return {"value": median(waits_ms), "p99_ms": quantile(waits_ms, 0.99)}

    return {
        "append, 1 in flight": ("appends/s", lambda streams: appends(streams, 1, SMALL, TEXT, 1)),
        "append, 5 in flight": ("appends/s", lambda streams: appends(streams, 5, SMALL, TEXT, 1)),
        "append, 64 in flight": ("appends/s", lambda streams: appends(streams, 64, SMALL, TEXT, 1)),
        "JSON batches of 100, 5 in flight": ("messages/s", lambda streams: appends(streams, 5, BATCH, JSON, 100)),
        "catch-up, 1 MiB messages": ("MB/s", lambda streams: catch_up(streams, b"m" * (1 << 20), TEXT, history_mb)),
        "catch-up, JSON of 100 B": ("MB/s", lambda streams: catch_up(streams, BATCH, JSON, 20 * history_mb)),
        "SSE, 1 reader": ("ms", lambda streams: live(streams, 1, 0)),
        "SSE, 1 reader, long history": ("ms", lambda streams: live(streams, 1, history_mb)),
        f"SSE, {readers} readers": ("ms", lambda streams: live(streams, readers, 0)),
    }


async def measure(selected: dict[str, tuple[str, Case]], runs: int, folder: str | None) -> None:
    servers = targets(folder)
    streams = [Streams(target) for target in servers]
    results: dict[tuple[str, str], list[dict[str, float]]] = {}
    try:
        for _ in range(runs):
            for name, (_, case) in selected.items():
                for target_streams in streams:
                    cpu_s, wall_s = target_streams.target.cpu_s(), time.perf_counter()
                    result = await case(target_streams)
                    cores = (target_streams.target.cpu_s() - cpu_s) / (time.perf_counter() - wall_s)
                    results.setdefault((name, target_streams.target.name), []).append({**result, "cores": cores})
    finally:
        for target in servers:
            target.stop()
    for (name, server), measured in results.items():
        unit = selected[name][0]
        values = {key: median([run[key] for run in measured]) for key in measured[0]}
        per_op = {} if unit == "ms" else {"cpu_us_per_op": 1e6 * values["cores"] / max(values["value"], 1e-9)}
        emit("streams", f"{name}: {server}", values.pop("value"), unit, **per_op, **values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--readers", type=int, default=500)
    parser.add_argument("--history-mb", type=int, default=50)
    parser.add_argument("--folder", help="where the data goes; the disk under it is what is measured")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    selected = {
        name: case
        for name, case in cases(options.seconds, options.readers, options.history_mb).items()
        if options.only in name
    }
    uvloop.run(measure(selected, options.runs, options.folder))


if __name__ == "__main__":
    main()
