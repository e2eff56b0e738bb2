"""A real server in a thread, and a client that speaks raw bytes to it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import uvloop

from driftq.server.http import HttpLimits, Request, Response
from driftq.server.http.listener import Listener, serve

PATIENCE_S = 20.0
QUICK = HttpLimits(
    header_deadline_s=0.4, body_window_s=0.4, idle_s=0.4, write_stall_s=0.6, linger_s=0.2, body_rate_bytes_per_s=1000
)


def echo(request: Request) -> Response:
    return Response(200, b"%b %b %b" % (request.method.encode(), request.raw_path, request.body), "text/plain")


def eventually(condition: Callable[[], object], what: str = "", within_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + within_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what or condition}"
        pause.wait(0.002)


class Server:
    """A listener on a loop of its own; `seen` holds every request that reached the handler."""

    def __init__(self, handler, limits: HttpLimits | None = None, **options) -> None:
        self.seen: list[Request] = []
        self.problems: list[dict] = []
        self._handler = handler
        self._options = {"limits": limits or HttpLimits(), **options}
        self.loop = uvloop.new_event_loop()
        self.loop.set_exception_handler(lambda _, context: self.problems.append(context))
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.listener: Listener = self.call(self._serve())
        self.address = ("127.0.0.1", self.listener.port) if ":" in self.listener.addresses[0] else ("", 0)

    async def _serve(self) -> Listener:
        return await serve(self._handle, **self._options)

    def _handle(self, request: Request):
        self.seen.append(request)
        return self._handler(request)

    def call(self, coroutine):
        return self.submit(coroutine).result(PATIENCE_S)

    def submit(self, coroutine) -> concurrent.futures.Future:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def do(self, function: Callable[[], object]):
        """Runs a plain function on the server's loop."""

        async def run():
            return function()

        return self.call(run())

    def close(self) -> None:
        self.call(self.listener.stop(0))
        self.call(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()

    def connect(self, **options) -> Wire:
        return Wire(socket.create_connection(self.address, timeout=PATIENCE_S), **options)


@contextlib.contextmanager
def running(handler=echo, limits: HttpLimits | None = None, **options) -> Iterator[Server]:
    server = Server(handler, limits, **options)
    try:
        yield server
    finally:
        server.close()


class Wire:
    """One client connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._data = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_) -> None:
        self.sock.close()

    def send(self, data: bytes) -> Wire:
        with contextlib.suppress(ConnectionError):  # a server that has refused may already have closed
            self.sock.sendall(data)
        return self

    def more(self) -> bytes:
        try:
            data = self.sock.recv(65536)
        except ConnectionResetError:
            data = b""
        self._data += data
        return data

    def until(self, mark: bytes) -> bytes:
        while mark not in self._data:
            assert self.more(), f"closed before {mark!r}: {self._data!r}"
        head, _, self._data = self._data.partition(mark)
        return head + mark

    def exactly(self, size: int) -> bytes:
        while len(self._data) < size:
            assert self.more(), f"closed after {len(self._data)} of {size} bytes"
        data, self._data = self._data[:size], self._data[size:]
        return data

    def rest(self) -> bytes:
        """Everything until the server closes."""
        while self.more():
            pass
        data, self._data = self._data, b""
        return data

    def response(self, head_only: bool = False) -> tuple[int, dict[str, str], bytes]:
        head = self.until(b"\r\n\r\n").decode("latin-1")
        status_line, *lines = head.strip().split("\r\n")
        names = [line.partition(":")[0].lower() for line in lines]
        assert len(set(names)) == len(names), f"a header came twice: {names}"
        headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines}
        status = int(status_line.split(" ")[1])
        body = b""
        if head_only or status in (204, 304) or status < 200:
            pass
        elif headers.get("transfer-encoding") == "chunked":
            while size := int(self.until(b"\r\n"), 16):
                body += self.exactly(size)
                assert self.exactly(2) == b"\r\n"
            assert self.exactly(2) == b"\r\n"
        elif "content-length" in headers:
            body = self.exactly(int(headers["content-length"]))
        else:
            body = self.rest()
        return status, headers, body

    def ask(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        return self.send(data).response()


def get(path: str = "/", *lines: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: test", *lines, "", ""]).encode("latin-1")


def post(path: str, body: bytes, *lines: str) -> bytes:
    head = [f"POST {path} HTTP/1.1", "Host: test", f"Content-Length: {len(body)}", *lines, "", ""]
    return "\r\n".join(head).encode("latin-1") + body


def chunked(path: str, *chunks: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


def undated(data: bytes) -> bytes:
    """A response with its Date replaced, for comparing bytes."""
    return re.sub(rb"Date: [^\r]+ GMT\r\n", b"Date: *\r\n", data)


def vanish(wire: Wire) -> None:
    """Closes with a reset, as a process that dies with unread data does."""
    wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.sock.close()
