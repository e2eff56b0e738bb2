"""What open consoles cost the broker: CPU time of its process, with and without them, under the same load.

    python -m bench.consoles --pages 100 --seconds 5 --rounds 3
    python -m bench.consoles --paint 20       milliseconds until Chromium paints something, in a new profile each time

A page is what the console does on its overview and on a topic: one feed of events, and the calls at their intervals.
Rounds without and with pages alternate, so the load of the machine is the same for both; CPU seconds do not depend on
it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import NamedTuple

from bench.queue import cpu_s
from bench.report import emit, median
from tests.support.browser import binary
from tests.support.console import browser
from tests.support.server import Server, running

PRODUCED_PER_S = 200
BATCH = 10
# The calls of an open page and their intervals in seconds: the overview, its plots, the marks, and a topic.
CALLS = (
    ("/v1/overview", 4.0),
    ("/v1/series?window_ms=3600000&points=240", 10.0),
    ("/v1/topics/orders", 1.0),
    ("/v1/topics?details=true&search=orders&limit=50", 1.0),
)
EVENTS = "/v1/events"


class Round(NamedTuple):
    """The share of a core that the broker used in a round, and the calls that it answered."""

    cpu_share: float
    calls_per_s: float


class Pages:
    """Open pages, each with connections of its own."""

    def __init__(self, port: int, count: int) -> None:
        self._port = port
        self._count = count
        self.calls = 0

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        tasks = [asyncio.ensure_future(self._follow()) for _ in range(self._count)]
        for page in range(self._count):
            tasks += [asyncio.ensure_future(self._repeat(path, every_s, page)) for path, every_s in CALLS]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(f"GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        while await reader.read(1 << 16):
            pass

    async def _repeat(self, path: str, every_s: float, page: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.sleep(every_s * page / max(1, self._count))  # pages are opened at different times
        while True:
            await exchange(reader, writer, "GET", path)
            self.calls += 1
            await asyncio.sleep(every_s)


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, path: str, body: bytes = b""
) -> None:
    """One request and its whole reply."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    reply = await reader.readuntil(b"\r\n\r\n")
    assert b" 20" in reply[:14], reply
    for line in reply.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            await reader.readexactly(int(line.partition(b":")[2]))


async def _load(port: int) -> None:
    """A steady load: batches of orders."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    messages = ",".join(['{"value":"an order of a lamp"}'] * BATCH)
    body = f'{{"topic":"orders","messages":[{messages}]}}'.encode()
    while True:
        await exchange(reader, writer, "POST", "/v1/produce/batch", body)
        await asyncio.sleep(BATCH / PRODUCED_PER_S)


async def measure(server: Server, pages: int, seconds: float) -> Round:
    shown = Pages(server.port, pages)
    async with shown.open():
        await asyncio.sleep(1.0)  # the feeds are open
        before, calls, began_s = cpu_s(server), shown.calls, time.monotonic()
        await asyncio.sleep(seconds)
        took_s = time.monotonic() - began_s
        return Round((cpu_s(server) - before) / took_s, (shown.calls - calls) / took_s)


async def run(server: Server, pages: int, seconds: float, rounds: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await exchange(reader, writer, "POST", "/v1/topics", b'{"name":"orders","partitions":4}')
    load = asyncio.ensure_future(_load(server.port))
    measured: dict[int, list[Round]] = {0: [], pages: []}
    for _ in range(rounds):
        for count, rows in measured.items():
            rows.append(await measure(server, count, seconds))
    load.cancel()
    await asyncio.gather(load, return_exceptions=True)
    shares = {count: median([row.cpu_share for row in rows]) for count, rows in measured.items()}
    for count, rows in measured.items():
        calls = median([row.calls_per_s for row in rows])
        emit("consoles", f"{count} pages", 100 * shares[count], "% of a core", calls_per_s=calls)
    emit("consoles", "for each page", 1_000 * (shares[pages] - shares[0]) / pages, "ms of CPU a second")


def paint(server: Server, visits: int) -> None:
    """Visits without a cache, each in a context of its own. What is painted first is the words that it loads; the view
    itself is there when its heading is."""
    painted: list[float] = []
    shown: list[float] = []
    with browser(binary("release")) as chromium:
        for _ in range(visits):
            context = chromium.new_context()
            page = context.new_page()
            page.goto(f"{server.url}/console/")
            page.locator("h1").wait_for()
            shown.append(page.evaluate("performance.now()"))
            entry = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            painted.append(entry)
            context.close()
    emit("consoles", "first paint", median(painted), "ms", longest=max(painted), visits=visits)
    emit("consoles", "heading of the overview", median(shown), "ms", longest=max(shown), visits=visits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--paint", type=int, default=0, help="visits with Chromium, instead of open pages")
    arguments = parser.parse_args()
    with running(None) as server:
        if arguments.paint:
            paint(server, arguments.paint)
            return
        asyncio.run(run(server, arguments.pages, arguments.seconds, arguments.rounds))


if __name__ == "__main__":
    main()
