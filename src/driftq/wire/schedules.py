"""Bodies of schedules, and the id of a firing."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from driftq.wire.fields import Body, Natural, to_rfc3339
from driftq.wire.produce import ProduceItem

SCHEDULE_NAME_LENGTH_MAX = 200  # an id of a firing has a time behind it
EVERY_MS_MIN = 1_000
UTC = "UTC"
JITTER_MS_MAX = 86_400_000
WINDOW_MS_MIN, WINDOW_MS_MAX = 1_000, 366 * 86_400_000
MESSAGE_BYTES_MAX = 64 << 10  # of a schedule: all of them are in memory
TIMES_SHOWN = 10
RECENT_MS = 60_000  # the window of `catch_up` "none"

CatchUpPolicy = Literal["none", "last", "all"]


def firing_id(schedule: str, time_ms: int) -> str:
    """The id of the message that a schedule produces for a time: `nightly@2026-11-18T09:00:00Z`."""
    time = to_rfc3339(time_ms).removesuffix("+00:00")
    return f"{schedule}@{time.removesuffix('.000')}Z"


def requested_id(schedule: str, request_id: str) -> str:
    """The id of the message of a run that was asked for."""
    return f"{schedule}@{request_id}"


class ScheduleRequest(Body, frozen=True, omit_defaults=True):
    """A schedule: its name, what it produces and when. Either `cron` or `every_ms` is required. `timezone` is the zone
    of `cron`; an interval has none.

    `message` is what a produce takes, without an id, a delay and an idempotency key. `catch_up` decides what happens
    with times that passed while the broker was down: "none" fires only one that passed less than a minute ago, "last"
    fires the last one, "all" fires each. A time that passed longer than `catch_up_window_ms` ago is missed.
    With `replace` a schedule of that name is changed; without, one that differs is a conflict.
    """

    name: str
    topic: str
    message: ProduceItem
    cron: Annotated[str, Meta(max_length=256)] = ""
    timezone: Annotated[str, Meta(max_length=64)] = UTC
    every_ms: Natural = 0
    jitter_ms: Natural = 0
    catch_up: CatchUpPolicy = "last"
    catch_up_window_ms: Natural = 0
    start: str = ""
    end: str = ""
    replace: bool = False


class RunRequest(Body, frozen=True, omit_defaults=True):
    """A run that is asked for. A repeat with the same `request_id` produces nothing."""

    request_id: Annotated[str, Meta(max_length=48)] = ""


class FiringInfo(Struct, frozen=True, omit_defaults=True):
    """The last message of a schedule: the time it is for, and when and where it was produced."""

    id: str
    time: str
    fired_at: str
    partition: int
    offset: int


class ScheduleInfo(Struct, frozen=True, omit_defaults=True):
    """A schedule. `next_times` are those of the expression, before jitter; none while it is paused."""

    name: str
    topic: str
    state: Literal["active", "paused", "ended"]
    message: ProduceItem
    catch_up: CatchUpPolicy
    catch_up_window_ms: int
    created_at: str
    firings: int
    missed: int
    next_times: list[str]
    cron: str = ""
    timezone: str = ""
    every_ms: int = 0
    jitter_ms: int = 0
    start: str = ""
    end: str = ""
    last: FiringInfo | None = None
    error: str = ""
    error_at: str = ""


class SchedulesReply(Struct, frozen=True, omit_defaults=True):
    """A page of schedules. `after` starts the next one."""

    schedules: list[ScheduleInfo]
    after: str | None = None


class RanReply(Struct, frozen=True, omit_defaults=True):
    """The message that a run produced; `duplicate` if the request was carried out before."""

    schedule: str
    id: str
    topic: str
    partition: int
    offset: int
    duplicate: bool = False
