"""The HTTP layer over real sockets: timeouts, limits on connections, and clients that disconnect."""

from __future__ import annotations

import contextlib
import socket
import statistics
import threading
import time

import pytest

from driftq.server.http import (
    Deferred,
    HttpLimits,
    Response,
)
from tests.unit.server.http.listener_fixture import (
    PATIENCE_S,
    QUICK,
    Wire,
    echo,
    eventually,
    get,
    post,
    running,
    vanish,
)

# Timeouts.


def test_a_head_that_does_not_end_is_cut_with_408():
    with running(limits=QUICK) as server, server.connect() as wire, server.connect() as silent:
        started = time.monotonic()
        wire.send(b"GET / HTTP/1.1\r\nHost: a\r\n")
        assert wire.response()[0] == 408
        assert wire.rest() == b""
        assert 0.3 < time.monotonic() - started < 5
        assert silent.rest() == b""  # sent nothing: closed without a response


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


def test_an_idle_connection_is_closed_without_a_response():
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
        latencies_s = []
        for _ in range(count):
            started = time.perf_counter()
            assert wire.ask(post("/p", b"x" * 100))[0] == 200
            latencies_s.append(time.perf_counter() - started)
        return latencies_s

    with running(limits=limits) as server, server.connect() as wire, contextlib.ExitStack() as stack:
        before = latencies(wire, 300)
        half = [stack.enter_context(server.connect()) for _ in range(1_000)]
        for half_open in half:
            half_open.send(b"POST / HTTP/1.1\r\nHost: a\r\nX: ")
        eventually(lambda: server.listener.connection_count == 1_001)
        during = []
        for number in range(300):
            half[number].send(b"x")
            during += latencies(wire, 1)
        assert statistics.median(during) < 4 * statistics.median(before) + 0.002
        eventually(lambda: server.listener.connection_count == 1, within_s=30)
        assert {half_open.response()[0] for half_open in half} == {408}
        assert wire.ask(get())[0] == 200


def test_connections_beyond_the_limits_get_503():
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


# Clients that disconnect.


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


def test_an_answer_for_a_client_that_has_gone_is_dropped_and_the_handler_is_notified():
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
