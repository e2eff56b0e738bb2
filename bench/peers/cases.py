"""The cases, and the process that runs one of them against one server.

    python -m bench.peers.cases PEER CASE ADDRESS SECONDS

The process prints `ready` when it is connected, and at the end one line of JSON. Between the two lines the parent
measures the server's CPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from bench.peers.catalog import PEERS
from bench.peers.peer import LIVE, QUEUE, PeerClient
from bench.report import median, quantile

VALUE = b"v" * 100
BATCH = [VALUE] * 1_000
CLAIM_MAX = 100
CALLERS = 64
LATENCY_CALLERS = 8
LATENCY_PER_S = 500
ARRIVAL_S = 30.0


class CaseInfo(NamedTuple):
    """How a case is named and read."""

    title: str
    unit: str
    is_better: str  # more, or less


CASES = {
    "batches": CaseInfo("batches, durable", "messages/s", "more"),
    "blocking": CaseInfo("one blocking caller", "messages/s", "more"),
    "callers": CaseInfo(f"{CALLERS} async callers", "messages/s", "more"),
    "claims": CaseInfo("claim and ack in hundreds", "messages/s", "more"),
    "latency": CaseInfo(f"produce to delivered at {LATENCY_PER_S}/s", "ms", "less"),
}


class Clock:
    """Wall and CPU time from `ready` on."""

    def __init__(self) -> None:
        print("ready", flush=True)
        self.began_s, self._cpu_s = time.perf_counter(), time.process_time()

    def result(self, operations: int, value: float | None = None, **fields: float) -> dict[str, float]:
        wall_s, cpu_s = time.perf_counter() - self.began_s, time.process_time() - self._cpu_s
        rate = operations / wall_s
        return {
            "value": rate if value is None else value,
            "operations": operations,
            "wall_s": wall_s,
            "cpu_s": cpu_s,
            **fields,
        }


def batches(client: PeerClient, seconds: float) -> dict[str, float]:
    client.write(BATCH)  # connects
    client.flush()
    clock = Clock()
    count = 0
    while time.perf_counter() - clock.began_s < seconds:
        client.write(BATCH)
        count += len(BATCH)
    client.flush()
    return clock.result(count)


def blocking(client: PeerClient, seconds: float) -> dict[str, float]:
    client.send(VALUE)
    clock = Clock()
    count = 0
    while time.perf_counter() - clock.began_s < seconds:
        client.send(VALUE)
        count += 1
    return clock.result(count)


def claims(client: PeerClient, seconds: float) -> dict[str, float]:
    """Takes what the cases before it produced, for as long as it lasts."""
    client.claim_and_ack(CLAIM_MAX)
    clock = Clock()
    count = counted = 0
    ended_s = clock.began_s
    while time.perf_counter() - clock.began_s < seconds:
        taken = client.claim_and_ack(CLAIM_MAX)
        if not taken:
            break
        count += taken
        if taken == CLAIM_MAX:  # the last one, of fewer messages, may have waited for more
            counted, ended_s = count, time.perf_counter()
    assert counted, "the backlog is smaller than two claims"
    return clock.result(counted, counted / (ended_s - clock.began_s))


def callers(client: PeerClient, seconds: float) -> dict[str, float]:
    async def run() -> dict[str, float]:
        async with client.callers(CALLERS, QUEUE) as senders:
            await asyncio.gather(*(send(VALUE) for send in senders))
            clock = Clock()
            counts = await asyncio.gather(*(caller(send, clock.began_s + seconds) for send in senders))
            return clock.result(sum(counts))

    async def caller(send, until_s: float) -> int:
        count = 0
        while time.perf_counter() < until_s:
            await send(VALUE)
            count += 1
        return count

    return asyncio.run(run())


def latency(client: PeerClient, seconds: float) -> dict[str, float]:
    """Messages start on schedule, whether or not earlier ones have arrived: a pause delays all of them."""
    total = max(20, int(LATENCY_PER_S * seconds))
    waits_s: list[float] = []

    async def run() -> dict[str, float]:
        async with (
            client.deliveries() as deliveries,
            contextlib.aclosing(deliveries),
            client.callers(LATENCY_CALLERS, LIVE) as senders,
        ):
            locks = [asyncio.Lock() for _ in senders]

            async def send(number: int, due_s: float) -> None:
                async with locks[number % len(senders)]:
                    await senders[number % len(senders)](b"%012d %.9f" % (number, due_s))

            async def receive(count: int) -> None:
                async for value in deliveries:
                    waits_s.append(time.perf_counter() - float(value.split()[1]))
                    if len(waits_s) == count:
                        return

            async def run_schedule(count: int) -> None:
                receiving = asyncio.create_task(receive(count))
                began_s = time.perf_counter()
                sending = []
                for number in range(count):
                    due_s = began_s + number / LATENCY_PER_S
                    await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
                    sending.append(asyncio.create_task(send(number, due_s)))
                await asyncio.gather(*sending)
                await asyncio.wait_for(receiving, ARRIVAL_S)

            await run_schedule(20)  # opens the connections
            waits_s.clear()
            clock = Clock()
            await run_schedule(total)
            waits_ms = [1e3 * wait_s for wait_s in waits_s]
            return clock.result(total, median(waits_ms), p99_ms=quantile(waits_ms, 0.99))

    return asyncio.run(run())


RUNS: dict[str, Callable[[PeerClient, float], dict[str, float]]] = {
    "batches": batches,
    "blocking": blocking,
    "callers": callers,
    "claims": claims,
    "latency": latency,
}


def main() -> None:
    peer, case, address, seconds = sys.argv[1:]
    client = PEERS[peer][1](address)
    result = RUNS[case](client, float(seconds))
    print(json.dumps(result), flush=True)
    client.close()


if __name__ == "__main__":
    main()
