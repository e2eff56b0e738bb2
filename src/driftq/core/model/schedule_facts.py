"""Facts of schedules (tags 120 to 129). Facts evolve as described in `core.model.facts`.

A schedule produces a message at each of its times. The times are computed outside of the core, from an expression and a
time zone, and are stored a few at a time: the *plan*. So a restart, a replica and the simulation fire at the same
times, whatever they know about time zones.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from driftq.core.model.facts import Fact, RecordSchedule

ANY_PARTITION = -1

CatchUp = Literal["none", "last", "all"]


class ScheduledMessage(Struct, frozen=True, array_like=True, gc=False):
    """What a schedule produces. The head names the job; its id is that of the firing."""

    topic: str
    value: bytes
    key: bytes
    head: bytes
    mark: RecordSchedule
    partition: int | None = None  # None: of the key; ANY_PARTITION: of the schedule's name


class ScheduleTimes(Struct, frozen=True, array_like=True, gc=False):
    """When a schedule fires: at the times of a cron expression, or every `every_ms` from `anchor_ms` on."""

    cron: str = ""
    every_ms: int = 0
    timezone: str = ""  # of the cron expression
    anchor_ms: int = 0
    start_ms: int = 0  # no time before it; 0: from its creation on
    end_ms: int = 0  # no time after it; 0: forever
    jitter_ms: int = 0  # a firing is later than its time by up to this much, which depends on name and time only


class ScheduleSpec(Struct, frozen=True, array_like=True, gc=False):
    """What a schedule is."""

    message: ScheduledMessage
    times: ScheduleTimes
    catch_up: CatchUp = "last"  # of several times that have passed: fire none but a recent one, the last one, or all
    window_ms: int = 0  # a time that passed longer ago is missed


class SchedulePlan(Struct, frozen=True, array_like=True, gc=False):
    """The next times of a schedule, in order. No time between two of them, or before the first, is left out, except for
    `missed` ones that its policy does not fire."""

    times: tuple[int, ...] = ()
    is_final: bool = False  # there are no times after these
    missed: int = 0


class ScheduleCreated(Fact, tag=120, frozen=True):
    """A schedule was created. Its number is never used for another one."""

    number: int
    schedule: str
    spec: ScheduleSpec
    plan: SchedulePlan
    at_ms: int


class ScheduleChanged(Fact, tag=121, frozen=True):
    """A schedule has another message, policy or times. Other times begin now."""

    number: int
    spec: ScheduleSpec
    plan: SchedulePlan
    at_ms: int


class SchedulePaused(Fact, tag=122, frozen=True):
    """A schedule was paused, or resumed. The times in between are not caught up with."""

    number: int
    paused: bool
    at_ms: int


class ScheduleDeleted(Fact, tag=123, frozen=True):
    """A schedule was deleted. Its messages stay."""

    number: int
    at_ms: int


class SchedulePlanned(Fact, tag=124, frozen=True):
    """The next times of a schedule are known. None of them has fired."""

    number: int
    plan: SchedulePlan


class SchedulesOverdue(Fact, tag=125, frozen=True):
    """The plans of these schedules end in the past: which time is their last one is not known before the next plan."""

    numbers: tuple[int, ...]


class ScheduleFired(Fact, tag=126, frozen=True):
    """A schedule fired for a time; its message is in the same frame, unless a message with that id existed. Earlier
    times of its plan are done, too: `missed` of them were passed over. A run that was asked for has a `request_id`,
    and no time in the plan."""

    number: int
    time_ms: int
    at_ms: int
    log_id: int
    offset: int
    missed: int = 0
    request_id: str = ""


class ScheduleMissed(Fact, tag=127, frozen=True):
    """The times of a schedule up to `time_ms` are done without a message: they passed too long ago, or its message was
    refused for good (`error`)."""

    number: int
    time_ms: int
    at_ms: int
    missed: int
    error: str = ""


class ScheduleDelayed(Fact, tag=128, frozen=True):
    """The message of a schedule was refused for now: its time is tried again at `retry_at_ms`."""

    number: int
    at_ms: int
    retry_at_ms: int
    error: str


class Firing(Struct, frozen=True, array_like=True, gc=False):
    """The last message of a schedule, and the time that it is for."""

    time_ms: int
    at_ms: int
    log_id: int
    offset: int
    request_id: str = ""


class ScheduleState(Fact, tag=129, frozen=True):
    """State of a schedule, in a snapshot."""

    created: ScheduleCreated
    spec: ScheduleSpec
    plan: SchedulePlan
    revision: int
    paused: bool
    overdue: bool
    cursor_ms: int
    retry_at_ms: int
    firings: int
    missed: int
    last: Firing | None
    error: str
    error_ms: int
