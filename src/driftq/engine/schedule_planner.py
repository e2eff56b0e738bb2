"""The planner: gives schedules their next times before they run out of them.

The core keeps the numbers of schedules that need times (`state.schedules.unplanned`). After each commit the engine
wakes the planner, which computes plans for a few milliseconds and submits them as one command. If there are more, it
continues after a pause: a hundred thousand schedules that are planned at once take turns with everything else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from driftq.core.model.schedules import NextPlan, PlanSchedules
from driftq.engine.schedule_times import next_plan

if TYPE_CHECKING:
    from driftq.core.state.schedules import ScheduleTable
    from driftq.engine.loop_monitor import LoopMonitor

SLICE_S = 0.003  # of computing
PAUSE_S = 0.007  # for others
PLANS_MAX = 200  # of one command
RETRY_S = 0.5  # after a command that was refused


def next_plans(
    schedules: ScheduleTable, now_ms: int, is_over: Callable[[], bool] = lambda: False
) -> tuple[NextPlan, ...]:
    """Plans for some of the schedules that need one."""
    plans: list[NextPlan] = []
    for number in islice(schedules.unplanned, PLANS_MAX):
        schedule = schedules.by_number[number]
        plan = next_plan(schedule.spec, schedule.cursor_ms, now_ms)
        plans.append(NextPlan(number, schedule.revision, plan))
        if is_over():
            break
    return tuple(plans)


class SchedulePlanner:
    """The planner of one engine."""

    def __init__(
        self,
        schedules: ScheduleTable,
        now_ms: Callable[[], int],
        submit: Callable[[PlanSchedules], None],
        monitor: LoopMonitor,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._schedules = schedules
        self._now_ms = now_ms
        self._submit = submit  # decides at once
        self._on_time = monitor.timed("schedule plans", self._plan)
        self._handle: asyncio.Handle | None = None
        self._stopped = False

    def wake(self) -> None:
        """Plan soon, if a schedule needs it. Costs a comparison if none does."""
        if self._schedules.unplanned and self._handle is None and not self._stopped:
            self._handle = self._loop.call_soon(self._on_time)

    def stop(self) -> None:
        self._stopped = True
        if self._handle is not None:
            self._handle.cancel()

    def _plan(self) -> None:
        self._handle = None
        if self._stopped:
            return
        end_s = time.perf_counter() + SLICE_S
        plans = next_plans(self._schedules, self._now_ms(), lambda: time.perf_counter() >= end_s)
        if not plans:
            return
        self._submit(PlanSchedules(plans))
        if self._schedules.unplanned:
            refused = plans[0].number in self._schedules.unplanned
            self._handle = self._loop.call_later(RETRY_S if refused else PAUSE_S, self._on_time)
