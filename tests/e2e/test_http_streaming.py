"""Responses that are streams or files, over real sockets: back-pressure, disconnects and cost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import tempfile
import threading
import time

import pytest

from driftq.server.http import (
    Deferred,
    FileResponse,
    HttpLimits,
    ResponseStream,
    Streaming,
)
from tests.unit.server.http.listener_fixture import (
    PATIENCE_S,
    QUICK,
    echo,
    eventually,
    get,
    running,
    undated,
    vanish,
)


def test_a_stream_is_these_bytes():
    async def produce(stream: ResponseStream) -> None:
        await stream.start(200, [("X-Test", "1")], "application/x-ndjson")
        stream.write(b"one\n")
        stream.write(b"")
        stream.write(b"two\n")
        assert await stream.drain()

    with running(lambda _: Streaming(produce)) as server, server.connect() as wire:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nDate: *\r\nX-Test: 1\r\n"
        chunk = b"Transfer-Encoding: chunked\r\n\r\n8\r\none\ntwo\n\r\n0\r\n\r\n"
        wire.send(get() + get().replace(b"GET", b"HEAD") + get("/", "Connection: close"))
        received = undated(wire.rest())
        closing = chunk.replace(b"chunked\r\n", b"chunked\r\nConnection: close\r\n")
        assert received == head + chunk + head + b"Transfer-Encoding: chunked\r\n\r\n" + head + closing
        with server.connect() as old:
            old.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert undated(old.rest()) == head + b"Connection: close\r\n\r\none\ntwo\n"


def test_the_head_of_a_stream_is_sent_before_its_first_data():
    async def produce(stream: ResponseStream) -> None:
        await stream.start()
        await stream.wait_over()

    with running(lambda _: Streaming(produce, cancel_when_gone=False)) as server, server.connect() as wire:
        wire.send(get())
        assert wire.until(b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")
        wire.sock.close()
        eventually(lambda: server.listener.connection_count == 0)


def test_nothing_is_produced_for_a_reader_that_stops_and_it_is_cut_after_the_limit():
    produced = 0
    ended = threading.Event()

    async def produce(stream: ResponseStream) -> None:
        nonlocal produced
        await stream.start()
        while await stream.drain():
            stream.write(b"x" * 1000)
            produced += 1000
        ended.set()

    limits = HttpLimits(write_stall_s=1.0, write_buffer_bytes=64 * 1024)
    with running(lambda _: Streaming(produce, cancel_when_gone=False), limits) as server, server.connect() as wire:
        wire.send(get())
        wire.until(b"\r\n\r\n")
        eventually(lambda: produced)
        assert ended.wait(PATIENCE_S)
        eventually(lambda: server.listener.connection_count == 0)
        kernel_bytes = 16 * 2**20  # what both socket buffers can grow to
        assert produced < kernel_bytes
        received = 0
        with contextlib.suppress(ConnectionError):
            while data := wire.sock.recv(2**20):
                received += len(data)
        assert produced - received < 4 * 2**20


def test_a_reader_that_stops_is_cut_on_a_unix_socket_too(tmp_path):
    over = threading.Event()

    async def produce(stream: ResponseStream) -> None:
        stream.on_over(over.set)
        await stream.start()
        while await stream.drain():
            stream.write(b"x" * 1000)

    path = str(tmp_path / "driftq.sock")
    with running(lambda _: Streaming(produce), QUICK, host=None, unix=path), socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.sendall(get())
        assert over.wait(PATIENCE_S)


def test_an_empty_write_does_not_end_a_stream():
    async def produce(stream: ResponseStream) -> None:
        await stream.start()
        stream.write(b"")
        for _ in range(3):
            await asyncio.sleep(0)
        stream.write(b"there")

    with running(lambda _: Streaming(produce)) as server, server.connect() as wire:
        assert wire.ask(get())[2] == b"there"


def test_a_slow_reader_gets_everything_and_a_producer_sees_when_it_may_continue():
    full = 0

    async def produce(stream: ResponseStream) -> None:
        nonlocal full
        await stream.start()
        for number in range(1_000):
            stream.write(b"%08d" % number * 1000)
            full += not stream.writable
            await stream.drain()

    with running(lambda _: Streaming(produce)) as server, server.connect() as wire:
        wire.send(get())
        body = wire.response()[2]
        assert body == b"".join(b"%08d" % number * 1000 for number in range(1_000))
        assert full > 10


@pytest.mark.parametrize("end", [vanish, lambda wire: wire.sock.close()])
def test_a_stream_knows_promptly_that_its_client_has_gone(end):
    outcome = []
    over = threading.Event()

    async def produce(stream: ResponseStream) -> None:
        stream.on_over(over.set)
        await stream.start()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            outcome.append((stream.closed, stream.writable, await stream.drain()))
            raise

    with running(lambda _: Streaming(produce)) as server, server.connect() as wire:
        wire.send(get())
        wire.until(b"\r\n\r\n")
        started = time.monotonic()
        end(wire)
        assert over.wait(PATIENCE_S)
        eventually(lambda: outcome)
        assert outcome == [(True, False, False)]
        assert time.monotonic() - started < 2
        assert not server.problems


def test_a_producer_that_fails_cuts_the_connection_or_answers_500():
    async def produce(stream: ResponseStream) -> None:
        await stream.start()
        stream.write(b"half")
        await asyncio.sleep(0)
        raise RuntimeError("broken")

    async def never_start(stream: ResponseStream) -> None:
        pass

    with running(lambda r: Streaming(produce if r.raw_path == b"/" else never_start)) as server:
        with server.connect() as wire:
            wire.send(get())
            assert not wire.rest().endswith(b"0\r\n\r\n")
        with server.connect() as wire:
            assert wire.ask(get("/never"))[0] == 500
            assert wire.ask(get("/never"))[0] == 500
        assert len(server.problems) == 3


def test_requests_after_a_stream_are_started_and_wait_for_its_end():
    end = asyncio.Event()

    async def produce(stream: ResponseStream) -> None:
        await stream.start()
        await end.wait()

    with running(lambda r: Streaming(produce) if r.raw_path == b"/" else echo(r)) as server, server.connect() as wire:
        wire.send(get() + get("/b"))
        eventually(lambda: len(server.seen) == 2)
        server.do(end.set)
        assert wire.response()[2] == b""
        assert wire.response()[2] == b"GET /b "


def test_two_thousand_idle_streams_are_cheap_and_all_are_served():
    streams: list[ResponseStream] = []

    async def produce(stream: ResponseStream) -> None:
        await stream.start(200, content_type="application/x-ndjson")
        streams.append(stream)
        await stream.wait_over()

    def resident_bytes() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    with running(lambda _: Streaming(produce)) as server, contextlib.ExitStack() as stack:
        before = resident_bytes()
        wires = [stack.enter_context(server.connect()) for _ in range(2_000)]
        for wire in wires:
            wire.send(get("/v1/consume"))
        eventually(lambda: len(streams) == 2_000)
        assert (resident_bytes() - before) / 2_000 < 32 * 1024  # client and server side together
        server.do(lambda: [stream.write(b"hello\n") for stream in streams])
        for wire in wires:
            wire.until(b"\r\n\r\n")
            assert wire.until(b"hello\n") == b"6\r\nhello\n"
        assert server.call(server.listener.stop(5))
        assert all(wire.rest() == b"\r\n0\r\n\r\n" for wire in wires)


# Files.


def test_a_range_of_a_file_is_sent_and_released_once():
    released = []
    content = os.urandom(3_000_000)
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()

        def handle(request):
            size = int(request.query["size"])
            return FileResponse(206, file.fileno(), 1000, size, release=lambda: released.append(size))

        with running(handle) as server, server.connect() as wire:
            wire.send(b"".join(get(f"/?size={size}") for size in (2_900_000, 0, 10)))
            assert [wire.response()[2] for _ in range(3)] == [content[1000:2_901_000], b"", content[1000:1010]]
            wire.send(get("/?size=10").replace(b"GET", b"HEAD"))
            assert wire.response(head_only=True)[1]["content-length"] == "10"
            assert released == [2_900_000, 0, 10, 10]
            wire.send(get("/?size=4000000"))  # the file ends before: the client must not take it for the whole
            assert len(wire.rest()) < 3_000_000
            eventually(lambda: len(released) == 5)
            with server.connect() as lost:
                lost.send(get("/?size=2900000"))
                lost.until(b"\r\n\r\n")
                vanish(lost)
            eventually(lambda: len(released) == 6)


def test_a_file_answered_to_a_client_that_has_gone_is_released():
    held = Deferred()
    released = threading.Event()
    with running(lambda _: held) as server:
        with server.connect() as wire:
            wire.send(get())
            eventually(lambda: server.seen)
            vanish(wire)
        eventually(lambda: server.listener.connection_count == 0)
        server.do(lambda: held.resolve(FileResponse(200, 0, 0, 10, release=released.set)))
        assert released.wait(PATIENCE_S)
