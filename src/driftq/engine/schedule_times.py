"""The times of a schedule: parsing its expression and zone, and the next plan. Pure: the time is an argument.

Cron expressions have five fields, or six with seconds in front, and are parsed by cronsim, which follows Debian's cron.
On the days on which a zone changes its clocks:

    fields                       the hour that does not exist         the hour that comes twice
    minute and hour are fixed    fires once, at the end of the gap    fires once, the first time
    minute or hour is a `*`      the gap has no times                 fires both times
    six fields                   the gap has no times                 fires both times

An interval counts real time from its anchor and knows no zones.

A plan never walks over a long gap: the work for one is bounded, however long the broker was down.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from driftq.core.model.schedule_facts import SchedulePlan, ScheduleSpec, ScheduleTimes
from driftq.core.state.schedules import PLAN_LOW
from driftq.wire.schedules import EVERY_MS_MIN, JITTER_MS_MAX

PLAN_TIMES = 8  # of a plan; more if it has to catch up
CATCH_UP_TIMES = 64
PLAN_AHEAD_MS = 400 * 86_400_000  # a plan that reaches so far has few times: rules of zones change
MISSED_COUNTED_MAX = 100  # of one gap; counting more would take too long

_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_LAST_MS = (datetime(9990, 1, 1, tzinfo=UTC) - _EPOCH) // _MS


class BadSchedule(ValueError):
    """The expression, the zone or the times of a schedule make no sense. The message is for the user."""


def check_times(times: ScheduleTimes, now_ms: int) -> None:
    """Raises `BadSchedule` with what is wrong."""
    if bool(times.cron) == bool(times.every_ms):
        raise BadSchedule("a schedule has either cron or every_ms")
    if times.every_ms and times.every_ms < EVERY_MS_MIN:
        raise BadSchedule(f"every_ms must be at least {EVERY_MS_MIN}")
    if times.jitter_ms > JITTER_MS_MAX:
        raise BadSchedule(f"jitter_ms must be at most {JITTER_MS_MAX} (a day)")
    if times.end_ms and times.end_ms <= max(times.start_ms, now_ms):
        raise BadSchedule("end must be after start, and in the future")
    if times.cron:
        _zone(times.timezone)
        try:
            _cron(times, now_ms)
        except CronSimError as error:
            raise BadSchedule(_bad_cron(times.cron, error)) from None
    upcoming = list(islice(times_after(times, now_ms), 10))
    if not upcoming:
        raise BadSchedule("this schedule never fires: there is no such time" + (" before its end" * bool(times.end_ms)))
    gap_ms = min((later - earlier for earlier, later in pairwise(upcoming)), default=JITTER_MS_MAX + 1)
    if times.jitter_ms >= gap_ms:
        raise BadSchedule(f"jitter_ms must be shorter than the time between two firings, which can be {gap_ms} ms")


def _bad_cron(expression: str, error: CronSimError) -> str:
    why = str(error)[:1].lower() + str(error)[1:]
    return (
        f"invalid cron expression {expression!r}: {why}. It has five fields: minute, hour, day of month, month, day of "
        "week, such as '0 9 * * MON-FRI'; or six with seconds in front"
    )


@lru_cache(1_000)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        raise BadSchedule(f"unknown timezone {name!r}: use a name of the IANA database, such as Europe/Paris") from None


# --- times ---


def times_after(times: ScheduleTimes, after_ms: int) -> Iterator[int]:
    """The times after a moment, in order, within start and end."""
    after_ms = max(after_ms, times.start_ms - 1)
    all_times = _cron_after(times, after_ms) if times.cron else _intervals_after(times, after_ms)
    end_ms = min(times.end_ms or _LAST_MS, _LAST_MS)
    return takewhile(lambda time_ms: time_ms <= end_ms, all_times)


def last_until(times: ScheduleTimes, now_ms: int) -> int | None:
    """The last time up to a moment; None if there is none."""
    upto_ms = min(now_ms, times.end_ms or now_ms)
    if times.cron:
        last_ms = next(_cron_before(times, upto_ms), None)
    else:
        last_ms = times.anchor_ms + (upto_ms - times.anchor_ms) // times.every_ms * times.every_ms
    return last_ms if last_ms is not None and last_ms >= times.start_ms else None


def _intervals_after(times: ScheduleTimes, after_ms: int) -> Iterator[int]:
    at_ms = times.anchor_ms + max(0, (after_ms - times.anchor_ms) // times.every_ms + 1) * times.every_ms
    while True:
        yield at_ms
        at_ms += times.every_ms


def _cron_after(times: ScheduleTimes, after_ms: int) -> Iterator[int]:
    for moment in _cron(times, after_ms):
        time_ms = (moment - _EPOCH) // _MS
        if time_ms > after_ms:  # the end of a gap can be a time of its own, too
            after_ms = time_ms
            yield time_ms


def _cron_before(times: ScheduleTimes, upto_ms: int) -> Iterator[int]:
    next_second_ms = (upto_ms // 1_000 + 1) * 1_000
    for moment in _cron(times, next_second_ms, reverse=True):
        time_ms = (moment - _EPOCH) // _MS
        if time_ms <= upto_ms:
            yield time_ms


def _cron(times: ScheduleTimes, at_ms: int, *, reverse: bool = False) -> CronSim:
    moment = (_EPOCH + timedelta(milliseconds=max(0, min(at_ms, _LAST_MS)))).astimezone(_zone(times.timezone))
    return CronSim(_ALIASES.get(times.cron.strip().lower(), times.cron), moment, reverse)


# --- plans ---


def next_plan(spec: ScheduleSpec, cursor_ms: int, now_ms: int) -> SchedulePlan:
    """The plan of a schedule whose times up to the cursor are done."""
    times = spec.times
    first_ms = max(cursor_ms, now_ms - spec.window_ms - times.jitter_ms - 1)  # what is older is missed
    missed = _missed_between(times, cursor_ms, first_ms)
    if spec.catch_up == "all":
        behind = first_ms < now_ms
        return _plan((), times, first_ms, CATCH_UP_TIMES if behind else PLAN_TIMES, now_ms, missed)
    last_ms = last_until(times, now_ms) if first_ms < now_ms else None
    if last_ms is None or last_ms <= first_ms:
        return _plan((), times, first_ms, PLAN_TIMES, now_ms, missed)
    missed += _missed_between(times, first_ms, last_ms - 1)
    return _plan((last_ms,), times, last_ms, PLAN_TIMES, now_ms, min(missed, MISSED_COUNTED_MAX))


def _plan(
    first: tuple[int, ...], times: ScheduleTimes, after_ms: int, count: int, now_ms: int, missed: int
) -> SchedulePlan:
    planned = list(first)
    upcoming = times_after(times, after_ms)
    for time_ms in islice(upcoming, count):
        planned.append(time_ms)
        if time_ms > now_ms + PLAN_AHEAD_MS and len(planned) >= PLAN_LOW:
            return SchedulePlan(tuple(planned), False, missed)
    is_final = len(planned) - len(first) < count
    return SchedulePlan(tuple(planned), is_final, missed)


def _missed_between(times: ScheduleTimes, after_ms: int, upto_ms: int) -> int:
    """How many times are in (after, upto]; not more than `MISSED_COUNTED_MAX` are counted."""
    if upto_ms <= after_ms:
        return 0
    upcoming = islice(times_after(times, after_ms), MISSED_COUNTED_MAX)
    return sum(1 for _ in takewhile(lambda time_ms: time_ms <= upto_ms, upcoming))
