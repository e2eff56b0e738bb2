"""What DriftQ promises of its workers, measured on a real broker and a real `driftq worker`.

- how soon the caller that waits for a result has it, after the worker's ack has returned;
- how soon a job starts after `enqueue` was called;
- how much faster two processes are than one, for calls that keep a core busy; and how much faster two processes are
  that only compute, since two cores of a machine may be one that takes turns;
- what a middleware with a hook before and after each call costs, compared with none.

The times of two processes are compared by the monotonic clock, which on Linux is the same for all of them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import driftq
from bench.peers.installation import ROOT
from bench.report import emit, median, quantile
from bench.workers.comparison import measure
from bench.workers.frameworks import DriftQTasks, Variant

LATENCIES = 300
BUSY_JOBS_PER_S = 400
ENV = {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
NO_HOOKS = Variant("no middleware", "awaited", ())
HOOKS = Variant("before and after", "hooked", ())


def run(rounds: int, seconds: float, folder: str | None) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with server(folder) as (framework, place):
        figures["result_after_ack_ms"] = latency("result after the ack", asyncio.run(result_after_ack(framework.url)))
        figures["enqueue_to_start_ms"] = latency("enqueue to start", enqueue_to_start(framework, place))
        one, two = processes(framework, place, rounds, seconds)
        figures["two_processes"] = two / one
        figures["two_processes_bare"] = bare = bare_ratio(rounds, seconds)
        emit("workers", "busy calls, one process", one, "jobs/s")
        emit("workers", "busy calls, two processes", two, "jobs/s", ratio=two / one, bare_ratio=bare)
        costs = {variant: [] for variant in (NO_HOOKS, HOOKS)}  # type: dict[Variant, list[Figures]]
        for _ in range(rounds):
            for variant, runs in costs.items():
                runs.append(measure(framework, variant, place, seconds, ENV))
        for variant, runs in costs.items():
            cpu_us = figures[variant.title] = median([run.worker_cpu_us for run in runs])
            emit("workers", f"a job with {variant.title}", cpu_us, "us of the worker's CPU")
    return figures


@contextmanager
def server(folder: str | None) -> Iterator[tuple[DriftQTasks, Path]]:
    framework, place = DriftQTasks(), Path(tempfile.mkdtemp(prefix="bench-workers-", dir=folder))
    try:
        framework.start(place)
        yield framework, place
    finally:
        framework.stop()
        shutil.rmtree(place)


def latency(case: str, times_ms: list[float]) -> dict[str, float]:
    figures = {"p50": median(times_ms), "p99": quantile(times_ms, 0.99)}
    emit("workers", case, figures["p50"], "ms", p99_ms=figures["p99"])
    return figures


async def result_after_ack(url: str) -> list[float]:
    """The caller is there first; the worker acks with a result."""
    times_ms = []
    async with driftq.connect_async(url) as caller, driftq.connect_async(url) as worker:
        await worker.topics.create("results")
        for number in range(LATENCIES):
            await caller.send("results", b"x", id=str(number))
            (message,) = await worker.claim("results", "workers")
            handle = caller.jobs.handle("results", str(number))
            seen_s = asyncio.create_task(_seen(handle))
            await asyncio.sleep(0.002)  # the caller waits at the broker now
            await message.ack(result={"number": number})
            acked_s = time.perf_counter()
            times_ms.append(1_000 * max(0.0, await seen_s - acked_s))
    return times_ms


async def _seen(handle: Any) -> float:
    await handle.result(timeout=10)
    return time.perf_counter()


def enqueue_to_start(framework: DriftQTasks, place: Path) -> list[float]:
    times_ms = []
    worker = framework.worker(Variant("", "started", ()), place, ENV)
    try:
        with driftq.connect(framework.url) as broker:
            for number in range(LATENCIES):
                called_s = time.monotonic()
                handle = framework.program.started.enqueue(broker)
                started_s = handle.result(timeout=30)
                if number:  # the first one waits until the worker is there
                    times_ms.append(1_000 * (started_s - called_s))
    finally:
        worker.stop()
    return times_ms


def processes(framework: DriftQTasks, place: Path, rounds: int, seconds: float) -> tuple[float, float]:
    """Jobs per second of one process and of two, in turns."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    framework.jobs_per_s = BUSY_JOBS_PER_S
    for _ in range(rounds):
        for count, runs in rates.items():
            variant = Variant(f"{count} processes", "busy", ("--processes", str(count)))
            runs.append(measure(framework, variant, place, seconds, ENV).jobs_per_s)
    del framework.jobs_per_s
    return median(rates[1]), median(rates[2])


BARE = """
import sys, time
from bench.workers.programs.driftq_tasks import busy
count, end_s = 0, time.monotonic() + float(sys.argv[1])
while time.monotonic() < end_s:
    busy(count)
    count += 1
print(count)
"""


def bare_ratio(rounds: int, seconds: float) -> float:
    """How many times as many of the same calls two processes make as one, without workers and a server."""
    counts: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for number, runs in counts.items():
            command = [sys.executable, "-c", BARE, str(seconds)]
            started = [
                subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **ENV})
                for _ in range(number)
            ]
            runs.append(sum(int(process.communicate()[0]) for process in started))
    return median(counts[2]) / median(counts[1])
