"""Isolation of tenants: how long a call of one tenant takes while another floods the server.

Tenant `calm` sends one durable message after the other. Tenant `flood` has quotas of messages, bytes and requests, and
offers many times as much, in each of these ways. The flood is paused and resumed, so every row compares the calm
tenant's latency in milliseconds with and without it, in the same minutes on the same server. `own` is the latency
without the time in which server or client waited for a core: on a machine that other programs keep busy, a server with
much to do gets a core later than one that is idle, whatever it does for its tenants.

    messages      small messages, pipelined from 32 connections
    streams       tiny streams, created as fast as they are accepted, on top of a million
    large         messages of 1 MB from 8 connections
    connections   5,000 idle connections

    python -m bench.tenants --rounds 5 --seconds 2
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

QUOTAS = {"messages_per_s": 1_000, "bytes_per_s": 10_000_000, "requests_per_s": 2_000}
KINDS = ("quiet", "messages", "streams", "large", "connections")
PIPELINE = 16


def request(token: str, method: str, target: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    status, length = int(head[9:12]), 0
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            length = int(line[15:])
    return status, await reader.readexactly(length)


async def call(port: int, token: str, method: str, target: str, body: object = None) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(token, method, target, json.dumps(body).encode() if body is not None else b""))
    status, content = await answer(reader)
    writer.close()
    assert status < 300, (target, status, content)
    return content


async def pipeline(port: int, make: Callable[[], bytes], depth: int) -> None:
    """Keep `depth` requests under way, for as long as the process lives."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(depth):
        writer.write(make())
    while True:
        await answer(reader)
        writer.write(make())
        await writer.drain()


async def idle(port: int, token: str, count: int) -> None:
    """Connections that have sent one request each, from many addresses."""
    kept = []
    for number in range(count):
        source = (f"127.0.{1 + number // 200}.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=source)
        writer.write(request(token, "GET", "/v1/topics"))
        await answer(reader)
        kept.append((reader, writer))
    await asyncio.Event().wait()


async def flood(port: int, token: str, kind: str, count: int) -> None:
    numbers = iter(range(1 << 62))
    small = request(token, "POST", "/v1/produce", b'{"topic":"t","value":"a small message"}')
    large = request(token, "POST", "/v1/produce", json.dumps({"topic": "t", "value": "x" * 1_000_000}).encode())
    if kind == "messages":
        await asyncio.gather(*(pipeline(port, lambda: small, PIPELINE) for _ in range(32)))
    elif kind == "streams":

        def stream() -> bytes:
            return request(token, "PUT", f"/v1/stream/s/{os.getpid()}/{next(numbers)}", b"", "text/plain")

        await asyncio.gather(*(pipeline(port, stream, PIPELINE) for _ in range(16)))
    elif kind == "large":
        await asyncio.gather(*(pipeline(port, lambda: large, 1) for _ in range(8)))
    elif kind == "connections":
        await idle(port, token, count)


def waited_s(pids: Sequence[int]) -> float:
    """How long the threads of these processes have waited for a core of the machine."""
    files = [task / "schedstat" for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()]
    return sum(int(file.read_text(encoding="ascii").split()[1]) for file in files) / 1e9


class Latency(NamedTuple):
    """Of one call, in milliseconds: as the client sees it, and without what server and client waited for a core."""

    wall_ms: float
    own_ms: float


async def latencies(port: int, token: str, seconds: float, pids: Sequence[int]) -> list[Latency]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    message = request(token, "POST", "/v1/produce", b'{"topic":"t","value":"calm"}')
    taken, until_s = [], time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        before_s, began_s = waited_s(pids), time.perf_counter()
        writer.write(message)
        status, content = await answer(reader)
        assert status == 200, content
        wall_s = time.perf_counter() - began_s
        taken.append(Latency(1_000 * wall_s, 1_000 * max(0.0, wall_s - (waited_s(pids) - before_s))))
    writer.close()
    return taken


@contextmanager
def server(folder: str) -> Iterator[tuple[int, str, int]]:
    """A server with tokens: its port, the operator's token and its process."""
    driftq = [sys.executable, "-m", "driftq.cli.main"]
    token_file = Path(folder) / "token"
    data = str(Path(folder) / "data")
    subprocess.run([*driftq, "auth", "init", "--data", data, "--to", str(token_file)], check=True, capture_output=True)
    options = ["--set", "auth.mode=tokens", "--set", "listen.connections_max=8000", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen([*driftq, "serve", "--data", data, *options], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        yield (
            int(line.split("127.0.0.1:")[1].split(";")[0].split(",")[0].split()[0]),
            token_file.read_text().strip(),
            process.pid,
        )
    finally:
        process.terminate()
        process.wait()


def run_flood(port: int, token: str, kind: str, count: int) -> None:
    os.nice(10)  # what is measured is the server, not how the machine divides its cores
    asyncio.run(flood(port, token, kind, count))


class Flood:
    """The flooding client, in a process of its own that can be paused."""

    def __init__(self, port: int, operator: str, token: str, kind: str, count: int) -> None:
        self._port = port
        self._operator = operator
        self._kind = kind
        self._count = count
        self._arguments = (port, token, kind, count)
        self._process: multiprocessing.Process | None = None

    def on(self) -> None:
        if self._kind == "quiet":
            return
        if self._process is None:
            self._process = multiprocessing.Process(target=run_flood, args=self._arguments, daemon=True)
            self._process.start()
        else:
            os.kill(self._pid, signal.SIGCONT)
        if self._kind == "connections":
            self._wait_for_connections(self._count, 120)
        else:
            self._wait_for_calls()

    def off(self) -> None:
        """Until nothing of it is left: idle connections are closed, calls are answered."""
        if self._process is None:
            return
        if self._kind == "connections":
            self.close()
            self._wait_for_connections(0, 60)
        else:
            os.kill(self._pid, signal.SIGSTOP)
            self._wait_until_answered()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    @property
    def _pid(self) -> int:
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    def calls(self) -> int:
        """How many calls of it were counted, refused ones included."""
        page = asyncio.run(call(self._port, self._operator, "GET", "/v1/metrics")).decode()
        match = re.search(r'driftq_tenant_requests_total\{tenant="flood"\} (\S+)', page)
        return int(float(match[1])) if match else 0

    def _wait_for_calls(self) -> None:
        before = self.calls()
        wait(lambda: self.calls() > before + 100, 60, "the flood does not begin")

    def _wait_until_answered(self) -> None:
        """It sends nothing any more; what the server had read is done when the count stands still."""
        last = [-1]

        def still() -> bool:
            now, before = self.calls(), last[0]
            last[0] = now
            return now == before

        wait(still, 60, "the flood does not end")

    def _wait_for_connections(self, count: int, seconds: float) -> None:
        def are_there() -> bool:
            used = json.loads(asyncio.run(call(self._port, self._operator, "GET", "/v1/tenants/flood")))["used"]
            return bool(used["connections"] >= count if count else used["connections"] < 10)

        wait(are_there, seconds, f"{count} connections could not be opened: raise `ulimit -n`")


def wait(holds: Callable[[], bool], seconds: float, otherwise: str) -> None:
    deadline_s = time.perf_counter() + seconds
    while not holds():
        if time.perf_counter() > deadline_s:
            raise SystemExit(otherwise)
        time.sleep(0.2)


def measure(kind: str, rounds: int, seconds: float, count: int, streams: int) -> dict[str, object]:
    """Slices with and without the flood in turns, on one server, so that a noisy minute affects both."""
    with tempfile.TemporaryDirectory() as folder, server(folder) as (port, operator, pid):
        pids = (pid, os.getpid())
        tokens = {}
        for tenant in ("calm", "flood"):
            asyncio.run(call(port, operator, "POST", "/v1/tenants", {"name": tenant}))
            new_token = asyncio.run(
                call(port, operator, "POST", "/v1/tokens", {"name": "n", "grants": ["admin"], "tenant": tenant})
            )
            tokens[tenant] = json.loads(new_token)["token"]
            asyncio.run(call(port, tokens[tenant], "POST", "/v1/topics", {"name": "t"}))
        if kind == "streams" and streams:
            asyncio.run(make_streams(port, tokens["flood"], streams))
        asyncio.run(call(port, operator, "PATCH", "/v1/tenants/flood", QUOTAS))
        flood = Flood(port, operator, tokens["flood"], kind, count)
        quiet: list[Latency] = []
        flooded: list[Latency] = []
        calls, flooded_s = 0, 0.0
        try:
            asyncio.run(latencies(port, tokens["calm"], seconds, pids))  # warm
            for _ in range(rounds):
                quiet += asyncio.run(latencies(port, tokens["calm"], seconds, pids))
                flood.on()
                before, began_s = flood.calls(), time.perf_counter()
                flooded += asyncio.run(latencies(port, tokens["calm"], seconds, pids))
                flooded_s += time.perf_counter() - began_s
                calls += flood.calls() - before
                flood.off()
            used = json.loads(asyncio.run(call(port, operator, "GET", "/v1/tenants/flood")))["used"]
            stalls = stalls_of(port, operator)
        finally:
            flood.close()
    figures = {
        f"{name}_{kind_of}_ms": round(quantile([call[at] for call in taken], share), 2)
        for name, taken in (("quiet", quiet), ("flooded", flooded))
        for kind_of, at, share in (("p50", 0, 0.5), ("p99", 0, 0.99), ("own_p50", 1, 0.5), ("own_p99", 1, 0.99))
    }
    return {
        "flood": kind,
        "own_p99_ratio": round(figures["flooded_own_p99_ms"] / figures["quiet_own_p99_ms"], 2),
        "p99_ratio": round(figures["flooded_p99_ms"] / figures["quiet_p99_ms"], 2),
        **figures,
        "calls": [len(quiet), len(flooded)],
        "flood_calls_per_s": round(calls / flooded_s),
        "flood_streams": used["streams"],
        "flood_stored_bytes": used["stored_bytes"],
        "stalls": stalls,
        "load": os.getloadavg()[0],
    }


def stalls_of(port: int, operator: str) -> dict[str, list[float]]:
    """Turns of the server's loop that others waited for: how many by cause, and their seconds."""
    page = asyncio.run(call(port, operator, "GET", "/v1/metrics")).decode()
    pattern = r'driftq_loop_stall_seconds_{}{{cause="([^"]+)"}} (\S+)'
    counts, sums = (dict(re.findall(pattern.format(part), page)) for part in ("count", "sum"))
    return {cause: [float(count), round(float(sums[cause]), 3)] for cause, count in counts.items()}


def quantile(taken: list[float], share: float) -> float:
    return sorted(taken)[int(share * (len(taken) - 1))]


async def make_streams(port: int, token: str, count: int) -> None:
    """Tiny streams that are there before the flood, without a quota."""
    numbers = iter(range(count))

    async def work() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while batch := list(itertools.islice(numbers, 64)):
            for number in batch:
                writer.write(request(token, "PUT", f"/v1/stream/before/{number}", b"x", "text/plain"))
            for _ in batch:
                status, content = await answer(reader)
                assert status == 201, content
        writer.close()

    await asyncio.gather(*(work() for _ in range(8)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--streams", type=int, default=1_000_000, help="Streams that are there before the flood.")
    parser.add_argument("--connections", type=int, default=5_000)
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    options = parser.parse_args()
    for kind in options.kinds:
        figures = measure(kind, options.rounds, options.seconds, options.connections, options.streams)
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
