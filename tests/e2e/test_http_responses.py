"""The HTTP layer over real sockets: the exact bytes of responses, their order, and handlers that fail."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

from driftq.server.http import (
    BadRequest,
    Deferred,
    HttpLimits,
    Response,
)
from tests.unit.server.http.listener_fixture import (
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


OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nDate: *\r\n"


def test_a_response_is_these_bytes(plain):
    with plain.connect() as wire:
        wire.send(get("/a", "Connection: close"))
        assert undated(wire.rest()) == OK + b"Content-Length: 7\r\nConnection: close\r\n\r\nGET /a "


def test_a_keep_alive_response_has_no_connection_header(plain):
    with plain.connect() as wire:
        for _ in range(3):
            wire.send(post("/p", b"body"))
            head = wire.until(b"\r\n\r\n")
            assert undated(head) == OK + b"Content-Length: 12\r\n\r\n"
            assert wire.exactly(12) == b"POST /p body"


def test_http_1_0_is_kept_alive_only_on_request(plain):
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


def test_expect_100_continue_is_answered(plain):
    with plain.connect() as wire:
        head, _, body = post("/p", b"hello", "Expect: 100-continue").partition(b"\r\n\r\n")
        wire.send(head + b"\r\n\r\n")
        assert wire.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert wire.ask(body)[2] == b"POST /p hello"
        # With the body on the way there is nothing to ask for.
        assert wire.ask(post("/p", b"hello", "Expect: 100-continue"))[0] == 200


def test_a_body_that_is_too_long_gets_no_100_continue():
    with running(limits=HttpLimits(body_bytes=10)) as server, server.connect() as wire:
        wire.send(post("/p", b"x" * 11, "Expect: 100-continue")[:-11])
        assert wire.response()[0] == 413
        assert wire.rest() == b""


def test_chunked_bodies_are_joined(plain):
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


def test_pipelining_is_bounded_and_every_request_is_answered():
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


def test_unread_pipelined_responses_stop_the_server_from_reading():
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
