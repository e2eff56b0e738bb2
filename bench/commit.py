"""Durable group commit: the engine on real files with real syncs, at several numbers of submitters and batch sizes.

    python -m bench.commit [--seconds 2] [--runs 3] [--folder DIR] [--only TEXT]

Every submitter has one command in flight and sends the next when it is answered. Beside each round the same folder's
bare write + fdatasync is measured alone, because group commit cannot answer faster than the disk does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import uvloop

from bench.core import HUNDRED, ONE, THOUSAND
from bench.report import emit, median, quantile
from driftq.core.model import commands as c
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Claimed, Rejected
from driftq.engine.engine import Engine

BATCHES = {1: ONE, 100: HUNDRED, 1_000: THOUSAND}
LIMITS = BrokerLimits(partition_messages=1 << 40, partition_bytes=1 << 50, in_flight_max=1 << 20)


class Measured(NamedTuple):
    """One run of one case."""

    operations: int
    records: int
    wall_s: float
    cpu_s: float
    latencies_ms: list[float]


def bare_sync_ms(folder: str, size: int = 4_096, count: int = 200) -> list[float]:
    """How long write + fdatasync take by themselves, at the end of a preallocated file."""
    path = f"{folder}/bare"
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(fd, 0, size * count)
        os.fsync(fd)
        data = os.urandom(size)
        times: list[float] = []
        for number in range(count):
            begun = time.perf_counter()
            os.pwrite(fd, data, number * size)
            os.fdatasync(fd)
            times.append(1_000 * (time.perf_counter() - begun))
        return times
    finally:
        os.close(fd)
        os.unlink(path)


async def timed(seconds: float, workers: int, step: Callable[[int], Awaitable[int]]) -> Measured:
    """Let workers repeat a step, which says how many records it moved, until the time is over."""
    latencies: list[float] = []
    records = 0
    until = time.perf_counter() + seconds

    async def work(worker: int) -> None:
        nonlocal records
        while (begun := time.perf_counter()) < until:
            moved = await step(worker)
            records += moved
            latencies.append(1_000 * (time.perf_counter() - begun))

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(work(worker) for worker in range(workers)))
    return Measured(len(latencies), records, time.perf_counter() - wall, time.process_time() - cpu, latencies)


async def produced(folder: str, seconds: float, submitters: int, batch: int) -> Measured:
    engine = await Engine.open(folder, limits=LIMITS)
    await engine.submit(c.CreateTopic("t", 1))
    command = c.Produce("t", BATCHES[batch], batch, 100 * batch, partition=0)

    async def step(_: int) -> int:
        reply = await engine.submit(command)
        assert not isinstance(reply, Rejected), reply
        return batch

    measured = await timed(seconds, submitters, step)
    await engine.close()
    return measured


async def consumed(folder: str, seconds: float, workers: int, claim_max: int) -> Measured:
    """Claims and acks of whole ranges, on a backlog that does not run out."""
    engine = await Engine.open(folder, limits=LIMITS)
    await engine.submit(c.CreateTopic("t", 1))
    thousand = c.Produce("t", THOUSAND, 1_000, 100_000, partition=0)
    backlog = 0

    async def fill() -> None:
        nonlocal backlog
        await asyncio.gather(*(engine.submit(thousand) for _ in range(200)))
        backlog += 200_000

    async def step(worker: int) -> int:
        nonlocal backlog
        backlog -= claim_max
        if backlog < 100_000:
            await fill()
        owner = f"w{worker}"
        reply = await engine.submit(c.Claim("t", "g", owner, claim_max))
        assert isinstance(reply, Claimed), reply
        held = tuple(
            c.Held(delivery.partition, delivery.first, delivery.end, reply.token) for delivery in reply.deliveries
        )
        await engine.submit(c.Ack("t", "g", owner, held))
        return sum(delivery.end - delivery.first for delivery in held)

    for _ in range(4):
        await fill()
    measured = await timed(seconds, workers, step)
    await engine.close()
    return measured


Case = Callable[[str, float], Awaitable[Measured]]


def cases() -> dict[str, Case]:
    def producing(submitters: int, batch: int) -> Case:
        return lambda folder, seconds: produced(folder, seconds, submitters, batch)

    def consuming(workers: int, claim_max: int) -> Case:
        return lambda folder, seconds: consumed(folder, seconds, workers, claim_max)

    all_cases = {
        f"produce, {submitters} submitters, batches of {batch}": producing(submitters, batch)
        for batch in BATCHES
        for submitters in (1, 16, 64, 256)
    }
    all_cases |= {f"claim 100 + ack, {workers} workers": consuming(workers, 100) for workers in (1, 16, 64)}
    return all_cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", default=None, help="where to make the temporary data folders")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    options = parser.parse_args()
    chosen = {name: case for name, case in cases().items() if options.only in name}
    measured: dict[str, list[Measured]] = {name: [] for name in chosen}
    bare: list[float] = []
    for _ in range(options.runs):
        for name, case in chosen.items():
            with tempfile.TemporaryDirectory(prefix="driftq-bench-", dir=options.folder) as folder:
                bare += bare_sync_ms(folder, count=50)
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    measured[name].append(runner.run(case(f"{folder}/data", options.seconds)))
    emit(
        "commit", "write 4 KiB + fdatasync, alone", quantile(bare, 0.5), "ms",
        p99_ms=quantile(bare, 0.99), per_s=1_000 / max(1e-9, sum(bare) / len(bare)) if bare else 0.0,
    )  # fmt: skip
    for name, runs in measured.items():
        emit(
            "commit", name, median([run.operations / run.wall_s for run in runs]), "commands/s",
            records_per_s=median([run.records / run.wall_s for run in runs]),
            cpu_us_per_op=median([1e6 * run.cpu_s / max(1, run.operations) for run in runs]),
            p50_ms=median([quantile(run.latencies_ms, 0.5) for run in runs]),
            p99_ms=median([quantile(run.latencies_ms, 0.99) for run in runs]),
            bare_sync_p50_ms=quantile(bare, 0.5), runs=len(runs),
        )  # fmt: skip


if __name__ == "__main__":
    main()
