"""Many schedules: how late they fire, and how long they hold the event loop.

    python -m bench.schedules [--schedules 100000] [--every 60] [--seconds 20] [--folder DIR]

Each schedule fires every `every` seconds; together they are spread over that time. Case "spread" is what they do for
`seconds`: `value` is the lateness in milliseconds of 99 of 100 firings, from the time of the schedule to the decision.
Case "at once" makes all of them due at one instant: `value` is how many fire per second. `turn_ms_max` is the longest
turn of the loop by its CPU time: the wall time of a shared machine includes other processes. A garbage collection is
such a turn too; as in a server, what was made so far is frozen.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import tempfile
import time
from typing import NamedTuple

import uvloop

from bench.report import emit, quantile
from driftq.core.model import commands as c
from driftq.core.model.facts import Fact, RecordSchedule
from driftq.core.model.schedule_facts import ScheduledMessage, ScheduleFired, ScheduleSpec, ScheduleTimes
from driftq.core.model.schedules import CreateSchedule
from driftq.engine.engine import Engine
from driftq.engine.loop_monitor import LoopMonitor
from driftq.engine.schedule_times import next_plan

TOPIC = "ticks"
PARTITIONS = 8
WINDOW_MS = 366 * 86_400_000
CREATED_AT_ONCE = 500
LEAD_MS = 500  # after which the measured firings begin


class Figures(NamedTuple):
    """What was measured."""

    late_ms: list[int]  # of each firing
    turn_s: float  # the longest turn
    cause: str  # of that turn
    cpu_s: float
    wall_s: float


class Observed:
    """The firings and the longest turn since the last `reset`."""

    def __init__(self) -> None:
        self.monitor = LoopMonitor(clock=time.thread_time, stall_s=0.001, log_s=10.0)
        self.monitor.on_stall = self._on_turn
        self.reset()

    def reset(self) -> None:
        self.late_ms: list[int] = []
        self.turn_s, self.cause = 0.0, ""
        self._expected = 0
        self._done = asyncio.Event()

    async def all_fired(self, count: int) -> None:
        self._expected = count
        await self._done.wait()

    def _on_turn(self, cause: str, took_s: float) -> None:
        if took_s > self.turn_s:
            self.turn_s, self.cause = took_s, cause

    def observe(self, lsn: int, facts: list[Fact]) -> None:
        self.late_ms += [fact.at_ms - fact.time_ms for fact in facts if isinstance(fact, ScheduleFired)]
        if 0 < self._expected <= len(self.late_ms):
            self._done.set()


async def fire(folder: str, schedules: int, every_ms: int, seconds: float, *, at_once: bool = False) -> Figures:
    """Create schedules, then let them fire: for some seconds, or all of them once."""
    observed = Observed()
    engine = await Engine.open(folder, monitor=observed.monitor)
    engine.sequencer.observers.append(observed.observe)
    await engine.submit(c.CreateTopic(TOPIC, PARTITIONS))
    begin_ms = engine.now_ms() + max(2_000, schedules // 2)  # a time at which all of them exist
    for first in range(0, schedules, CREATED_AT_ONCE):
        numbers = range(first, min(schedules, first + CREATED_AT_ONCE))
        await asyncio.gather(
            *(engine.submit(_creation(engine, number, schedules, every_ms, begin_ms, at_once)) for number in numbers)
        )
    gc.collect()
    gc.freeze()
    await asyncio.sleep(max(0, begin_ms - LEAD_MS - engine.now_ms()) / 1_000)
    observed.reset()
    cpu_s, started_s = time.process_time(), time.perf_counter()
    if at_once:
        await asyncio.sleep(max(0, begin_ms - engine.now_ms()) / 1_000)
        cpu_s, started_s = time.process_time(), time.perf_counter()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(observed.all_fired(schedules), seconds)
    else:
        await asyncio.sleep(LEAD_MS / 1_000 + seconds)
    took = (time.process_time() - cpu_s, time.perf_counter() - started_s)
    figures = Figures(observed.late_ms, observed.turn_s, observed.cause, *took)
    await engine.close()
    gc.unfreeze()
    return figures


def _creation(
    engine: Engine, number: int, schedules: int, every_ms: int, begin_ms: int, at_once: bool
) -> CreateSchedule:
    first_ms = begin_ms + (0 if at_once else number * every_ms // schedules)
    times = ScheduleTimes(every_ms=every_ms, anchor_ms=first_ms, start_ms=first_ms)
    message = ScheduledMessage(TOPIC, b"x" * 100, b"", b"", RecordSchedule(0, tracked=True), number % PARTITIONS)
    spec = ScheduleSpec(message, times, "last", WINDOW_MS)
    now_ms = engine.now_ms()
    return CreateSchedule(f"schedule-{number:06}", spec, next_plan(spec, now_ms, now_ms))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=100_000)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two firings of a schedule")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--folder", help="where to put the data; by default a temporary folder")
    options = parser.parse_args()
    every_ms = int(1_000 * options.every)
    for case in ("spread", "at once"):
        at_once = case == "at once"
        seconds = options.seconds if not at_once else 600.0
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            figures = uvloop.run(fire(f"{folder}/data", options.schedules, every_ms, seconds, at_once=at_once))
        fields: dict[str, object] = {
            "firings": len(figures.late_ms),
            "late_ms_p50": quantile(figures.late_ms, 0.5),
            "late_ms_max": max(figures.late_ms, default=0),
            "turn_ms_max": 1_000 * figures.turn_s,
            "turn_cause": figures.cause,
            "cpu_us_per_op": 1e6 * figures.cpu_s / max(1, len(figures.late_ms)),
        }
        name, late_ms = f"{case}, {options.schedules}", figures.late_ms
        if at_once:
            emit("schedules", name, len(late_ms) / figures.wall_s, "firings/s", **fields)
        else:
            emit("schedules", name, quantile(late_ms, 0.99), "ms", **fields)


if __name__ == "__main__":
    main()
