"""Checkpoints under load: does the fold keep up, does memory stay flat, and how long does the loop ever stand still.

    python -m bench.checkpoint [--seconds 20] [--segment-mb 16] [--folder DIR]

Producers with idempotency keys and workers that claim and ack keep an engine busy while its journal rolls again and
again. A ticking task looks at the clock every millisecond: the longest gap between two looks is the longest stall.
"""

from __future__ import annotations

import argparse
import asyncio
import glob
import tempfile
import time
from collections.abc import Awaitable, Callable

import uvloop

from bench.core import HUNDRED, ONE
from bench.report import emit, folder_bytes, quantile, resident_bytes
from driftq.core.model import commands as c
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Claimed, Rejected
from driftq.engine.engine import Engine
from driftq.engine.folder_storage import StorageOptions

TICK_S = 0.001
LIMITS = BrokerLimits(partition_messages=1 << 40, partition_bytes=1 << 50, key_ttl_ms=2_000)

Load = Callable[[Engine, int], Awaitable[None]]


class Observed:
    """What was seen beside the load."""

    def __init__(self) -> None:
        self.gaps_ms: list[float] = []  # how much later than asked for a look came
        self.busy_ms: list[float] = []  # the loop's own CPU time between two looks: what no noisy neighbour explains
        self.resident_mb: list[float] = []
        self.journal_mb: list[float] = []
        self.snapshots: set[str] = set()


async def tick(observed: Observed) -> None:
    seen, used = time.perf_counter(), time.thread_time()
    while True:
        await asyncio.sleep(TICK_S)
        now, used_now = time.perf_counter(), time.thread_time()
        observed.gaps_ms.append(1_000 * (now - seen - TICK_S))
        observed.busy_ms.append(1_000 * (used_now - used))
        seen, used = now, used_now


async def look(observed: Observed, folder: str) -> None:
    while True:
        await asyncio.sleep(0.5)
        observed.resident_mb.append(resident_bytes() / 1e6)
        observed.journal_mb.append(folder_bytes(f"{folder}/journal") / 1e6)
        observed.snapshots.update(glob.glob(f"{folder}/snapshots/*.snapshot"))


async def produce_singles(engine: Engine, worker: int) -> None:
    number = 0
    while True:
        once = c.ProduceKey("", "t", f"{worker}-{number}")
        reply = await engine.submit(c.Produce("t", ONE, 1, 100, partition=0, once=once))
        assert not isinstance(reply, Rejected), reply
        number += 1


async def produce_batches(engine: Engine, worker: int) -> None:
    while True:
        reply = await engine.submit(c.Produce("t", HUNDRED, 100, 10_000, partition=0))
        assert not isinstance(reply, Rejected), reply


async def consume(engine: Engine, worker: int) -> None:
    while True:
        owner = f"w{worker}"
        reply = await engine.claim(c.Claim("t", "g", owner, 100), wait_ms=1_000)
        assert isinstance(reply, Claimed), reply
        held = tuple(
            c.Held(delivery.partition, delivery.first, delivery.end, reply.token) for delivery in reply.deliveries
        )
        if held:
            await engine.submit(c.Ack("t", "g", owner, held))


async def append_streams(engine: Engine, worker: int) -> None:
    """One short stream after the other: many logs, each touched once or twice."""
    kind = "application/octet-stream"
    number = 0
    while True:
        path = f"s/{worker}/{number}"
        await engine.submit(c.CreateStream(path))
        await engine.submit(c.AppendStream(path, kind, ONE, 1, 100, close=True))
        if number >= 200:
            await engine.submit(c.DeleteStream(f"s/{worker}/{number - 200}"))
        number += 1


LOADS: dict[str, list[tuple[Load, int]]] = {
    "singles with keys": [(produce_singles, 64), (consume, 8)],
    "batches of 100": [(produce_batches, 32), (consume, 8)],
    "short streams": [(append_streams, 64)],
}


async def run(folder: str, name: str, seconds: float, segment_bytes: int) -> None:
    engine = await Engine.open(
        folder, limits=LIMITS, options=StorageOptions(segment_bytes, segment_bytes, cache_bytes=16 << 20)
    )
    await engine.submit(c.CreateTopic("t", 1))
    await engine.submit(c.CreateGroup("t", "g"))
    observed = Observed()
    cpu = time.process_time()
    first_lsn = engine.sequencer.durable_lsn
    tasks = [asyncio.create_task(load(engine, n)) for load, count in LOADS[name] for n in range(count)]
    tasks += [asyncio.create_task(tick(observed)), asyncio.create_task(look(observed, folder))]
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    cpu_s = time.process_time() - cpu
    frames = engine.sequencer.durable_lsn - first_lsn
    begun = time.perf_counter()
    await engine.close()
    half = len(observed.resident_mb) // 2
    emit(
        "checkpoint", f"{name}, longest stall of the loop", max(observed.gaps_ms), "ms",
        p99_ms=quantile(observed.gaps_ms, 0.99), p999_ms=quantile(observed.gaps_ms, 0.999),
        busy_ms_max=max(observed.busy_ms), busy_p999_ms=quantile(observed.busy_ms, 0.999),
        cpu_us_per_op=1e6 * cpu_s / max(1, frames), commands_per_s=frames / seconds,
        snapshots=len(observed.snapshots), journal_mb_max=max(observed.journal_mb),
        resident_mb_first_half=max(observed.resident_mb[:half], default=0.0),
        resident_mb_second_half=max(observed.resident_mb[half:], default=0.0),
        close_s=time.perf_counter() - begun,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--segment-mb", type=float, default=16)
    parser.add_argument("--folder", default=None, help="where to make the temporary data folders")
    parser.add_argument("--only", default="", help="loads whose name contains this")
    options = parser.parse_args()
    for name in LOADS:
        if options.only in name:
            with (
                tempfile.TemporaryDirectory(prefix="driftq-bench-", dir=options.folder) as folder,
                asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            ):
                runner.run(run(f"{folder}/data", name, options.seconds, int(options.segment_mb * (1 << 20))))


if __name__ == "__main__":
    main()
