"""Parameter types of the command line: durations, sizes, times, message offsets and labels. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import click

from driftq.settings.quantities import parse_duration_ms, parse_size_bytes

_RUN = re.compile(r"(\d+):(\d+)(?:-(\d+))?", re.ASCII)


class Duration(click.ParamType[Any]):
    """`500ms`, `30s`, `5m`, `2h`, `7d`; becomes milliseconds. A unit is required."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        duration_ms = parse_duration_ms(value)
        if duration_ms is None:
            self.fail(f"{value!r} is not a duration; write it like 500ms, 30s, 5m, 2h or 7d", param, ctx)
        return duration_ms


class Size(click.ParamType[Any]):
    """`100`, `64kB`, `10MB`, `1GiB`; becomes bytes."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        size_bytes = parse_size_bytes(value)
        if size_bytes is None:
            self.fail(f"{value!r} is not a size; write it like 500, 64kB, 10MB or 1GiB", param, ctx)
        return size_bytes


class Moment(click.ParamType[Any]):
    """A time: RFC 3339 with a zone, or a duration before or after now; becomes RFC 3339. `words` are passed through."""

    name = "WHEN"

    def __init__(self, *, ahead: bool = False, words: tuple[str, ...] = ()) -> None:
        self._sign = 1 if ahead else -1
        self._words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in self._words:
            return str(value)
        if (duration_ms := parse_duration_ms(value)) is not None:
            at = datetime.now(UTC) + self._sign * timedelta(milliseconds=duration_ms)
            return at.isoformat(timespec="milliseconds")
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            direction = "from now" if self._sign > 0 else "ago"
            also = "".join(f", {word}" for word in self._words)
            self.fail(f"{value!r} is not a time; write 2030-01-31T12:00:00Z, or 10m ({direction}){also}", param, ctx)
        if moment.tzinfo is None:
            self.fail(f"{value!r} has no zone; write {value}Z if it is UTC", param, ctx)
        return moment.isoformat(timespec="milliseconds")


class OffsetRun(NamedTuple):
    """Consecutive messages of a partition: offsets [offset, end)."""

    partition: int
    offset: int
    end: int


class OffsetRuns(click.ParamType[Any]):
    """`PARTITION:OFFSET`, or `PARTITION:FIRST-LAST`."""

    name = "PARTITION:OFFSET"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> OffsetRun:
        if isinstance(value, OffsetRun):
            return value
        match = _RUN.fullmatch(value)
        if not match or (match[3] and int(match[3]) < int(match[2])):
            self.fail(f"{value!r} is not PARTITION:OFFSET like 0:12, or PARTITION:FIRST-LAST like 0:12-20", param, ctx)
        return OffsetRun(int(match[1]), int(match[2]), int(match[3] or match[2]) + 1)


class Pair(click.ParamType[Any]):
    """`NAME=VALUE`."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, text = value.partition("=")
        if not equals or not name:
            self.fail(f"{value!r} is not NAME=VALUE", param, ctx)
        return name, text


DURATION, SIZE, RUN, PAIR = Duration(), Size(), OffsetRuns(), Pair()
AGO, AHEAD = Moment(), Moment(ahead=True)
