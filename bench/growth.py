"""How the server's work grows with the number of things it holds: streams, topics, groups, keys, leases,
delayed messages, dead letters.

    python -m bench.growth [--sizes 1000,4000,16000] [--only TEXT] [--folder DIR] [--save NAME]

Each case runs at several sizes n, each time on a fresh server with real files. Its cost is the CPU time of the server
for all n items together. The value is the exponent of the power of n that fits the costs best: 1 is linear, 0 does not
depend on n, 2 is quadratic. CPU time of a start with an empty folder is subtracted from that of a restart.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import driftq
from bench.named_run import place, save_part
from bench.report import emit
from driftq.wire.produce import ProduceItem
from tests.support.server import Server
from tests.support.wait import until

SETTINGS = (
    "limits.partition_messages=100000000",
    "limits.topics_max=10000000",
    "limits.groups_per_topic_max=10000000",
    "limits.streams_max=100000000",
    "queue.in_flight_max=100000000",
    "queue.retry_backoff_ms=3600000",
    "queue.retry_max_backoff_ms=3600000",
)
VALUE = b"v" * 100
AT_ONCE = 32
CLAIM_MAX = 1_000
CPU_MIN_S = 0.001  # less cannot be distinguished from nothing
RESTART_MIN_S = 0.05  # nor can this, where the time of an empty start was subtracted
EXPIRY_S = 300.0


class Target:
    """A server and a client of it."""

    def __init__(self, server: Server, broker: driftq.AsyncDriftQ) -> None:
        self.server = server
        self.broker = broker

    async def each(self, count: int, call: Callable[[int], Awaitable[object]]) -> None:
        """`call` for each number, several at a time."""
        numbers = iter(range(count))

        async def caller() -> None:
            for number in numbers:
                await call(number)

        await asyncio.gather(*(caller() for _ in range(AT_ONCE)))

    async def fill(self, count: int) -> None:
        await self.broker.topics.create("t")
        await self.broker.claim("t", "g")
        async with self.broker.producer("t") as producer:
            await producer.send_many([VALUE] * count)

    async def claimed(self, count: int, lease_ms: int = 3_600_000) -> AsyncIterator[list[driftq.AsyncMessage]]:
        """Claims of up to CLAIM_MAX messages, `count` in all."""
        while count:
            messages = await self.broker.claim("t", "g", max=min(count, CLAIM_MAX), lease_ms=lease_ms)
            assert messages, "the backlog is smaller than it should be"
            count -= len(messages)
            yield messages

    async def all_claimed(self, count: int, lease_ms: int = 3_600_000) -> list[driftq.AsyncMessage]:
        return [message async for messages in self.claimed(count, lease_ms) for message in messages]


Step = Callable[[Target, int], Awaitable[Any]]


class Case(NamedTuple):
    """`prepare` is not measured; `run` is, or a restart after SIGKILL if it is None."""

    prepare: Step | None
    run: Step | None


async def create_streams(target: Target, count: int) -> None:
    async def create(number: int) -> None:
        stream = target.broker.stream(f"s/{number}", "text/plain")
        await stream.create()
        await stream.append(VALUE)

    await target.each(count, create)


async def create_topics(target: Target, count: int) -> None:
    await target.each(count, lambda number: target.broker.topics.create(f"t{number}"))


async def create_partitions(target: Target, count: int) -> None:
    for number in range(0, count, 500):
        await target.broker.topics.create(f"t{number}", partitions=min(500, count - number))


async def create_groups(target: Target, count: int) -> None:
    await target.fill(1)
    await target.each(count, lambda number: target.broker.claim("t", f"g{number}"))


async def produce_keyed(target: Target, count: int) -> None:
    await target.broker.topics.create("t")

    async def send(number: int) -> None:
        await target.broker.send("t", VALUE, idempotency_key=f"key-{number}")

    await target.each(count, send)


async def fill(target: Target, count: int) -> None:
    await target.fill(count)


async def delay(target: Target, count: int) -> None:
    """Messages for later, not in order of time."""
    await target.broker.topics.create("t")
    for first in range(0, count, 1_000):
        messages = [
            ProduceItem(value="v", delay_ms=3_600_000 + number * 7_919 % 1_000_003)
            for number in range(first, min(count, first + 1_000))
        ]
        await target.broker.send_many("t", messages)


async def start_group(target: Target, count: int) -> None:
    assert not await target.broker.claim("t", "late")


async def claim_all(target: Target, count: int) -> None:
    await target.all_claimed(count)


async def nack_in_hundreds(target: Target, count: int) -> None:
    messages = await target.all_claimed(count)
    for first in range(0, count, 100):
        await target.broker.nack(messages[first : first + 100], "bench")


async def ack_every_second(target: Target, count: int) -> None:
    messages = (await target.all_claimed(count))[::2]
    for first in range(0, len(messages), 100):
        await target.broker.ack(messages[first : first + 100])


async def expire(target: Target, count: int) -> None:
    await target.all_claimed(count, lease_ms=1_000)

    async def all_expired() -> bool:
        text = (await asyncio.to_thread(target.server.call, "GET", "/v1/metrics")).body.decode()
        return sum(map(float, re.findall(r"^driftq_lease_losses_total\{.*\} (\S+)$", text, re.MULTILINE))) >= count

    await until(all_expired, EXPIRY_S)


async def reject_all(target: Target, count: int) -> None:
    await target.fill(count)
    async for messages in target.claimed(count):
        await target.broker.reject(messages, "bench")


async def redrive_all(target: Target, count: int) -> None:
    reply = await target.broker.dead_letters.redrive("t", limit=count)
    assert reply["redriven"] == count, reply


async def list_errors(target: Target, count: int) -> None:
    await target.broker.dead_letters.errors("t")


CASES = {
    "streams: create, append once": Case(None, create_streams),
    "streams: restart after SIGKILL": Case(create_streams, None),
    "topics: create": Case(None, create_topics),
    "topics: restart after SIGKILL": Case(create_topics, None),
    "partitions: create": Case(None, create_partitions),
    "groups: first claim of each": Case(None, create_groups),
    "idempotency keys: produce": Case(None, produce_keyed),
    "idempotency keys: restart after SIGKILL": Case(produce_keyed, None),
    "backlog: produce": Case(None, fill),
    "backlog: restart after SIGKILL": Case(fill, None),
    "pending: claim": Case(fill, claim_all),
    "pending: claim, nack in hundreds": Case(fill, nack_in_hundreds),
    "pending: claim, expire together": Case(fill, expire),
    "delayed messages: start a group": Case(delay, start_group),
    "gaps: claim, ack every second message": Case(fill, ack_every_second),
    "dead letters: claim and reject": Case(None, reject_all),
    "dead letters: group by error": Case(reject_all, list_errors),
    "dead letters: redrive": Case(reject_all, redrive_all),
}


def cpu_s(server: Server) -> float:
    """CPU time of all threads that live, more exact than ticks."""
    tasks = Path(f"/proc/{server.process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text(encoding="ascii").split()[0]) for task in tasks) / 1e9


def exponent(sizes: Sequence[int], costs_s: Sequence[float]) -> float:
    """The slope of the line through the logarithms, by least squares."""
    xs, ys = [math.log(size) for size in sizes], [math.log(max(cost_s, CPU_MIN_S)) for cost_s in costs_s]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys)) / spread


async def call(server: Server, step: Step, size: int) -> None:
    async with driftq.connect_async(server.url) as broker:
        await step(Target(server, broker), size)


def cost_s(case: Case, size: int, folder: Path) -> float:
    """The server's CPU time for one case at one size."""
    server = Server(str(folder / "data"), *SETTINGS)
    try:
        if case.prepare is not None:
            asyncio.run(call(server, case.prepare, size))
        if case.run is None:
            server.kill()
            server = Server(str(folder / "data"), *SETTINGS)
            return cpu_s(server)
        before_s = cpu_s(server)
        asyncio.run(call(server, case.run, size))
        return cpu_s(server) - before_s
    finally:
        server.kill()


def start_cpu_s(folder: Path) -> float:
    """The CPU time of a start without any data."""
    server = Server(str(folder / "data"), *SETTINGS)
    try:
        return cpu_s(server)
    finally:
        server.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,4000,16000")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--folder", help="where the data goes")
    parser.add_argument("--save", metavar="NAME", help="add the results to bench/results/NAME.json")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    header, rows = place(), []

    def in_folder(measured: Callable[[Path], float]) -> float:
        folder = Path(tempfile.mkdtemp(prefix="bench-growth-", dir=options.folder))
        try:
            return measured(folder)
        finally:
            shutil.rmtree(folder)

    empty_s = in_folder(start_cpu_s)
    for name, case in CASES.items():
        if options.only in name:
            costs_s = [in_folder(lambda folder, c=case, n=size: cost_s(c, n, folder)) for size in sizes]
            if case.run is None:
                costs_s = [max(RESTART_MIN_S, cost - empty_s) for cost in costs_s]
            rows.append({"case": name, "sizes": sizes, "cpu_s": costs_s, "exponent": exponent(sizes, costs_s)})
            emit("growth", name, rows[-1]["exponent"], "exponent", cpu_us_per_op=1e6 * costs_s[-1] / sizes[-1],
                 sizes=sizes, cpu_s=costs_s)  # fmt: skip
    if options.save:
        save_part(options.save, "growth", {**header, "results": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
