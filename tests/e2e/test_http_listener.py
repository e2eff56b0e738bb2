"""The listener over real sockets: a graceful stop, Unix sockets and TLS."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import threading
import time

import pytest

from driftq.server.http import (
    Deferred,
    Response,
    ResponseStream,
    Streaming,
)
from driftq.server.http.listener import serve
from tests.unit.server.http.listener_fixture import (
    PATIENCE_S,
    Wire,
    echo,
    eventually,
    get,
    post,
    running,
)

# Stopping.


def test_a_stop_closes_idle_connections_lets_requests_finish_and_ends_streams():
    held = Deferred()

    async def produce(stream: ResponseStream) -> None:
        await stream.start()
        await stream.wait_over()
        stream.write(b"bye")

    def handle(request):
        return {b"/slow": held, b"/stream": Streaming(produce)}.get(request.raw_path) or echo(request)

    with running(handle) as server:
        idle, slow, stream, half = (server.connect() for _ in range(4))
        idle.ask(get())
        slow.send(get("/slow") + get("/slow-too"))
        stream.send(get("/stream")).until(b"\r\n\r\n")
        half.send(post("/half", b"abc")[:-1])
        eventually(lambda: server.listener.connection_count == 4 and len(server.seen) == 4)
        stopping = server.submit(server.listener.stop(10))
        assert idle.rest() == b""
        assert stream.rest() == b"3\r\nbye\r\n0\r\n\r\n"
        with pytest.raises(ConnectionError):
            server.connect()
        assert not stopping.done()
        slow.send(get("/too-late"))
        half.send(b"c")
        status, headers, body = half.response()
        assert (status, headers["connection"], body) == (200, "close", b"POST /half abc")
        server.do(lambda: held.resolve(Response(200, b"slow")))
        assert slow.response()[2] == b"slow"
        _, headers, body = slow.response()
        assert (headers["connection"], body) == ("close", b"GET /slow-too ")
        assert slow.rest() == b""
        assert stopping.result(PATIENCE_S) is True
        assert b"/too-late" not in {request.raw_path for request in server.seen}
        for wire in (idle, slow, stream, half):
            wire.sock.close()


def test_requests_that_exceed_the_grace_period_are_cut():
    cancelled = threading.Event()
    handler_cancelled = threading.Event()

    async def never() -> Response:
        try:
            await asyncio.Event().wait()
        finally:
            handler_cancelled.set()
        return Response(200)

    async def produce(stream: ResponseStream) -> None:
        await stream.start()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def handle(request):
        return Streaming(produce) if request.raw_path == b"/" else never()

    with running(handle) as server, server.connect() as stream, server.connect() as slow:
        stream.send(get()).until(b"\r\n\r\n")
        slow.send(get("/slow"))
        eventually(lambda: len(server.seen) == 2)
        started = time.monotonic()
        assert server.call(server.listener.stop(0.3)) is False
        assert time.monotonic() - started < 2
        assert cancelled.is_set()
        assert handler_cancelled.wait(PATIENCE_S)
        assert stream.rest() == b""
        assert slow.rest() == b""


# Other transports.


def test_a_unix_socket_serves_requests(tmp_path):
    path = str(tmp_path / "driftq.sock")
    with running(lambda r: Response(200, r.peer.encode()), host=None, unix=path) as server:
        assert server.listener.addresses == [path]
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(PATIENCE_S)
        sock.connect(path)
        with Wire(sock) as wire:
            assert wire.ask(get())[2] == b"unix"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    return folder


def test_tls_carries_requests_bodies_pipelines_and_streams(certificate):
    async def produce(stream: ResponseStream) -> None:
        await stream.start()
        for number in range(500):
            stream.write(b"%06d" % number * 500)
            await stream.drain()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    with running(lambda r: Streaming(produce) if r.raw_path == b"/s" else echo(r), ssl=context) as server:
        trust = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
        raw = socket.create_connection(server.address, timeout=PATIENCE_S)
        with Wire(trust.wrap_socket(raw, server_hostname="localhost")) as wire:
            body = os.urandom(2_000_000)
            assert wire.ask(post("/p", body))[2] == b"POST /p " + body
            wire.send(get("/a") * 50 + get("/s") + b"nonsense\r\n\r\n")
            assert [wire.response()[2] for _ in range(50)] == [b"GET /a "] * 50
            assert len(wire.response()[2]) == 500 * 3000
            assert wire.response()[0] == 400
        with server.connect() as plaintext:
            plaintext.send(get())
            assert not plaintext.rest().startswith(b"HTTP/1.1 200")
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname = False
        old.verify_mode = ssl.CERT_NONE
        with pytest.warns(DeprecationWarning, match="TLS"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(OSError), socket.create_connection(server.address) as raw:
            old.wrap_socket(raw)


def test_tls_below_1_2_is_not_served():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with pytest.warns(DeprecationWarning, match="TLS"):
        context.minimum_version = ssl.TLSVersion.TLSv1

    with pytest.raises(ValueError, match=r"1\.2"):
        asyncio.run(serve(echo, ssl=context))
