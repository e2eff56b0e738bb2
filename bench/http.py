"""The HTTP layer alone: requests per CPU-second of the server process, and streamed lines and file bytes per second.

The server runs in a process of its own; its CPU time is read from the kernel before and after each run, so the client's
cost does not count. One JSON line per result. Ratios within one run mean more than the numbers of a shared machine.

    python -m bench.http --seconds 2 --runs 3
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from multiprocessing.connection import Connection as Pipe

import httptools
import uvloop

from driftq.server.http import Deferred, FileResponse, Request, Response, ResponseStream, Streaming
from driftq.server.http.listener import serve

BODY = b'{"topic":"orders","key":"k1","value":"hello, world: a small message of about a hundred bytes in all ......"}'
REPLY = b'{"status":"produced","topic":"orders","partition":0,"offset":123456}\n'
LINE = b'{"partition":0,"offset":123456,"key":"k1","value":"%s"}\n' % (b"x" * 100)
FILE_BYTES = 64 * 1024 * 1024


class Bare(asyncio.Protocol):
    """The minimal server on the same parser and event loop, to compare with."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)
        self._out: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_body(self, body: bytes) -> None:
        self._body = body

    def on_message_complete(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(REPLY)
        self._out.append(head + REPLY)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        self._transport.write(b"".join(self._out))
        self._out.clear()


class GroupCommit:
    """Replies to the requests of one turn of the event loop together, as a group commit does."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._batch: list[Deferred | asyncio.Future[Response]] = []

    def wait(self, answer: Deferred | asyncio.Future[Response]) -> None:
        if not self._batch:
            self._loop.call_later(0.001, self._durable)
        self._batch.append(answer)

    def _durable(self) -> None:
        batch, self._batch = self._batch, []
        for answer in batch:
            if isinstance(answer, Deferred):
                answer.resolve(Response(200, REPLY))
            else:
                answer.set_result(Response(200, REPLY))


async def produce_lines(stream: ResponseStream) -> None:
    await stream.start(200, content_type="application/x-ndjson")
    while await stream.drain():
        for _ in range(256):
            stream.write(LINE)


async def produce_single_lines(stream: ResponseStream) -> None:
    await stream.start(200, content_type="application/x-ndjson")
    while await stream.drain():
        stream.write(LINE)


async def run_server(pipe: Pipe, path: str) -> None:
    loop = asyncio.get_running_loop()
    commit = GroupCommit(loop)
    fd = os.open(path, os.O_RDONLY)

    def handle(request: Request) -> object:
        match request.raw_path:
            case b"/now":
                return Response(200, REPLY)
            case b"/deferred":
                deferred = Deferred()
                commit.wait(deferred)
                return deferred
            case b"/future":
                future: asyncio.Future[Response] = loop.create_future()
                commit.wait(future)
                return future
            case b"/coroutine":
                return coroutine()
            case b"/lines":
                return Streaming(produce_lines)
            case b"/single-lines":
                return Streaming(produce_single_lines)
            case b"/file":
                return FileResponse(200, fd, 0, FILE_BYTES)
            case _:
                return Response(200, b"%d" % len(request.body))

    async def coroutine() -> Response:
        return Response(200, REPLY)

    listener = await serve(handle, "127.0.0.1", 0)
    bare = await loop.create_server(Bare, "127.0.0.1", 0)
    pipe.send((listener.port, bare.sockets[0].getsockname()[1]))
    await loop.run_in_executor(None, pipe.recv)
    bare.close()
    await listener.stop(0)
    os.close(fd)


def server_process(pipe: Pipe, path: str) -> None:
    uvloop.run(run_server(pipe, path))


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


class PipelinedClient(asyncio.Protocol):
    """Keeps `depth` requests in flight and counts whole responses by their known size."""

    def __init__(self, request: bytes, depth: int, response_bytes: int) -> None:
        self._request = request
        self._depth = depth
        self._response_bytes = response_bytes
        self._received = 0
        self.count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(self._request * self._depth)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        done, self._received = divmod(self._received, self._response_bytes)
        if done:
            self.count += done
            self.transport.write(self._request * done)


class Reader(asyncio.BufferedProtocol):
    """Counts bytes."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._buffer = bytearray(256 * 1024)
        self.count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(self._request)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.count += nbytes


def post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


async def response_size(port: int, request: bytes) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    writer.close()
    return len(head) + length


async def measure_requests(port: int, pid: int, path: str, body: bytes, connections: int, depth: int, seconds: float):
    request = post(path, body)
    size = await response_size(port, request)
    loop = asyncio.get_running_loop()
    clients = [
        (await loop.create_connection(lambda: PipelinedClient(request, depth, size), "127.0.0.1", port))[1]
        for _ in range(connections)
    ]
    await asyncio.sleep(0.2)
    counted, cpu, wall = sum(client.count for client in clients), cpu_seconds(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    counted = sum(client.count for client in clients) - counted
    cpu, wall = cpu_seconds(pid) - cpu, time.perf_counter() - wall
    for client in clients:
        client.transport.abort()
    return counted, cpu, wall


async def measure_bytes(port: int, pid: int, path: str, seconds: float):
    loop = asyncio.get_running_loop()
    _, reader = await loop.create_connection(lambda: Reader(get(path)), "127.0.0.1", port)
    await asyncio.sleep(0.2)
    counted, cpu, wall = reader.count, cpu_seconds(pid), time.perf_counter()
    await asyncio.sleep(seconds)
    counted, cpu, wall = reader.count - counted, cpu_seconds(pid) - cpu, time.perf_counter() - wall
    reader.transport.abort()
    return counted, cpu, wall


async def measure_file(port: int, pid: int, seconds: float):
    loop = asyncio.get_running_loop()
    _, reader = await loop.create_connection(lambda: Reader(get("/file") * 1), "127.0.0.1", port)
    cpu, wall = cpu_seconds(pid), time.perf_counter()
    requested = 1
    while time.perf_counter() - wall < seconds:
        while reader.count < requested * FILE_BYTES:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        requested += 1
        reader.transport.write(get("/file"))
    counted, cpu, wall = reader.count, cpu_seconds(pid) - cpu, time.perf_counter() - wall
    reader.transport.abort()
    return counted, cpu, wall


async def run_client(port: int, bare_port: int, pid: int, seconds: float, runs: int) -> None:
    shapes = [(1, 1), (16, 1), (64, 1), (4, 16)]
    cases = [
        (path, BODY, shape) for path in ("/bare", "/now", "/deferred", "/future", "/coroutine") for shape in shapes
    ]
    cases += [("/upload", b"x" * (8 * 1024 * 1024), (2, 1))]
    results: dict[int, list[tuple[float, float]]] = {}
    for _ in range(runs):  # interleaved, so that a noisy minute affects all cases
        for index, (path, body, (connections, depth)) in enumerate(cases):
            target = bare_port if path == "/bare" else port
            counted, cpu, wall = await measure_requests(target, pid, path, body, connections, depth, seconds)
            results.setdefault(index, []).append((counted / cpu, counted / wall))
    for index, (path, body, (connections, depth)) in enumerate(cases):
        per_cpu, per_wall = (statistics.median(column) for column in zip(*results[index]))
        report = {"bench": "http.requests", "handler": path[1:], "connections": connections, "pipelined": depth}
        if path == "/upload":
            gib = len(body) / 2**30
            report |= {"gib_per_cpu_s": round(per_cpu * gib, 2), "gib_per_s": round(per_wall * gib, 2)}
        else:
            report |= {"requests_per_cpu_s": round(per_cpu), "requests_per_s": round(per_wall)}
        print(json.dumps(report), flush=True)
    for path in ("/lines", "/single-lines"):
        counted, cpu, wall = await measure_bytes(port, pid, path, seconds)
        lines = counted / len(LINE)
        report = {"bench": "http.stream", "producer": path[1:], "line_bytes": len(LINE)}
        report |= {"lines_per_cpu_s": round(lines / cpu), "lines_per_s": round(lines / wall)}
        print(json.dumps(report), flush=True)
    counted, cpu, wall = await measure_file(port, pid, seconds)
    report = {"bench": "http.file", "gib_per_cpu_s": round(counted / cpu / 2**30, 2)}
    print(json.dumps(report | {"gib_per_s": round(counted / wall / 2**30, 2)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one run")
    parser.add_argument("--runs", type=int, default=3, help="interleaved runs; the median is reported")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"\0" * FILE_BYTES)
        file.flush()
        ours, theirs = context.Pipe()
        process = context.Process(target=server_process, args=(theirs, file.name))
        process.start()
        try:
            port, bare_port = ours.recv()
            assert process.pid is not None
            uvloop.run(run_client(port, bare_port, process.pid, options.seconds, options.runs))
        finally:
            ours.send(None)
            process.join()


if __name__ == "__main__":
    main()
