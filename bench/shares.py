"""Fair shares: how long a client with small calls waits while others flood the server or do not read its replies.

    python -m bench.shares [--seconds 8] [--only large]

Each case has a server of its own. The client sends one durable message every few milliseconds, first alone, then beside
the others, which are a process of their own:

    pipelined   200 connections with 16 small produces under way on each
    large       16 connections that produce messages of 1 MB
    events      300 unread event streams, of a stream that gets appends of 100 kB
    claims      100 unread claims of 30 MB
    consumers   300 unread consumers

Printed are the 99th percentile beside them, its limit (twice that of the client alone, and 20 ms), how many calls of
the client were refused, and the memory of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.load_client import LoadClient, post
from bench.report import emit, quantile
from tests.support.light_client import connect, raw_request
from tests.support.server import running

PAUSE_S = 0.002
LIMIT_MS = 20.0
FILL = 300  # messages or appends of 100 kB that are there before
UNREAD = 300
VALUE = "x" * 100_000
LIGHT = post("/v1/produce", b'{"topic":"light","value":"a small message"}')
SMALL = post("/v1/produce", b'{"topic":"heavy","value":"a small message"}')
LARGE = post("/v1/produce", json.dumps({"topic": "heavy", "value": "x" * 1_000_000}).encode())
APPEND = post("/v1/stream/s", VALUE.encode(), "text/plain")


async def produce(port: int, request: bytes, connections: int, depth: int) -> None:
    async def caller(client: LoadClient) -> None:
        while True:
            await client.send(request)

    clients = [await LoadClient.connect(port) for _ in range(connections)]
    await asyncio.gather(*(caller(client) for client in clients for _ in range(depth)))


async def unread(port: int, requests: list[bytes], beside: Awaitable[None] | None = None) -> None:
    sockets = [connect(port) for _ in requests]
    for sock, request in zip(sockets, requests, strict=True):
        sock.sendall(request)
    await (beside or asyncio.Event().wait())


async def append(port: int) -> None:
    client = await LoadClient.connect(port)
    while True:
        await client.send(APPEND)
        await asyncio.sleep(0.02)


def events(port: int) -> Awaitable[None]:
    return unread(port, [raw_request("GET", "/v1/stream/s?offset=-1&live=sse")] * UNREAD, append(port))


def claims(port: int) -> Awaitable[None]:
    body = {"topic": "heavy", "owner": "o", "max": 300}
    return unread(port, [raw_request("POST", "/v1/claim", {**body, "group": f"g{number}"}) for number in range(100)])


def consumers(port: int) -> Awaitable[None]:
    path = "/v1/consume?topic=heavy&owner=o&group=g"
    return unread(port, [raw_request("GET", f"{path}{number}") for number in range(UNREAD)])


OTHERS: dict[str, Callable[[int], Awaitable[None]]] = {
    "pipelined": lambda port: produce(port, SMALL, 200, 16),
    "large": lambda port: produce(port, LARGE, 16, 1),
    "events": events,
    "claims": claims,
    "consumers": consumers,
}


def run_others(case: str, port: int) -> None:
    os.nice(10)  # what is measured is the server, not how the machine divides its cores

    async def main() -> None:
        await OTHERS[case](port)

    asyncio.run(main())


async def waits(port: int, seconds: float) -> tuple[list[float], int]:
    """The latencies of the client in milliseconds, and how many calls were refused."""
    client = await LoadClient.connect(port)
    waits_ms: list[float] = []
    refused = 0
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        began_s = time.perf_counter()
        status, _ = await client.send(LIGHT)
        waits_ms.append(1_000 * (time.perf_counter() - began_s))
        refused += status != 200
        await asyncio.sleep(PAUSE_S)
    client.close()
    return waits_ms, refused


def resident_mb(pid: int, field: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) >> 10 for line in status.splitlines() if line.startswith(field))


def measure(case: str, seconds: float, folder: str) -> None:
    with running(str(Path(folder) / case)) as server:
        for topic in ("light", "heavy"):
            server.call("POST", "/v1/topics", {"name": topic})
        if case in ("claims", "consumers"):
            for _ in range(FILL):
                server.call("POST", "/v1/produce", {"topic": "heavy", "value": VALUE})
        if case == "events":
            server.call("PUT", "/v1/stream/s", b"", {"Content-Type": "text/plain"})
            for _ in range(FILL):
                server.call("POST", "/v1/stream/s", VALUE.encode(), {"Content-Type": "text/plain"})
        asyncio.run(waits(server.port, 1.0))  # warm
        quiet_ms, _ = asyncio.run(waits(server.port, seconds))
        others = multiprocessing.get_context("spawn").Process(target=run_others, args=(case, server.port), daemon=True)
        others.start()
        time.sleep(2.0)
        beside_ms, refused = asyncio.run(waits(server.port, seconds))
        highest_mb = resident_mb(server.process.pid, "VmHWM")
        others.kill()
        others.join()
        quiet_p99 = quantile(quiet_ms, 0.99)
        emit(
            "shares", case, quantile(beside_ms, 0.99), "ms p99",
            limit_ms=2 * quiet_p99 + LIMIT_MS, quiet_p99_ms=quiet_p99, p50_ms=quantile(beside_ms, 0.5),
            longest_ms=max(beside_ms), refused=refused, calls=len(beside_ms), highest_mb=highest_mb,
            load=os.getloadavg()[0],
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--only", default=",".join(OTHERS))
    parser.add_argument("--folder", help="where the data goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-shares-", dir=options.folder) as folder:
        for case in options.only.split(","):
            measure(case, options.seconds, folder)


if __name__ == "__main__":
    main()
