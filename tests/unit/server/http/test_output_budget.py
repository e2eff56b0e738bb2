"""The memory of all output: what a client that does not read may hold, and replies that are made in pieces or late."""

from __future__ import annotations

import contextlib
import socket

import pytest

from driftq.server.http import Deferred, HttpLimits, LazyReply, PieceResponse, Request, Response
from driftq.server.http.output_budget import SMALL_BODY_BYTES, OutputBudget
from tests.unit.server.http.listener_fixture import Server, Wire, eventually, get, running, vanish

MIB = 1 << 20


def test_the_budget_is_tight_from_half_on_and_a_body_may_take_half_of_the_rest():
    budget = OutputBudget(100 * MIB)
    assert not budget.is_tight
    assert budget.body_bytes_max() == 50 * MIB
    budget.hold(50 * MIB)
    assert budget.is_tight
    assert budget.body_bytes_max() == 25 * MIB
    budget.hold(60 * MIB)
    assert budget.body_bytes_max() == SMALL_BODY_BYTES, "small bodies are always sent"
    budget.release(61 * MIB)
    assert not budget.is_tight


class Numbers:
    """A body of `count` pieces. Remembers how it was used."""

    def __init__(self, count: int, size: int = 10_000) -> None:
        self.pieces = [b"%d" % (number % 10) * size for number in range(count)]
        self.made_count = 0
        self.drops = 0
        self.closes = 0

    @property
    def held_bytes(self) -> int:
        return 1_000

    def next_piece(self) -> bytes:
        self.made_count += 1
        return self.pieces[self.made_count - 1] if self.made_count <= len(self.pieces) else b""

    def drop(self) -> None:
        self.drops += 1

    def close(self) -> None:
        self.closes += 1


def slow(server: Server) -> Wire:
    """A client whose kernel takes little that it does not read."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.settimeout(20)
    sock.connect(server.address)
    return Wire(sock)


@pytest.mark.parametrize("count", [0, 1, 500])
def test_a_reply_in_pieces_arrives_whole_and_the_connection_is_used_again(count):
    source = Numbers(count)
    with running(lambda _: PieceResponse(200, source, "text/plain", [("X-Test", "1")])) as server:
        with server.connect() as wire:
            status, headers, body = wire.ask(get())
            assert (status, headers["transfer-encoding"], headers["x-test"]) == (200, "chunked", "1")
            assert body == b"".join(source.pieces)
            assert source.closes == 1
            source.made_count = 0
            assert wire.ask(get())[2] == body
            source.made_count = 0
            wire.send(b"GET / HTTP/1.0\r\nHost: test\r\n\r\n")
            assert wire.rest().endswith(b"\r\n\r\n" + body)
        assert server.do(lambda: server.listener._service.output_budget.used_bytes) == 0


def test_a_client_that_does_not_read_has_only_a_few_pieces_made_and_others_are_served():
    sources = [Numbers(600) for _ in range(3)]
    replies = iter(sources)
    limits = HttpLimits(write_buffer_bytes=50_000)

    def handle(request: Request) -> Response | PieceResponse:
        return Response(200, b"quick") if request.raw_path == b"/quick" else PieceResponse(200, next(replies))

    with running(handle, limits) as server, contextlib.ExitStack() as stack:
        service = server.listener._service
        unread = [stack.enter_context(slow(server)).send(get()) for _ in sources]
        eventually(lambda: service.output_budget.used_bytes > 3 * 50_000, "all are paused")
        assert stack.enter_context(server.connect()).ask(get("/quick"))[2] == b"quick"
        counts = [source.made_count for source in sources]
        assert max(counts) < 500, "the kernel's buffers are full, and ours"
        assert [source.drops for source in sources] == [0, 0, 0]
        assert unread[0].response()[2] == b"".join(sources[0].pieces)
        for wire in unread[1:]:
            vanish(wire)
        eventually(lambda: [source.closes for source in sources] == [1, 1, 1])
        eventually(lambda: service.output_budget.used_bytes == 0)


def test_when_memory_is_tight_a_source_drops_what_it_has_read_and_connections_hold_less():
    with running(lambda _: PieceResponse(200, sources.pop()), HttpLimits(output_bytes=10 * MIB)) as server:
        service = server.listener._service

        def unsent_bytes() -> int:
            return sum(connection._transport.get_write_buffer_size() for connection in service.connections)

        first, second = Numbers(600), Numbers(600)
        sources = [second, first]
        with slow(server) as wire:
            wire.send(get())
            eventually(lambda: server.do(unsent_bytes) > 60_000)
            assert not first.drops
        eventually(lambda: not service.connections)
        server.do(lambda: service.output_budget.hold(6 * MIB))
        with slow(server) as wire:
            wire.send(get())
            eventually(lambda: second.drops)
            assert server.do(unsent_bytes) < 60_000
            assert wire.response()[2] == b"".join(second.pieces)
        server.do(lambda: service.output_budget.release(6 * MIB))


def test_a_lazy_reply_is_made_when_the_socket_takes_output_and_discarded_if_it_never_does():
    sizes_max: list[int] = []
    discarded: list[bool] = []
    large = b"x" * (4 * MIB)

    def make(size_max: int) -> Response:
        sizes_max.append(size_max)
        return Response(200, large)

    answers: list[Deferred] = []

    def handle(request: Request) -> Deferred:
        answers.append(Deferred())
        return answers[-1]

    with running(handle) as server:
        service = server.listener._service
        with slow(server) as wire:
            wire.send(get() * 4)
            eventually(lambda: len(answers) == 4)
            lazy = [LazyReply(make, lambda: discarded.append(True)) for _ in answers]
            server.do(lambda: [answer.resolve(reply) for answer, reply in zip(answers, lazy, strict=True)])
            eventually(lambda: service.output_budget.used_bytes)
            assert len(sizes_max) == 1, "the next one waits until the socket takes output"
            assert [len(wire.response()[2]) for _ in range(2)] == [len(large)] * 2
            eventually(lambda: len(sizes_max) == 3)
            vanish(wire)
        eventually(lambda: discarded == [True])
        assert len(sizes_max) == 3


def test_a_lazy_reply_that_is_larger_than_memory_allows_is_refused_and_a_small_one_is_not():
    discarded: list[bool] = []

    def handle(request: Request) -> LazyReply:
        size = int(request.raw_path[1:])
        return LazyReply(lambda size_max: Response(200, b"x" * size), lambda: discarded.append(True))

    with running(handle, HttpLimits(output_bytes=10 * MIB)) as server, server.connect() as wire:
        assert wire.ask(get(f"/{5 * MIB}"))[0] == 200
        assert not discarded
        status, _, body = wire.ask(get(f"/{6 * MIB}"))
        assert (status, body.startswith(b"too much output waits")) == (503, True)
        assert discarded == [True]
        server.do(lambda: server.listener._service.output_budget.hold(10 * MIB))
        assert wire.ask(get("/1000"))[0] == 200


def test_an_error_while_a_lazy_reply_is_made_is_a_500_and_one_in_a_later_piece_ends_the_connection():
    class Broken(Numbers):
        def next_piece(self) -> bytes:
            if self.made_count == 3:
                raise RuntimeError("broken")
            return super().next_piece()

    def fail(size_max: int) -> Response:
        raise RuntimeError("broken")

    broken = Broken(10)
    with running(lambda r: LazyReply(fail) if r.raw_path == b"/" else PieceResponse(200, broken)) as server:
        with server.connect() as wire:
            assert wire.ask(get())[0] == 500
            received = wire.send(get("/pieces")).rest()
            assert not received.endswith(b"0\r\n\r\n")
        eventually(lambda: broken.closes == 1)
        assert [problem["message"] for problem in server.problems][1:] == ["a reply could not be completed"]
