"""Turns of the loop: a bounded turn, a light connection before heavy ones, and no request lost or out of order."""

from __future__ import annotations

import collections
import contextlib
import itertools
import threading
import time
from collections.abc import Callable

from driftq.engine.loop_monitor import LoopMonitor
from driftq.server.access.identity import Identity
from driftq.server.http import Deferred, HttpLimits, Request, Response
from driftq.server.http.fair_queue import Flow
from driftq.server.http.limits import LARGE_BODY_BYTES
from driftq.server.http.turns import (
    PIPELINED_MAX,
    SHARED_TURN_COST,
    SHARED_TURN_S,
    TURN_COST,
    TURN_S,
    VISIT_COST,
    Turns,
)
from tests.unit.server.http.listener_fixture import eventually, get, post, running, vanish


class Work:
    """A flow with `count` pieces of work, which cost 1 each."""

    def __init__(self, turns: Turns, name: str, count: int, log: list[str]) -> None:
        self._turns = turns
        self._name = name
        self._log = log
        self.count = count
        self.flow = Flow(self)

    def take_turn(self) -> None:
        while self.count and self._turns.left > 0:
            self._turns.left -= 1
            self.count -= 1
            self._log.append(self._name)
        if self.count:
            self._turns.wait(self.flow)

    def share_key(self) -> str:
        return "a key"


class HandLoop:
    """A loop whose turns the test runs."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def turn(self) -> None:
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            callback()


def test_a_turn_serves_each_flow_a_little_and_ends_when_its_budget_is_spent():
    log: list[str] = []
    loop = HandLoop()
    turns = Turns(loop.call_soon, 1_000, LoopMonitor().timed, lambda: 0.0)
    for name in ("a", "b"):
        turns.wait(Work(turns, name, 10 * TURN_COST, log).flow)
    assert turns.left == 0, "work that arrives now waits too"
    loop.turn()
    assert len(log) == TURN_COST
    runs = [(name, len(list(group))) for name, group in itertools.groupby(log)]
    assert runs == [("a", VISIT_COST), ("b", VISIT_COST)] * (TURN_COST // VISIT_COST // 2)
    turns.wait(Work(turns, "light", 1, log).flow)
    loop.turn()
    assert "light" in log[TURN_COST : TURN_COST + VISIT_COST + 1]
    while loop.callbacks:
        loop.turn()
    assert collections.Counter(log) == {"a": 10 * TURN_COST, "b": 10 * TURN_COST, "light": 1}
    assert turns.left == TURN_COST, "nothing waits, so the next turn has its full budget"
    assert not turns.armed


def test_while_turns_are_shared_a_flow_that_comes_later_waits_for_a_small_piece_of_work():
    log: list[str] = []
    loop = HandLoop()
    turns = Turns(loop.call_soon, 1_000, LoopMonitor().timed, lambda: 0.0)
    turns.share_turns(("a", "b"))
    turns.wait(Work(turns, "flood", 10 * TURN_COST, log).flow)
    loop.turn()
    assert len(log) == SHARED_TURN_COST
    turns.wait(Work(turns, "light", 1, log).flow)
    loop.turn()
    assert log.index("light") <= SHARED_TURN_COST + VISIT_COST
    turns.share_turns(("a",))
    while loop.callbacks:
        loop.turn()
    assert collections.Counter(log) == {"flood": 10 * TURN_COST, "light": 1}
    assert turns.left == TURN_COST


def test_connections_of_two_tenants_share_turns_and_those_of_one_do_not():
    started: list[bytes] = []

    def handle(request: Request) -> Response:
        started.append(request.raw_path)
        name = request.raw_path.split(b"/")[1].decode()
        request.identity = Identity(name, (), tenant=name)
        return Response(200, b"done")

    with running(handle) as server, server.connect() as heavy, server.connect() as light:
        turns = server.listener._service.turns
        assert heavy.ask(get("/heavy/0"))[0] == 200
        assert server.do(lambda: turns.turn_s) == TURN_S
        assert light.ask(get("/light/0"))[0] == 200
        assert server.do(lambda: turns.turn_s) == SHARED_TURN_S
        started.clear()
        go = threading.Event()
        server.loop.call_soon_threadsafe(go.wait)  # all of it is in the sockets before the first byte is read
        heavy.send(get("/heavy/1") * 1_000)
        light.send(get("/light/1"))
        go.set()
        assert light.response()[0] == 200
        assert [heavy.response()[0] for _ in range(1_000)] == [200] * 1_000
        assert started.index(b"/light/1") <= 2 * SHARED_TURN_COST
        vanish(light)
        eventually(lambda: turns.turn_s == TURN_S)


def test_while_turns_are_shared_a_request_that_takes_long_ends_the_turn():
    turns_of_requests: list[int] = []
    turn = 0

    def handle(request: Request) -> Response:
        if request.raw_path == b"/long":
            turns_of_requests.append(turn)
            until_s = time.perf_counter() + 2 * SHARED_TURN_S
            while time.perf_counter() < until_s:
                pass
        request.identity = Identity("n", (), tenant=request.raw_path.decode())
        return Response(200, b"done")

    with running(handle) as server, server.connect() as heavy, server.connect() as light:

        def count_turns() -> None:
            nonlocal turn
            turn += 1
            server.loop.call_soon(count_turns)

        assert heavy.ask(get("/long"))[0] == 200
        assert light.ask(get("/light"))[0] == 200
        server.do(count_turns)
        heavy.send(get("/long") * 50)
        assert [heavy.response()[0] for _ in range(50)] == [200] * 50
    assert len(set(turns_of_requests[1:])) == 50, "each in a turn of its own"


def test_a_flow_that_left_gets_no_turn():
    log: list[str] = []
    loop = HandLoop()
    turns = Turns(loop.call_soon, 1_000, LoopMonitor().timed, lambda: 0.0)
    lost, kept = Work(turns, "lost", 5, log), Work(turns, "kept", 5, log)
    turns.wait(lost.flow)
    turns.wait(kept.flow)
    turns.leave(lost.flow)
    turns.large_started(1_000)
    turns.wait_for_room(lost.flow)
    turns.leave(lost.flow)
    turns.large_ended(1_000)
    loop.turn()
    assert log == ["kept"] * 5


def test_a_flow_waits_for_room_until_large_requests_end():
    log: list[str] = []
    loop = HandLoop()
    turns = Turns(loop.call_soon, 1_000, LoopMonitor().timed, lambda: 0.0)
    work = Work(turns, "large", 1, log)
    turns.large_started(999)
    assert turns.has_room()
    turns.large_started(500)
    assert not turns.has_room()
    turns.wait_for_room(work.flow)
    turns.large_ended(10)
    loop.turn()
    assert log == []
    turns.large_ended(499)
    loop.turn()
    assert log == ["large"]


def test_every_request_of_a_flood_is_answered_in_order_and_a_light_connection_does_not_wait_for_it():
    """Requests that are parked, parsed in part or not read at all: none is lost, repeated or out of order."""
    started: list[bytes] = []

    def handle(request: Request) -> Response:
        started.append(request.raw_path)
        return Response(200, request.raw_path, "text/plain")

    paths = [f"/heavy/{number}" for number in range(40 * TURN_COST)]
    with running(handle) as server, server.connect() as heavy, server.connect() as light:
        assert light.ask(get("/warm"))[0] == 200
        go = threading.Event()
        server.loop.call_soon_threadsafe(go.wait)  # all of it is in the sockets before the first byte is read
        heavy.send(b"".join(map(get, paths)))
        light.send(get("/light"))
        go.set()
        assert [heavy.response()[2].decode() for _ in paths] == paths
        assert light.response()[2] == b"/light"
    assert [path.decode() for path in started if path.startswith(b"/heavy")] == paths
    assert started.index(b"/light") <= 2 * TURN_COST


def test_a_connection_has_one_request_under_way_when_too_many_are_pipelined_and_others_still_start():
    pending: list[Deferred] = []

    def handle(request: Request) -> Deferred:
        pending.append(Deferred())
        return pending[-1]

    def answer_all() -> int:
        answers = pending[:]
        pending.clear()
        for answer in answers:
            answer.resolve(Response(200, b"done"))
        return len(answers)

    limits = HttpLimits(pipelined=PIPELINED_MAX)
    with running(handle, limits) as server, contextlib.ExitStack() as stack:
        flooding = [stack.enter_context(server.connect()) for _ in range(3)]
        for wire in flooding:
            wire.send(get() * 2 * PIPELINED_MAX)
        eventually(lambda: len(pending) == PIPELINED_MAX + len(flooding), "each has one, and the rest is shared")
        light = stack.enter_context(server.connect()).send(get() * 2)
        eventually(lambda: len(pending) == PIPELINED_MAX + len(flooding) + 1, "the first of a further connection")
        answered = 0
        while answered < 6 * PIPELINED_MAX + 2:
            eventually(lambda: pending)
            answered += server.do(answer_all)
        for wire in flooding:
            assert [wire.response()[0] for _ in range(2 * PIPELINED_MAX)] == [200] * 2 * PIPELINED_MAX
        assert [light.response()[0] for _ in range(2)] == [200, 200]
        turns = server.listener._service.turns
        assert server.do(lambda: turns.pipelined) == 0


def test_a_tenant_whose_answers_wait_leaves_pipelining_to_the_others():
    pending: list[tuple[str, Deferred]] = []

    def handle(request: Request) -> Response | Deferred:
        _, name, what = request.raw_path.decode().split("/")
        request.identity = Identity(name, (), tenant=name)
        if what == "hello":
            return Response(200, b"hello")
        pending.append((name, Deferred()))
        return pending[-1][1]

    def of(name: str) -> int:
        return sum(tenant == name for tenant, _ in pending)

    def answer(name: str) -> int:
        answers = [waiting for tenant, waiting in pending if tenant == name]
        pending[:] = [entry for entry in pending if entry[0] != name]
        for waiting in answers:
            waiting.resolve(Response(200, b"done"))
        return len(answers)

    with running(handle, HttpLimits(pipelined=PIPELINED_MAX)) as server, contextlib.ExitStack() as stack:
        flooding = [stack.enter_context(server.connect()) for _ in range(3)]
        calm = stack.enter_context(server.connect())
        for wire, name in ((calm, "calm"), *((wire, "flood") for wire in flooding)):
            assert wire.ask(get(f"/{name}/hello"))[0] == 200
        for wire in flooding:
            wire.send(get("/flood/wait") * 2 * PIPELINED_MAX)
        eventually(lambda: of("flood") == PIPELINED_MAX // 2 + len(flooding))
        calm.send(get("/calm/wait") * 50)
        eventually(lambda: of("calm") == 50, "all of them are under way")
        assert of("flood") == PIPELINED_MAX // 2 + len(flooding)
        server.do(lambda: answer("calm"))
        assert [calm.response()[0] for _ in range(50)] == [200] * 50
        turns = server.listener._service.turns
        assert server.do(lambda: turns.pipelined) == PIPELINED_MAX // 2
        answered = 0
        while answered < 6 * PIPELINED_MAX:
            eventually(lambda: pending)
            answered += server.do(lambda: answer("flood"))
        for wire in flooding:
            assert [wire.response()[0] for _ in range(2 * PIPELINED_MAX)] == [200] * 2 * PIPELINED_MAX
        assert server.do(lambda: turns.pipelined) == 0


def test_large_requests_wait_for_room_and_small_ones_do_not():
    pending: dict[bytes, Deferred] = {}

    def handle(request: Request) -> Deferred:
        return pending.setdefault(request.raw_path, Deferred())

    body = b"x" * (LARGE_BODY_BYTES + 1)
    limits = HttpLimits(started_bytes=2 * len(body))
    with running(handle, limits) as server, contextlib.ExitStack() as stack:
        wires = [stack.enter_context(server.connect()).send(post(f"/large/{number}", body)) for number in range(4)]
        eventually(lambda: len(pending) == 2)
        small = stack.enter_context(server.connect()).send(get("/small"))
        eventually(lambda: b"/small" in pending)
        budget = server.listener._service.body_budget
        eventually(lambda: budget.used_bytes == 4 * len(body), "those that wait hold memory too")
        assert len(pending) == 3
        server.do(lambda: [answer.resolve(Response(200, b"done")) for answer in pending.values()])
        eventually(lambda: len(pending) == 5)
        vanish(wires[3])
        eventually(lambda: budget.used_bytes == len(body), "a lost connection holds none")
        server.do(lambda: [answer.resolve(Response(200, b"done")) for answer in [*pending.values()][3:]])
        assert {wire.response()[0] for wire in (*wires[:3], small)} == {200}
        assert budget.used_bytes == 0
        assert server.listener._service.turns.has_room()
