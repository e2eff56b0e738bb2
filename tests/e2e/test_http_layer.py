"""The HTTP layer over real sockets: golden bytes, order, hostile peers, back-pressure, stopping, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import statistics
import struct
import subprocess
import tempfile
import threading
import time

import pytest

from driftq.server.http import (
    BadRequest,
    Deferred,
    FileResponse,
    HttpLimits,
    Response,
    ResponseStream,
    Streaming,
)
from driftq.server.http.listener import serve
from tests.unit.server.http.listener_fixture import (
    PATIENCE_S,
    QUICK,
    Wire,
    chunked,
    echo,
    eventually,
    get,
    post,
    running,
    undated,
)


@pytest.fixture(scope="module")
def plain():
    with running(echo) as server:
        yield server


# Golden bytes.

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nDate: *\r\n"


def test_a_response_is_these_bytes(plain):
    with plain.connect() as wire:
        wire.send(get("/a", "Connection: close"))
        assert undated(wire.rest()) == OK + b"Content-Length: 7\r\nConnection: close\r\n\r\nGET /a "


def test_a_kept_connection_says_nothing_about_it(plain):
    with plain.connect() as wire:
        for _ in range(3):
            wire.send(post("/p", b"body"))
            head = wire.until(b"\r\n\r\n")
            assert undated(head) == OK + b"Content-Length: 12\r\n\r\n"
            assert wire.exactly(12) == b"POST /p body"


def test_http_1_0_is_kept_only_when_it_asks(plain):
    with plain.connect() as wire:
        wire.send(b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert undated(wire.until(b"\r\n\r\n")) == OK + b"Content-Length: 7\r\nConnection: keep-alive\r\n\r\n"
        wire.exactly(7)
        wire.send(b"GET /b HTTP/1.0\r\n\r\n")
        assert undated(wire.rest()) == OK + b"Content-Length: 7\r\nConnection: close\r\n\r\nGET /b "


def test_head_has_the_length_and_no_body(plain):
    with plain.connect() as wire:
        wire.send(get("/a").replace(b"GET", b"HEAD") + get("/b"))
        assert undated(wire.until(b"\r\n\r\n")) == OK + b"Content-Length: 8\r\n\r\n"
        assert wire.response()[2] == b"GET /b "


@pytest.mark.parametrize(("status", "reason"), [(204, b"No Content"), (304, b"Not Modified")])
def test_statuses_without_body_send_none(status, reason):
    with running(lambda _: Response(status)) as server, server.connect() as wire:
        wire.send(get() + get("/", "Connection: close"))
        line = b"HTTP/1.1 %d %b\r\nDate: *\r\n" % (status, reason)
        assert undated(wire.rest()) == line + b"\r\n" + line + b"Connection: close\r\n\r\n"


def test_the_body_is_asked_for_when_the_client_expects_it(plain):
    with plain.connect() as wire:
        head, _, body = post("/p", b"hello", "Expect: 100-continue").partition(b"\r\n\r\n")
        wire.send(head + b"\r\n\r\n")
        assert wire.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert wire.ask(body)[2] == b"POST /p hello"
        # With the body on the way there is nothing to ask for.
        assert wire.ask(post("/p", b"hello", "Expect: 100-continue"))[0] == 200


def test_a_body_that_is_too_long_is_not_asked_for():
    with running(limits=HttpLimits(body_bytes=10)) as server, server.connect() as wire:
        wire.send(post("/p", b"x" * 11, "Expect: 100-continue")[:-11])
        assert wire.response()[0] == 413
        assert wire.rest() == b""


def test_chunked_bodies_are_put_together(plain):
    with plain.connect() as wire:
        assert wire.ask(chunked("/c", b"ab", b"cde", b"f"))[2] == b"POST /c abcdef"
        assert wire.ask(chunked("/c"))[2] == b"POST /c "


def test_a_get_may_have_a_body(plain):
    with plain.connect() as wire:
        assert wire.ask(get("/g", "Content-Length: 2") + b"{}")[2] == b"GET /g {}"


def test_a_list_of_buffers_is_sent_as_one_body():
    parts = [b"a" * 100_000, memoryview(b"b" * 10), bytearray(b"c" * 300_000)]
    with running(lambda _: Response(200, parts)) as server, server.connect() as wire:
        for _ in range(2):
            assert wire.ask(get())[2] == b"".join(parts)


def test_an_upgrade_is_not_taken_and_its_body_is_not_the_next_request(plain):
    smuggled = get("/smuggled")
    with plain.connect() as wire:
        wire.send(post("/u", smuggled, "Connection: upgrade", "Upgrade: h2c") + get("/next"))
        assert wire.response()[2] == b"POST /u " + smuggled
        assert wire.response()[2] == b"GET /next "


# Order.


def test_answers_keep_the_order_of_the_requests_whatever_the_order_of_completion():
    waiting: dict[bytes, Deferred | asyncio.Future] = {}

    def handle(request):
        if request.raw_path == b"/now":
            return Response(200, b"/now")
        waiting[request.raw_path] = Deferred() if request.raw_path < b"/5" else loop.create_future()
        return waiting[request.raw_path]

    with running(handle) as server, server.connect() as wire:
        loop = server.loop
        wire.send(b"".join(get(f"/{i}") for i in range(10)) + get("/now"))
        # All are started although none is answered: this is what lets one commit serve a whole pipeline.
        eventually(lambda: len(server.seen) == 11)
        for number in (9, 3, 7, 1, 0, 8, 2, 4, 6, 5):
            path = b"/%d" % number
            answer = waiting[path]
            resolve = answer.resolve if isinstance(answer, Deferred) else answer.set_result
            server.do(lambda resolve=resolve, path=path: resolve(Response(200, path)))
        assert [wire.response()[2] for _ in range(11)] == [b"/%d" % i for i in range(10)] + [b"/now"]


def test_no_more_than_the_bound_is_started_and_everything_is_answered():
    waiting = []

    def handle(request):
        waiting.append((request.raw_path, Deferred()))
        return waiting[-1][1]

    with running(handle, HttpLimits(pipelined=8)) as server, server.connect() as wire:
        sender = threading.Thread(target=wire.send, args=(b"".join(get(f"/{i}") for i in range(3_000)),))
        sender.start()
        answered = 0
        while answered < 3_000:
            eventually(lambda: waiting)
            assert len(waiting) <= 8
            batch = list(waiting)
            server.do(lambda batch=batch: (waiting.clear(), [d.resolve(Response(200, path)) for path, d in batch]))
            for path, _ in batch:
                assert wire.response()[2] == path == b"/%d" % answered
                answered += 1
        sender.join()


def test_pipelined_answers_nobody_reads_stop_the_reading():
    big = b"x" * 100_000
    with running(lambda _: Response(200, big)) as server, server.connect() as wire:
        wire.send(get() * 600)
        eventually(lambda: server.seen)
        size = 0
        while size != len(server.seen):  # until it does not grow any more
            size = len(server.seen)
            with contextlib.suppress(AssertionError):
                eventually(lambda size=size: len(server.seen) > size, within_s=0.3)
        assert size < 200
        assert [len(wire.response()[2]) for _ in range(600)] == [100_000] * 600


def test_requests_before_a_malformed_one_are_answered_first():
    held = Deferred()
    with running(lambda r: held if r.raw_path == b"/slow" else echo(r)) as server, server.connect() as wire:
        wire.send(get("/slow") + get("/b") + b"nonsense\r\n\r\n")
        eventually(lambda: len(server.seen) == 2)
        server.do(lambda: held.resolve(Response(200, b"slow")))
        assert wire.response()[2] == b"slow"
        assert wire.response()[2] == b"GET /b "
        assert wire.response()[0] == 400
        assert wire.rest() == b""


# Handlers that fail.


def test_a_handler_that_raises_costs_its_own_request_only():
    async def later(request):
        raise RuntimeError("secret")

    def handle(request):
        match request.raw_path:
            case b"/raise":
                raise RuntimeError("secret")
            case b"/later":
                return later(request)
            case b"/none":
                return None
            case b"/bad":
                return Response(200, request.query["x"].encode())
            case b"/mine":
                raise BadRequest("not so", 422)
        return echo(request)

    def on_bad_request(status, message):
        return Response(status, f'{{"error":"{message}"}}'.encode())

    with running(handle, on_bad_request=on_bad_request, on_error=lambda r, e: Response(500, b"{}")) as server:
        with server.connect() as wire:
            for path in ("/raise", "/later", "/none"):
                assert wire.ask(get(path))[::2] == (500, b"{}")
            status, headers, body = wire.ask(get("/bad?x=%zz"))
            assert (status, headers["content-type"]) == (400, "application/json")
            assert b"percent-escape" in body
            assert wire.ask(get("/mine"))[::2] == (422, b'{"error":"not so"}')
            assert wire.ask(get("/fine"))[0] == 200
        assert [type(problem["exception"]).__name__ for problem in server.problems] == [
            "RuntimeError",
            "RuntimeError",
            "TypeError",
        ]


# Hostile requests: each is refused, the connection closes, and what follows it is never served.

P = b"POST /p HTTP/1.1\r\nHost: a\r\n"
G = b"GET / HTTP/1.1\r\n"
HOSTILE = {
    "length and chunked": (400, P + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "chunked and length": (400, P + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n"),
    "two lengths": (400, P + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
    "the same length twice": (400, P + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
    "a list of lengths": (400, P + b"Content-Length: 5, 5\r\n\r\nhello"),
    "a signed length": (400, P + b"Content-Length: +5\r\n\r\nhello"),
    "a negative length": (400, P + b"Content-Length: -5\r\n\r\nhello"),
    "a hexadecimal length": (400, P + b"Content-Length: 0x5\r\n\r\nhello"),
    "an empty length": (400, P + b"Content-Length:\r\n\r\nhello"),
    "a length beyond 64 bits": (400, P + b"Content-Length: 99999999999999999999\r\n\r\nhello"),
    "a huge length": (413, P + b"Content-Length: 9999999999999999\r\n\r\nhello"),
    "gzip before chunked": (400, P + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "chunked before gzip": (400, P + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n"),
    "an unknown encoding": (400, P + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    "identity": (400, P + b"Transfer-Encoding: identity\r\n\r\n"),
    "two encodings": (400, P + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "chunked in 1.0": (400, P.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "a folded line": (400, G + b"Host: a\r\nX: a\r\n b\r\n\r\n"),
    "a folded first line": (400, G + b" Host: a\r\n\r\n"),
    "bare line feeds": (400, b"GET / HTTP/1.1\nHost: a\n\n"),
    "one bare line feed": (400, G + b"Host: a\nX: b\r\n\r\n"),
    "a bare line feed at the end": (400, G + b"Host: a\r\n\n"),
    "a bare carriage return": (400, G + b"Host: a\rX: b\r\n\r\n"),
    "a zero in a value": (400, G + b"Host: a\r\nX: a\0b\r\n\r\n"),
    "a zero in a name": (400, G + b"Host: a\r\nX\0: b\r\n\r\n"),
    "a blank before the colon": (400, G + b"Host : a\r\n\r\n"),
    "an empty name": (400, G + b"Host: a\r\n: b\r\n\r\n"),
    "no host": (400, G + b"\r\n"),
    "two hosts": (400, G + b"Host: a\r\nHost: b\r\n\r\n"),
    "the same host twice": (400, G + b"Host: a\r\nhOST: a\r\n\r\n"),
    "a chunk longer than it says": (400, P + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n"),
    "a chunk size beyond 64 bits": (400, P + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n"),
    "a huge chunk": (413, P + b"Transfer-Encoding: chunked\r\n\r\nfffffff\r\n" + b"x" * 2000),
    "a signed chunk size": (400, P + b"Transfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n"),
    "a chunk size with 0x": (400, P + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n"),
    "a bare line feed after a chunk size": (400, P + b"Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n"),
    "a long target": (414, b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n"),
    "many headers": (431, G + b"Host: a\r\n" + b"".join(b"X%d: y\r\n" % i for i in range(2_000)) + b"\r\n"),
    "long headers": (431, G + b"Host: a\r\nX: " + b"x" * 100_000 + b"\r\n\r\n"),
    "a fragment": (400, b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n"),
    "another host's URL": (400, b"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n"),
    "a proxy request": (400, b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n"),
    "bytes beyond ASCII in the target": (400, b"GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n"),
    "a blank in the target": (400, b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n"),
    "HTTP/2": (505, b"GET / HTTP/2.0\r\nHost: a\r\n\r\n"),
    "the HTTP/2 preface": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/0.9": (505, b"GET /\r\n\r\n"),
    "a version to come": (400, b"GET / HTTP/1.2\r\nHost: a\r\n\r\n"),
    "a made-up method": (400, b"FROB / HTTP/1.1\r\nHost: a\r\n\r\n"),
    "a TLS hello": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "another expectation": (417, P + b"Expect: a-pony\r\nContent-Length: 1\r\n\r\nx"),
    "an upgrade with chunks": (
        400,
        P + b"Connection: upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_request_is_refused_and_nothing_is_smuggled_behind_it(name):
    status, data = HOSTILE[name]
    with running(limits=HttpLimits(target_bytes=65536, body_bytes=1000)) as server, server.connect() as wire:
        assert wire.ask(get("/first"))[0] == 200
        wire.send(data + get("/smuggled"))
        answer, headers, _ = wire.response()
        assert (answer, headers["connection"]) == (status, "close")
        assert wire.rest() == b""
        assert [request.raw_path for request in server.seen] == [b"/first"]
        with server.connect() as other:
            assert other.ask(get("/other"))[0] == 200


def test_data_behind_the_last_request_is_ignored(plain):
    with plain.connect() as wire:
        wire.send(get("/a", "Connection: close") + get("/b"))
        assert undated(wire.rest()).endswith(b"Connection: close\r\n\r\nGET /a ")


def test_a_refused_client_can_send_to_its_end_and_read_the_answer():
    with running(limits=HttpLimits(body_bytes=1000)) as server, server.connect() as wire:
        wire.sock.sendall(post("/", b"x" * 5_000_000))  # a server that just closed would break this with a reset
        assert wire.response()[0] == 413


# Time.


def test_a_head_that_does_not_end_is_cut_with_408():
    with running(limits=QUICK) as server, server.connect() as wire, server.connect() as silent:
        started = time.monotonic()
        wire.send(b"GET / HTTP/1.1\r\nHost: a\r\n")
        assert wire.response()[0] == 408
        assert wire.rest() == b""
        assert 0.3 < time.monotonic() - started < 5
        assert silent.rest() == b""  # never said a word: closed without one


def test_one_byte_at_a_time_does_not_extend_the_deadline():
    with running(limits=QUICK) as server, server.connect() as wire:
        wire.sock.settimeout(0.02)
        started = time.monotonic()
        answer = b""
        for octet in b"GET / HTTP/1.1\r\nX: " + b"x" * 2000:
            wire.send(bytes((octet,)))
            with contextlib.suppress(TimeoutError):
                answer += wire.sock.recv(1000)
            if answer:
                break
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - started < 5


def test_a_body_below_the_rate_is_cut_and_one_above_it_is_not():
    with running(limits=QUICK) as server, server.connect() as slow, server.connect() as steady:
        slow.send(post("/", b"x" * 2000)[:-1990])
        body = b"y" * 6000
        steady.send(post("/", body)[:-6000])
        tick = threading.Event()
        for start in range(0, 6000, 200):  # 200 bytes each 50 ms: four times the rate, for much longer than a window
            steady.send(body[start : start + 200])
            tick.wait(0.05)
        assert steady.response()[0] == 200
        assert slow.response()[0] == 408


def test_an_idle_connection_is_closed_without_a_word():
    with running(limits=QUICK) as server, server.connect() as wire:
        assert wire.ask(get())[0] == 200
        assert wire.rest() == b""
        assert server.listener.connection_count == 0


def test_a_connection_in_use_is_not_idle():
    with running(limits=QUICK) as server, server.connect() as wire:
        pause = threading.Event()
        for _ in range(10):
            pause.wait(0.15)
            assert wire.ask(get())[0] == 200


def test_a_thousand_half_requests_do_not_hurt_a_normal_client():
    limits = HttpLimits(header_deadline_s=3.0)

    def latencies(wire: Wire, count: int) -> list[float]:
        found = []
        for _ in range(count):
            started = time.perf_counter()
            assert wire.ask(post("/p", b"x" * 100))[0] == 200
            found.append(time.perf_counter() - started)
        return found

    with running(limits=limits) as server, server.connect() as wire, contextlib.ExitStack() as stack:
        before = latencies(wire, 300)
        half = [stack.enter_context(server.connect()) for _ in range(1_000)]
        for each in half:
            each.send(b"POST / HTTP/1.1\r\nHost: a\r\nX: ")
        eventually(lambda: server.listener.connection_count == 1_001)
        during = []
        for number in range(300):
            half[number].send(b"x")
            during += latencies(wire, 1)
        assert statistics.median(during) < 4 * statistics.median(before) + 0.002
        eventually(lambda: server.listener.connection_count == 1, within_s=30)
        assert {each.response()[0] for each in half} == {408}
        assert wire.ask(get())[0] == 200


def test_connections_beyond_the_limits_are_told_so():
    with running(limits=HttpLimits(connections=3, connections_per_peer=2)) as server, contextlib.ExitStack() as stack:
        kept = [stack.enter_context(server.connect()) for _ in range(2)]
        assert [wire.ask(get())[0] for wire in kept] == [200, 200]
        with server.connect() as refused:
            assert refused.ask(get())[0] == 503
            assert refused.rest() == b""
        kept[0].sock.close()
        eventually(lambda: server.listener.connection_count == 1)
        with server.connect() as again:
            assert again.ask(get())[0] == 200


def test_dead_peers_are_found_by_the_kernel():
    with running() as server, server.connect() as wire:
        wire.ask(get())
        connection = server.do(lambda: next(iter(server.listener._service.connections)))
        sock = connection._transport.get_extra_info("socket")
        tcp = {"TCP_NODELAY": 1, "TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
        assert {name: sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in tcp} == tcp
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


# Clients that go away.


def vanish(wire: Wire) -> None:
    """Closes with a reset, as a process that dies with unread data does."""
    wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.sock.close()


@pytest.mark.parametrize("cut", [10, 45, 70, 70_000, 300_000])
def test_a_client_that_vanishes_in_the_middle_leaves_nothing_behind(cut):
    with running() as server:
        for end in (vanish, lambda wire: wire.sock.close()):
            wire = server.connect()
            wire.send(post("/", b"x" * 400_000)[:cut])
            eventually(lambda: server.listener.connection_count == 1)
            end(wire)
            eventually(lambda: server.listener.connection_count == 0)
        assert server.seen == []
        assert server.listener._service.body_budget.used_bytes == 0
        assert not server.problems


def test_an_answer_for_a_client_that_has_gone_is_dropped_and_the_handler_is_told():
    held = Deferred()
    gone = threading.Event()

    def handle(request):
        request.on_gone(gone.set)
        return held

    with running(handle) as server:
        with server.connect() as wire:
            wire.send(get())
            eventually(lambda: server.seen)
            vanish(wire)
        assert gone.wait(PATIENCE_S)
        eventually(lambda: server.listener.connection_count == 0)
        server.do(lambda: held.resolve(Response(200)))
        assert not server.problems


def test_a_client_that_has_sent_its_last_byte_still_gets_its_answers():
    held = Deferred()
    with running(lambda r: held if r.raw_path == b"/slow" else echo(r)) as server, server.connect() as wire:
        wire.send(get("/slow") + get("/b"))
        wire.sock.shutdown(socket.SHUT_WR)
        eventually(lambda: server.seen and server.seen[0].gone)
        server.do(lambda: held.resolve(Response(200, b"slow")))
        assert [wire.response()[2] for _ in range(2)] == [b"slow", b"GET /b "]
        assert wire.rest() == b""


# Streams.


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


def test_the_head_of_a_stream_is_sent_before_there_is_anything_to_say():
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


def test_a_slow_reader_gets_everything_and_a_producer_sees_when_it_may_go_on():
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


def test_requests_behind_a_stream_are_started_and_wait_for_its_end():
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


def test_what_does_not_end_within_the_grace_is_cut():
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


def test_a_unix_socket_serves_alike(tmp_path):
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
