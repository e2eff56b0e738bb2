"""Small things in large numbers: what one more stream, topic, partition or group costs, and whether that grows.

    python -m bench.shape [--sizes 10000,100000] [--only streams] [--folder DIR]

For each kind and size a server is filled over HTTP with a few connections and killed. Then it starts again, is stopped
cleanly and starts once more. Costs are for one item, so a column that is flat from size to size is linear; `exponent`
is log(cost ratio) / log(size ratio) of the totals: 1 is linear, 2 quadratic.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench.load_client import LoadClient, post
from bench.report import emit, folder_bytes, resident_bytes
from tests.support import server as test_server
from tests.support.server import Server

CONNECTIONS = 4
IN_FLIGHT = 64  # requests on each connection
SETTINGS = ("limits.streams_max=2000000", "limits.topics_max=2000000")
KINDS = ("streams", "topics", "partitions", "groups")
BODY = b"x" * 100
GROUPS_PER_TOPIC = 1_000  # the most that a topic may have by default


class Shape(NamedTuple):
    """What one size of one kind cost."""

    count: int
    create_per_s: float
    create_cpu_us: float  # of the server, for an item
    memory_bytes: float  # for an item, after the restart
    disk_bytes: float  # of logs and snapshots, for an item
    restart_s: float  # after SIGKILL, until it serves; an empty server takes some tenths of a second
    stop_s: float  # SIGTERM
    start_s: float  # after that


def put(path: str, content_type: str = "text/plain") -> bytes:
    return (
        f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\nContent-Length: 0\r\n\r\n".encode()
    )


def requests(kind: str, count: int) -> Iterator[list[bytes]]:
    """The requests of each item, to be sent in order."""
    if kind in ("partitions", "groups"):
        yield [post(f"/v1/topics?name=g{number}", b"") for number in range(1 + count // GROUPS_PER_TOPIC)]
    for number in range(count):
        name = f"{number:07d}"
        if kind == "streams":
            path = f"/v1/stream/s/{name}"
            yield [put(path), post(path, BODY, "text/plain")]
        elif kind == "topics":
            message = json.dumps({"topic": f"t{name}", "value": BODY.decode()}).encode()
            yield [post(f"/v1/topics?name=t{name}", b""), post("/v1/produce", message)]
        elif kind == "partitions" and number % 1_000 == 0:
            yield [post(f"/v1/topics?name=t{name}&partitions=1000", b"")]
        elif kind == "groups":
            claim = {"topic": f"g{number // GROUPS_PER_TOPIC}", "group": name, "owner": "bench", "wait_ms": 0}
            yield [post("/v1/claim", json.dumps(claim).encode())]


async def fill(port: int, kind: str, count: int) -> None:
    clients = [await LoadClient.connect(port) for _ in range(CONNECTIONS)]
    items = requests(kind, count)
    first = next(items)
    await _send(clients[0], first)

    async def work(client: LoadClient) -> None:
        for item in items:
            await _send(client, item)

    await asyncio.gather(*(work(client) for client in clients for _ in range(IN_FLIGHT)))
    for client in clients:
        client.close()


async def _send(client: LoadClient, item: list[bytes]) -> None:
    for request in item:
        status, body = await client.send(request)
        if status >= 300:
            raise SystemExit(f"{status}: {body[:200]!r} to {request[:120]!r}")


def cpu_s(server: Server) -> float:
    fields = Path(f"/proc/{server.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def started(folder: str) -> tuple[Server, float]:
    begun_s = time.perf_counter()
    server = Server(folder, *SETTINGS)
    return server, time.perf_counter() - begun_s


def measure(kind: str, count: int, parent: str | None) -> Shape:
    test_server.START_S = 600.0
    with tempfile.TemporaryDirectory(prefix="driftq-bench-", dir=parent) as root:
        folder = f"{root}/data"
        server, _ = started(folder)
        bare_bytes, bare_cpu_s = resident_bytes(server.process.pid), cpu_s(server)
        begun_s = time.perf_counter()
        uvloop.run(fill(server.port, kind, count))
        fill_s, fill_cpu_s = time.perf_counter() - begun_s, cpu_s(server) - bare_cpu_s
        server.kill()
        server, restart_s = started(folder)
        memory_bytes = resident_bytes(server.process.pid) - bare_bytes
        begun_s = time.perf_counter()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait()
        stop_s = time.perf_counter() - begun_s
        disk_bytes = folder_bytes(f"{folder}/logs") + folder_bytes(f"{folder}/snapshots")
        server, start_s = started(folder)
        server.kill()
    return Shape(
        count, count / fill_s, 1e6 * fill_cpu_s / count, memory_bytes / count, disk_bytes / count,
        restart_s, stop_s, start_s,
    )  # fmt: skip


def exponent(small: Shape, large: Shape, name: str) -> float:
    """How the total of a figure grows with the number of items."""
    per_item = name in ("create_cpu_us", "memory_bytes", "disk_bytes")
    totals = [getattr(shape, name) * (shape.count if per_item else 1) for shape in (small, large)]
    if min(totals) <= 0:
        return 0.0
    return math.log(totals[1] / totals[0]) / math.log(large.count / small.count)


def table(shapes: dict[str, list[Shape]]) -> str:
    """The figures as a table in Markdown."""
    lines = [
        "| what | number | created/s | CPU each | memory each | disk each | restart after SIGKILL | stop | start |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for kind, rows in shapes.items():
        lines += [
            f"| {kind} | {row.count:,} | {row.create_per_s:,.0f} | {row.create_cpu_us:,.0f} µs "
            f"| {row.memory_bytes:,.0f} B | {row.disk_bytes:,.0f} B "
            f"| {row.restart_s:.2f} s | {row.stop_s:.2f} s | {row.start_s:.2f} s |"
            for row in rows
        ]
        if len(rows) > 1:
            names = ("create_cpu_us", "memory_bytes", "disk_bytes", "restart_s", "stop_s", "start_s")
            exponents = " | ".join(f"{exponent(rows[0], rows[-1], name):.2f}" for name in names)
            lines.append(f"| {kind} | exponent | | {exponents} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="10000,100000")
    parser.add_argument("--only", default="", help="kinds whose name contains this")
    parser.add_argument("--folder", default=None, help="where to make the temporary data folders")
    options = parser.parse_args()
    shapes: dict[str, list[Shape]] = {}
    for kind in KINDS:
        for size in map(int, options.sizes.split(",")):
            if options.only in kind:
                shape = measure(kind, size, options.folder)
                shapes.setdefault(kind, []).append(shape)
                figures = {name: value for name, value in shape._asdict().items() if name != "restart_s"}
                emit("shape", f"{size} {kind}", shape.restart_s, "s", cpu_us_per_op=shape.create_cpu_us, **figures)
    print(table(shapes), file=sys.stderr)


if __name__ == "__main__":
    main()
