"""Calls of schedules as pure functions: create, list, show, pause, resume, run, delete."""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from driftq.client.calls.admin import pages
from driftq.client.calls.filters import time_text
from driftq.client.calls.queue import Value, bodyless_call, get, item, json_reader, post, segment
from driftq.client.endpoint import Page, Pages
from driftq.wire.produce import ProduceItem
from driftq.wire.schedules import (
    CatchUpPolicy,
    RanReply,
    RunRequest,
    ScheduleInfo,
    ScheduleRequest,
    SchedulesReply,
)

if TYPE_CHECKING:
    from driftq.client.transport.sansio import Call


def create_schedule(
    name: str,
    topic: str,
    value: Value | ProduceItem,
    *,
    cron: str = "",
    timezone: str = "UTC",
    every: timedelta | None = None,
    every_ms: int = 0,
    jitter_ms: int = 0,
    catch_up: CatchUpPolicy = "last",
    catch_up_window_ms: int = 0,
    start: datetime | str | None = None,
    end: datetime | str | None = None,
    replace: bool = False,
    **options: Any,
) -> Call[ScheduleInfo]:
    """Create a schedule: a message that is produced at each time of `cron`, or at an interval.

    Parameters:
        name: Its name. The message of a firing has the id `name@time`.
        topic, value: What is produced, as in `send`.
        cron: An expression of five fields, such as "0 9 * * MON-FRI", or six with seconds in front.
        timezone: The zone of the expression, such as "Europe/Paris".
        every, every_ms: The interval, at least a second, instead of an expression.
        jitter_ms: Fire later by up to this much. How much depends on the name and the time only.
        catch_up: What to do with times that passed while the broker was down: "none" fires only one that passed less
            than a minute ago, "last" fires the last one, "all" fires each.
        catch_up_window_ms: A time that passed longer ago is missed; at most 366 days.
        start, end: No time is before or after these.
        replace: Change the schedule of this name, if there is one. Without it, one that differs is a conflict.
        options: As in `send`: `key`, `task`, `priority`, `timeout_ms`, `retry`, `tenant`, …

    Repeating the call has no further effect.
    """
    request = ScheduleRequest(
        name=name,
        topic=topic,
        message=value if isinstance(value, ProduceItem) else item(value, **options),
        cron=cron,
        timezone=timezone,
        every_ms=every_ms or (every // timedelta(milliseconds=1) if every is not None else 0),
        jitter_ms=jitter_ms,
        catch_up=catch_up,
        catch_up_window_ms=catch_up_window_ms,
        start=time_text(start),
        end=time_text(end),
        replace=replace,
    )
    return post("/v1/schedules", request, json_reader(ScheduleInfo), idempotent=True)


def list_schedules(prefix: str = "", *, topic: str = "", limit: int | None = None) -> Pages[ScheduleInfo]:
    """Schedules in the order of their names, each with its next time."""
    query = {"prefix": prefix, "topic": topic}
    return pages("/v1/schedules", SchedulesReply, lambda reply: Page(reply.schedules, reply.after), query, limit)


def show_schedule(name: str) -> Call[ScheduleInfo]:
    """A schedule with its next ten times, its last message, and why the last time was skipped if it was."""
    return get(_path(name), ScheduleInfo)


def pause_schedule(name: str) -> Call[None]:
    """Stop firing until `resume`."""
    return bodyless_call("POST", f"{_path(name)}/pause")


def resume_schedule(name: str) -> Call[None]:
    """Fire again, from the next time on. Times that passed in between are not caught up with."""
    return bodyless_call("POST", f"{_path(name)}/resume")


def run_schedule(name: str, *, request_id: str = "") -> Call[RanReply]:
    """Produce the message of a schedule now, also while it is paused. Its times stay as they are. A second run with
    the same `request_id` produces nothing."""
    request = RunRequest(request_id or secrets.token_hex(8))
    return post(f"{_path(name)}/run", request, json_reader(RanReply), idempotent=True)


def delete_schedule(name: str) -> Call[None]:
    """Delete a schedule. Its messages stay."""
    return bodyless_call("DELETE", _path(name))


def _path(name: str) -> str:
    return f"/v1/schedules/{segment(name)}"
