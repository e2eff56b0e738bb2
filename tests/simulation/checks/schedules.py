"""Schedules: each time fires once, with its message in the same frame, in order and never early; nothing is passed over
that the policy fires. The times are computed here again, from the expression."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any

from driftq.core.model import facts as f
from driftq.core.model import schedule_facts as s
from driftq.core.model.schedules import FireSchedules, RunSchedule
from driftq.core.state.state import State
from driftq.engine.schedule_times import times_after
from driftq.wire.message import decode_head
from driftq.wire.partitions import fnv1a
from driftq.wire.records import unpack
from driftq.wire.schedules import firing_id, requested_id
from tests.simulation.checks.ledger import Ledger
from tests.simulation.checks.violation import demand
from tests.simulation.operation import Operation

VALUE = b"tick"  # of the messages of schedules


class ScheduleModel:
    """One schedule, from its facts."""

    def __init__(self, fact: s.ScheduleCreated) -> None:
        self.name = fact.schedule
        self.spec = fact.spec
        self.cursor_ms = fact.at_ms
        self.paused = False
        self.ended = False  # its last plan is empty: what was left was too old
        self.fired: set[int] = set()
        self.firings = 0

    def due_ms(self, time_ms: int) -> int:
        jitter_ms = self.spec.times.jitter_ms
        return time_ms + fnv1a(firing_id(self.name, time_ms).encode()) % (jitter_ms + 1) if jitter_ms else time_ms

    def between(self, after_ms: int, until_ms: int) -> list[int]:
        """The times in (after, until)."""
        return list(takewhile(lambda time_ms: time_ms < until_ms, times_after(self.spec.times, after_ms)))

    def is_old(self, time_ms: int, now_ms: int) -> bool:
        return now_ms - self.due_ms(time_ms) > self.spec.window_ms


class SchedulesCheck:
    """All schedules."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._schedules: dict[int, ScheduleModel] = {}
        self._jobs: dict[str, tuple[int, int]] = {}  # by id: the last message that has it
        self._new: set[str] = set()  # ids of messages of this frame
        self.firings = 0
        self.missed = 0

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        return {
            f.Appended: self._appended,
            s.ScheduleCreated: self._created,
            s.ScheduleChanged: self._changed,
            s.SchedulePaused: self._paused,
            s.ScheduleDeleted: lambda fact, op: self._schedules.pop(fact.number) and None,
            s.SchedulePlanned: self._planned,
            s.ScheduleFired: self._fired,
            s.ScheduleMissed: self._missed,
        }

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {}

    def _appended(self, fact: f.Appended, op: Operation) -> None:
        job = fact.along.job.rpartition("\x1e")[2] if fact.along is not None else ""
        if "@" in job:
            self._jobs[job] = (fact.log_id, fact.first_offset)
        if isinstance(op.command, FireSchedules | RunSchedule) and fact.along is not None:
            (record,) = unpack(fact.batch)
            head = decode_head(record.head)
            is_whole = record.value == VALUE and head.job is not None and head.job.id == job
            demand(is_whole and job, "schedules", f"{op} produced {record}")
            self._new.add(job)

    def finish(self) -> None:
        demand(not self._new, "schedules", f"messages {self._new} have no firing in their frame")

    def _created(self, fact: s.ScheduleCreated, op: Operation) -> None:
        demand(fact.number not in self._schedules, "schedules", f"number {fact.number} is used twice")
        self._schedules[fact.number] = ScheduleModel(fact)

    def _changed(self, fact: s.ScheduleChanged, op: Operation) -> None:
        model = self._schedules[fact.number]
        if fact.spec.times != model.spec.times:
            model.cursor_ms = max(model.cursor_ms, fact.at_ms)
            model.ended = False
        model.spec = fact.spec

    def _paused(self, fact: s.SchedulePaused, op: Operation) -> None:
        model = self._schedules[fact.number]
        model.paused = fact.paused
        if not fact.paused:
            model.cursor_ms = max(model.cursor_ms, fact.at_ms)

    def _planned(self, fact: s.SchedulePlanned, op: Operation) -> None:
        model = self._schedules[fact.number]
        demand(all(time_ms > model.cursor_ms for time_ms in fact.plan.times), "schedules", f"{model.name}: a past plan")
        if fact.plan.is_final and not fact.plan.times:
            left = times_after(model.spec.times, model.cursor_ms)
            lost = next((time_ms for time_ms in left if not model.is_old(time_ms, op.at_ms)), None)
            demand(lost is None, "schedules", f"{model.name} ended before {lost}")
            model.ended = True

    def _fired(self, fact: s.ScheduleFired, op: Operation) -> None:
        model = self._schedules[fact.number]
        model.firings += 1
        self.firings += 1
        name, time_ms = model.name, fact.time_ms
        job = requested_id(name, fact.request_id) if fact.request_id else firing_id(name, time_ms)
        demand(self._jobs.get(job) == (fact.log_id, fact.offset), "schedules", f"{job} fired without its message")
        self._new.discard(job)
        if fact.request_id:
            return
        demand(not model.paused, "schedules", f"{name} fired while it was paused")
        demand(time_ms not in model.fired, "schedules", f"{name} fired twice for {time_ms}")
        demand(time_ms > model.cursor_ms, "schedules", f"{name} fired for {time_ms} after {model.cursor_ms}")
        demand(next(times_after(model.spec.times, time_ms - 1), 0) == time_ms, "schedules", f"{time_ms} is no time")
        demand(model.due_ms(time_ms) <= fact.at_ms, "schedules", f"{name} fired early for {time_ms}")
        demand(not model.is_old(time_ms, fact.at_ms), "schedules", f"{name} fired for {time_ms}, which is too old")
        passed = model.between(model.cursor_ms, time_ms)
        if model.spec.catch_up == "all":
            lost = [time_ms for time_ms in passed if not model.is_old(time_ms, fact.at_ms)]
            demand(not lost, "schedules", f"{name} passed over {lost}")
        else:
            after_ms = next(times_after(model.spec.times, time_ms), None)
            is_last = after_ms is None or model.due_ms(after_ms) > fact.at_ms
            demand(is_last, "schedules", f"{name} fired for {time_ms}, and {after_ms} is due too")
        model.fired.add(time_ms)
        model.cursor_ms = time_ms

    def _missed(self, fact: s.ScheduleMissed, op: Operation) -> None:
        model = self._schedules[fact.number]
        self.missed += fact.missed
        passed = model.between(model.cursor_ms, fact.time_ms + 1)
        recent = [time_ms for time_ms in passed if not model.is_old(time_ms, fact.at_ms)]
        is_gone = bool(fact.error) and model.spec.message.topic not in self._ledger.topics
        refused = is_gone and (model.spec.catch_up != "all" or recent == passed[-1:])
        demand(not recent or refused, "schedules", f"{model.name} passed over {recent}")
        model.cursor_ms = fact.time_ms

    def compare(self, state: State) -> None:
        known = state.schedules.by_number
        demand(known.keys() == self._schedules.keys(), "schedules", f"there are {[*known]}, not {[*self._schedules]}")
        for number, model in self._schedules.items():
            schedule = known[number]
            wanted = (model.name, model.spec, model.paused, model.cursor_ms, model.firings)
            actual = (schedule.name, schedule.spec, schedule.paused, schedule.cursor_ms, schedule.firings)
            demand(actual == wanted, "schedules", f"{model.name} is {actual}, not {wanted}")

    def all_fired(self, state: State, now_ms: int) -> None:
        """When everything that is due was fired: no time is left."""
        for number, model in self._schedules.items():
            schedule = state.schedules.by_number[number]
            next_ms = next(times_after(model.spec.times, model.cursor_ms), None)
            waits = model.paused or schedule.retry_at_ms > now_ms
            if next_ms is not None and not waits and not model.ended:
                demand(model.due_ms(next_ms) > now_ms, "liveness", f"{model.name} has not fired for {next_ms}")
