"""What access costs: the check of a credential alone, and a durable produce with and without tokens.

    python -m bench.access --rounds 40 --seconds 0.3

`check …` is CPU time in one process, of many checks in a row: of a repeated head, of a new head with a known
credential, and of a credential that is seen for the first time, as a token or as a short-lived one; the same requests
without access are subtracted. `produce …` runs two servers side by side, one with tokens and one without, and sends to
them in turns over 64 connections each: rates and the server's CPU time (all threads) come from the same minute.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import uvloop

from bench.load_client import closed_loop, post
from bench.report import emit
from driftq.core.model.access import CreateAccessToken
from driftq.engine.engine import Engine
from driftq.server.access import derived_tokens
from driftq.server.access.authenticator import Authenticator
from driftq.server.access.gate import ReadinessGate
from driftq.server.access.identity import BODY, Right, require_topic
from driftq.server.access.token_text import new_token
from driftq.server.app import App, RouteSpec
from driftq.server.http import Request, Response
from driftq.server.http.request import RequestHead
from driftq.server.logs import AccessLog
from driftq.server.settings import Settings
from driftq.wire.grants import PRODUCE, parse_grants
from tests.support.access import TOKENS, first_token
from tests.support.server import Server

DONE = Response(200, b"{}")
CONNECTIONS = 64


class Checks:
    """A gate with one route that does nothing but check its right, with access and without."""

    def __init__(self, engine: Engine) -> None:
        self.authenticator = Authenticator(engine)
        route = RouteSpec("POST", "/v1/produce", self._handle, Right(PRODUCE, BODY))
        self.with_access = self._gate(App([route], self.authenticator))
        self.without = self._gate(App([route]))

    def _handle(self, request: Request) -> Response:
        require_topic(request, PRODUCE, "orders")
        return DONE

    def _gate(self, app: App) -> Callable[[Request], object]:
        gate = ReadinessGate(Settings(), AccessLog())
        gate.open(app)
        return gate

    def repeated(self, gate: Callable[[Request], object], token: str, count: int) -> float:
        head = head_of(token)
        gate(Request(head, b"", "127.0.0.1"))
        began_s = time.process_time()
        for _ in range(count):
            gate(Request(head, b"", "127.0.0.1"))
        return time.process_time() - began_s

    def new_heads(self, gate: Callable[[Request], object], token: str, count: int) -> float:
        heads = [head_of(token) for _ in range(count)]
        gate(Request(head_of(token), b"", "127.0.0.1"))
        began_s = time.process_time()
        for head in heads:
            gate(Request(head, b"", "127.0.0.1"))
        return time.process_time() - began_s

    def first_time(self, gate: Callable[[Request], object], token: str, count: int) -> float:
        heads = [head_of(token) for _ in range(count)]
        began_s = time.process_time()
        for head in heads:
            self.authenticator._verified.clear()
            gate(Request(head, b"", "127.0.0.1"))
        return time.process_time() - began_s


def head_of(token: str) -> RequestHead:
    return RequestHead("POST", b"/v1/produce", {b"host": b"localhost", b"authorization": f"Bearer {token}".encode()})


async def checks(count: int, rounds: int) -> None:
    engine = Engine.in_memory()
    try:
        token = new_token()
        await engine.submit(CreateAccessToken(token.token_id, "bench", ("produce:*",), token.digest))
        at = Checks(engine)
        request = Request(head_of(token.text), b"", "127.0.0.1")
        at.with_access(request)
        assert request.identity is not None
        keys = at.authenticator.keys
        derived = derived_tokens.issue(
            keys, request.identity, parse_grants(["produce:orders"]), 600_000, engine.now_ms()
        ).text
        cases = {
            "check repeated head": (at.repeated, token.text, count),
            "check new head": (at.new_heads, token.text, count // 10),
            "check first time, token": (at.first_time, token.text, count // 50),
            "check first time, short-lived": (at.first_time, derived, count // 50),
        }
        costs: dict[str, list[float]] = {case: [] for case in cases}
        for _ in range(rounds):
            for case, (run, text, many) in cases.items():
                spent_s = run(at.with_access, text, many) - run(at.without, text, many)
                costs[case].append(1e6 * spent_s / many)
        for case, taken in costs.items():
            emit("access", case, median(taken), "us", cpu_us_per_op=median(taken), max_us=max(taken), rounds=rounds)
    finally:
        await engine.close()


def cpu_s(server: Server) -> float:
    """Of all threads, to the nanosecond."""
    tasks = Path(f"/proc/{server.process.pid}/task")
    return sum(int((task / "schedstat").read_text(encoding="ascii").split()[0]) for task in tasks.iterdir()) / 1e9


def produce(rounds: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        token = first_token(f"{folder}/on")
        servers = {"off": Server(f"{folder}/off"), "on": Server(f"{folder}/on", TOKENS)}
        body = json.dumps({"topic": "t", "value": "v" * 100}).encode()
        plain = post("/v1/produce", body)
        line = f"Authorization: Bearer {token}\r\n".encode()
        requests = {"off": plain, "on": plain.replace(b"Content-Type:", line + b"Content-Type:")}
        rates: dict[str, list[float]] = {"off": [], "on": []}
        costs: dict[str, list[float]] = {"off": [], "on": []}
        try:
            for server in servers.values():
                headers = {"Authorization": f"Bearer {token}"}
                assert server.call("POST", "/v1/topics", {"name": "t"}, headers).status == 201
            for number in range(rounds + 1):
                order = ("on", "off") if number % 2 else ("off", "on")
                for case in order:
                    before_s = cpu_s(servers[case])
                    make = partial(bytes, requests[case])
                    rate, latencies = uvloop.run(closed_loop(servers[case].port, make, CONNECTIONS, seconds))
                    if number:  # the first round warms up
                        rates[case].append(rate)
                        costs[case].append(1e6 * (cpu_s(servers[case]) - before_s) / len(latencies))
        finally:
            for server in servers.values():
                server.stop()
    load = os.getloadavg()[0]
    for case, taken in rates.items():
        emit("access", f"produce durable c={CONNECTIONS}, tokens {case}", median(taken), "messages/s",
             cpu_us_per_op=median(costs[case]), rounds=rounds, load=load)  # fmt: skip
    ratios = sorted(on / off for on, off in zip(rates["on"], rates["off"], strict=True))
    cpu_ratios = sorted(on / off for on, off in zip(costs["on"], costs["off"], strict=True))
    emit("access", "rate with tokens / without", median(ratios), "ratio", cpu_us_per_op=0.0, load=load,
         low=ratios[len(ratios) // 4], high=ratios[-1 - len(ratios) // 4])  # fmt: skip
    emit("access", "CPU with tokens / without", median(cpu_ratios), "ratio", cpu_us_per_op=0.0, load=load,
         low=cpu_ratios[len(cpu_ratios) // 4], high=cpu_ratios[-1 - len(cpu_ratios) // 4])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--checks", type=int, default=100_000)
    options = parser.parse_args()
    uvloop.run(checks(options.checks, options.rounds))
    produce(options.rounds, options.seconds)


if __name__ == "__main__":
    main()
