"""Schedules: what each produces, its next times, and how far it has come.

    cursor_ms          plan: times
    ── done ──────┤    t1    t2    t3    t4   … planned later, outside of the core
                       └─ due at t1 + jitter

A time is done when it fired or was passed over; `cursor_ms` is the last one. Only times after the cursor are ever in a
plan, so that no time fires twice, whatever the clock or the planner does. The times of a schedule are done in order.

- `timers` has the schedules that wait for a time, by that time.
- `unplanned` has those that need more times soon; those whose plan has ended (`overdue`) can only wait for that.

The decisions are in `core.rules.schedules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from driftq.core.model.schedule_facts import (
    Firing,
    ScheduleChanged,
    ScheduleCreated,
    ScheduleDelayed,
    ScheduleDeleted,
    ScheduleFired,
    ScheduleMissed,
    SchedulePaused,
    SchedulePlan,
    SchedulePlanned,
    SchedulesOverdue,
    ScheduleState,
)
from driftq.core.state.sorted_paths import SortedPaths
from driftq.core.state.timer_queue import TimerQueue
from driftq.wire.namespaces import own_name
from driftq.wire.partitions import fnv1a
from driftq.wire.schedules import firing_id

if TYPE_CHECKING:
    from driftq.core.model.facts import Fact
    from driftq.core.model.schedule_facts import ScheduleSpec
    from driftq.core.state.tenants import TenantTable

PLAN_LOW = 2  # with fewer times than this, a schedule is planned again


class Schedule:
    """One schedule."""

    __slots__ = (
        "created", "cursor_ms", "error", "error_ms", "firings", "is_final", "last", "missed", "overdue", "paused",
        "retry_at_ms", "revision", "spec", "times", "waits_until_ms",
    )  # fmt: skip

    def __init__(self, created: ScheduleCreated) -> None:
        self.created = created
        self.spec: ScheduleSpec = created.spec
        self.revision = 0  # rises when the times change: a plan for earlier times is void
        self.paused = False
        self.overdue = False  # all planned times have passed, and which ones come next is not known
        self.cursor_ms = created.at_ms  # the last time that is done
        self.times: tuple[int, ...] = ()  # the plan: times after the cursor
        self.is_final = False  # no times follow the plan
        self.retry_at_ms = 0  # when the message was refused for now: not before this
        self.firings = 0  # how often it fired
        self.missed = 0  # how many times were passed over
        self.last: Firing | None = None
        self.error = ""  # why the last time was refused; "" once one fired again
        self.error_ms = 0
        self.waits_until_ms: int | None = None  # its time in `ScheduleTable.timers`

    @property
    def number(self) -> int:
        return self.created.number

    @property
    def name(self) -> str:
        return self.created.schedule

    @property
    def has_ended(self) -> bool:
        return self.is_final and not self.times

    def id_of(self, time_ms: int) -> str:
        """The id of the message for a time."""
        return firing_id(own_name(self.name), time_ms)

    def due_ms(self, time_ms: int) -> int:
        """When a time fires: later by its jitter, which is the same however often it is asked for."""
        jitter_ms = self.spec.times.jitter_ms
        return time_ms + fnv1a(self.id_of(time_ms).encode()) % (jitter_ms + 1) if jitter_ms else time_ms

    def next_ms(self) -> int | None:
        """When it is to be fired."""
        if self.paused or self.overdue or not self.times:
            return None
        return max(self.due_ms(self.times[0]), self.retry_at_ms)

    def needs_plan(self) -> bool:
        return not self.paused and not self.is_final and (self.overdue or len(self.times) < PLAN_LOW)

    def take_plan(self, plan: SchedulePlan) -> None:
        self.times, self.is_final, self.overdue = plan.times, plan.is_final, False
        self.missed += plan.missed

    def pass_times(self, time_ms: int) -> None:
        """Everything up to a time is done."""
        if time_ms > self.cursor_ms:
            self.cursor_ms = time_ms
            self.times = tuple(time for time in self.times if time > time_ms)
        self.retry_at_ms = 0

    def snapshot(self) -> ScheduleState:
        return ScheduleState(
            self.created, self.spec, SchedulePlan(self.times, self.is_final), self.revision, self.paused, self.overdue,
            self.cursor_ms, self.retry_at_ms, self.firings, self.missed, self.last, self.error, self.error_ms,
        )  # fmt: skip

    def restore(self, fact: ScheduleState) -> None:
        self.spec, self.revision, self.paused, self.overdue = fact.spec, fact.revision, fact.paused, fact.overdue
        self.times, self.is_final = fact.plan.times, fact.plan.is_final
        self.cursor_ms, self.retry_at_ms = fact.cursor_ms, fact.retry_at_ms
        self.firings, self.missed, self.last = fact.firings, fact.missed, fact.last
        self.error, self.error_ms = fact.error, fact.error_ms


class ScheduleTable:
    """All schedules, by name and by number."""

    def __init__(self, tenants: TenantTable) -> None:
        self._tenants = tenants  # counts those of each tenant
        self.by_name: dict[str, Schedule] = {}
        self.by_number: dict[int, Schedule] = {}
        self.names = SortedPaths()  # in order, for lists
        self.timers: TimerQueue[tuple[int, int]] = TimerQueue()  # (when, number)
        self.unplanned: dict[int, None] = {}  # numbers of schedules that need times
        self.next_number = 1
        self.folds: dict[type, Callable[[Any], None]] = {
            ScheduleCreated: self._created,
            ScheduleChanged: self._changed,
            SchedulePaused: self._paused,
            ScheduleDeleted: self._deleted,
            SchedulePlanned: self._planned,
            SchedulesOverdue: self._overdue,
            ScheduleFired: self._fired,
            ScheduleMissed: self._missed,
            ScheduleDelayed: self._delayed,
            ScheduleState: self._restored,
        }

    def __len__(self) -> int:
        return len(self.by_name)

    def due(self, now_ms: int) -> Iterator[Schedule]:
        """Those that are due, oldest first."""
        return (self.by_number[number] for _, number in self.timers.until(now_ms))

    def first_timer(self) -> tuple[int, int] | None:
        return next(iter(self.timers), None)

    def names_from(self, prefix: str, after: str) -> Iterator[str]:
        """Names that begin with `prefix` and sort after `after`, in order."""
        for name in self.names.start_at(prefix, after):
            if not name.startswith(prefix):
                return
            yield name

    def _settle(self, schedule: Schedule) -> None:
        """After each change: where it waits."""
        at_ms = schedule.next_ms()
        if at_ms != schedule.waits_until_ms:
            if schedule.waits_until_ms is not None:
                self.timers.remove((schedule.waits_until_ms, schedule.number))
            if at_ms is not None:
                self.timers.add((at_ms, schedule.number))
            schedule.waits_until_ms = at_ms
        if schedule.needs_plan():
            self.unplanned[schedule.number] = None
        else:
            self.unplanned.pop(schedule.number, None)

    # --- facts ---

    def _add(self, schedule: Schedule) -> None:
        self.by_name[schedule.name] = self.by_number[schedule.number] = schedule
        self.names.add(schedule.name)
        self._tenants.count_schedule(schedule.name, 1)
        self.next_number = max(self.next_number, schedule.number + 1)
        self._settle(schedule)

    def _created(self, fact: ScheduleCreated) -> None:
        schedule = Schedule(fact)
        schedule.take_plan(fact.plan)
        self._add(schedule)

    def _changed(self, fact: ScheduleChanged) -> None:
        schedule = self.by_number[fact.number]
        if fact.spec.times != schedule.spec.times:
            schedule.revision += 1
            schedule.cursor_ms = max(schedule.cursor_ms, fact.at_ms)
            schedule.retry_at_ms = 0
            schedule.take_plan(fact.plan)
        schedule.spec = fact.spec
        self._settle(schedule)

    def _paused(self, fact: SchedulePaused) -> None:
        schedule = self.by_number[fact.number]
        schedule.paused = fact.paused
        if not fact.paused:
            schedule.pass_times(fact.at_ms)
            schedule.overdue = False
        self._settle(schedule)

    def _deleted(self, fact: ScheduleDeleted) -> None:
        schedule = self.by_number.pop(fact.number)
        del self.by_name[schedule.name]
        self.names.discard(schedule.name)
        self._tenants.count_schedule(schedule.name, -1)
        self.unplanned.pop(fact.number, None)
        if schedule.waits_until_ms is not None:
            self.timers.remove((schedule.waits_until_ms, fact.number))

    def _planned(self, fact: SchedulePlanned) -> None:
        schedule = self.by_number[fact.number]
        schedule.take_plan(fact.plan)
        self._settle(schedule)

    def _overdue(self, fact: SchedulesOverdue) -> None:
        for number in fact.numbers:
            schedule = self.by_number[number]
            schedule.overdue = True
            self._settle(schedule)

    def _fired(self, fact: ScheduleFired) -> None:
        schedule = self.by_number[fact.number]
        schedule.firings += 1
        schedule.missed += fact.missed
        schedule.error, schedule.error_ms = "", 0
        schedule.last = Firing(fact.time_ms, fact.at_ms, fact.log_id, fact.offset, fact.request_id)
        if not fact.request_id:
            schedule.pass_times(fact.time_ms)
            self._settle(schedule)

    def _missed(self, fact: ScheduleMissed) -> None:
        schedule = self.by_number[fact.number]
        schedule.missed += fact.missed
        if fact.error:
            schedule.error, schedule.error_ms = fact.error, fact.at_ms
        schedule.pass_times(fact.time_ms)
        self._settle(schedule)

    def _delayed(self, fact: ScheduleDelayed) -> None:
        schedule = self.by_number[fact.number]
        schedule.error, schedule.error_ms = fact.error, fact.at_ms
        schedule.retry_at_ms = fact.retry_at_ms
        self._settle(schedule)

    # --- snapshots ---

    def snapshot(self) -> Iterator[Fact]:
        for schedule in self.by_number.values():
            yield schedule.snapshot()

    def _restored(self, fact: ScheduleState) -> None:
        schedule = Schedule(fact.created)
        schedule.restore(fact)
        self._add(schedule)
