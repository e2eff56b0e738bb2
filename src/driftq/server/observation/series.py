"""Time series in memory: rings of floats, one value for each step of time.

    step      ...  171  172  173  174         a step is a number: milliseconds / step_ms
    produced       4.0  4.1  nan  3.9         nan: nothing was measured in this step
    lag            0.0  2.0  nan  1.0

A `Ring` holds the last `steps_max` steps of some columns. `SeriesTable` has one ring for the totals and, in longer
steps, one for each of a bounded number of topics and groups. The bounds of all: 8,640 steps of 10 s for the totals
(about 0.7 MB), 2,880 steps of 30 s for 200 topics and 200 groups each (at most 20 MB, as they fill).

The table can be packed into bytes and restored, so that a restart continues the series. Damaged bytes are ignored: a
series is a help, not the truth.
"""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import zstandard

STEP_MS, STEPS_MAX = 10_000, 8_640
NAME_STEP_MS, NAME_STEPS_MAX = 30_000, 2_880
NAMES_MAX = 200  # topics, and as many groups
_FORMAT = 1

TOTAL_COLUMNS = (
    "produced", "produced_bytes", "delivered", "settled", "failed", "dead", "refused", "stream_records", "lag",
    "lag_seconds", "in_flight", "waiting", "dead_letters", "messages", "payload_bytes", "commit_p99_ms", "fsync_p99_ms",
    "stalls", "disk_free_bytes", "connections", "workers",
)  # fmt: skip
TOPIC_COLUMNS = ("produced", "produced_bytes", "messages", "payload_bytes", "dead_letters")
GROUP_COLUMNS = ("delivered", "settled", "failed", "lag", "lag_seconds", "in_flight", "waiting")

Name = tuple[str, ...]  # (topic,) or (topic, group)


class SeriesWindow(NamedTuple):
    """A part of a ring, in steps of its own."""

    start_ms: int
    step_ms: int
    steps: range  # the first step of the ring in each


class Ring:
    """The last steps of some columns."""

    __slots__ = ("_steps_max", "columns", "first_step", "last_step", "step_ms")

    def __init__(self, names: Iterable[str], step_ms: int, steps_max: int) -> None:
        self.columns = {name: array("f") for name in names}
        self.step_ms = step_ms
        self._steps_max = steps_max
        self.first_step = 0  # of the first value
        self.last_step = -1  # of the last value; below `first_step`: there is none

    def put(self, at_ms: int, values: Mapping[str, float]) -> None:
        """Set the values of a step. Steps between the last one and this one stay empty; an earlier step, or one after
        a jump of the clock, starts the ring again."""
        step = at_ms // self.step_ms
        if self.last_step < self.first_step or not 0 <= step - self.last_step <= self._steps_max:
            for column in self.columns.values():
                del column[:]
            self.first_step, self.last_step = step, step - 1
        missing = step - self.last_step
        for name, column in self.columns.items():
            if missing:
                column.extend([math.nan] * missing)
            column[-1] = values.get(name, math.nan)
        self.last_step = step
        excess = step - self.first_step + 1 - self._steps_max
        if excess > self._steps_max // 8:  # in few large steps: moving an array costs its length
            for column in self.columns.values():
                del column[:excess]
            self.first_step += excess

    def window(self, from_ms: int, until_ms: int, points: int) -> SeriesWindow:
        """The steps from `from_ms` to `until_ms`. Neighbouring steps are averaged so that there are at most `points`
        of them, or one more."""
        last = min(until_ms // self.step_ms, self.last_step)
        first = max(from_ms // self.step_ms, self.first_step, last - self._steps_max + 1)
        width = max(1, -(-(last - first + 1) // points))
        first -= first % width  # so that a later call has the same boundaries
        return SeriesWindow(first * self.step_ms, width * self.step_ms, range(first, last + 1, width))

    def values(self, name: str, window: SeriesWindow) -> list[float | None]:
        column, width = self.columns[name], window.step_ms // self.step_ms
        return [_mean(column, step - self.first_step, width) for step in window.steps]

    def packed(self) -> tuple[int, dict[str, bytes]]:
        return self.first_step, {name: column.tobytes() for name, column in self.columns.items()}

    def restore(self, first_step: int, columns: Mapping[str, bytes]) -> None:
        """Take over packed values. Columns that are missing are empty."""
        length = max((len(data) // 4 for data in columns.values()), default=0)
        for name in self.columns:
            column = array("f", columns.get(name, b""))
            column.extend([math.nan] * (length - len(column)))
            self.columns[name] = column[-self._steps_max :]
        self.first_step = first_step + max(0, length - self._steps_max)
        self.last_step = first_step + length - 1


def _mean(column: array[float], first: int, width: int) -> float | None:
    values = [value for value in column[max(0, first) : max(0, first + width)] if not math.isnan(value)]
    return round(sum(values) / len(values), 3) if values else None


class SeriesTable:
    """The series of one broker."""

    def __init__(self, names_max: int = NAMES_MAX) -> None:
        self._names_max = names_max
        self.totals = Ring(TOTAL_COLUMNS, STEP_MS, STEPS_MAX)
        self.topics: dict[Name, Ring] = {}
        self.groups: dict[Name, Ring] = {}

    def put_topics(self, at_ms: int, rows: Mapping[Name, Mapping[str, float]]) -> None:
        self._put(self.topics, TOPIC_COLUMNS, at_ms, rows)

    def put_groups(self, at_ms: int, rows: Mapping[Name, Mapping[str, float]]) -> None:
        self._put(self.groups, GROUP_COLUMNS, at_ms, rows)

    def _put(
        self, rings: dict[Name, Ring], columns: tuple[str, ...], at_ms: int, rows: Mapping[Name, Mapping[str, float]]
    ) -> None:
        """Names that are gone lose their series. While there is room, every name gets one; then one that does
        something takes the place of one that does nothing."""
        for name in [name for name in rings if name not in rows]:
            del rings[name]
        for name, values in rows.items():
            ring = rings.get(name)
            if ring is None:
                if len(rings) >= self._names_max and not (_is_active(values) and _drop_quiet(rings, rows)):
                    continue
                ring = rings[name] = Ring(columns, NAME_STEP_MS, NAME_STEPS_MAX)
            ring.put(at_ms, values)

    # --- on disk ---

    def pack(self) -> bytes:
        """Everything, uncompressed. `seal` makes a file of it, on any thread."""
        document: dict[str, Any] = {
            "format": _FORMAT,
            "totals": self.totals.packed(),
            "topics": [(name, *ring.packed()) for name, ring in self.topics.items()],
            "groups": [(name, *ring.packed()) for name, ring in self.groups.items()],
        }
        return msgspec.msgpack.encode(document)

    def restore(self, data: bytes) -> bool:
        """Take over a sealed file. False if it is damaged, or of another version: then nothing is changed."""
        try:
            document = _decode(data)
            totals = Ring(TOTAL_COLUMNS, STEP_MS, STEPS_MAX)
            totals.restore(*document.totals)
            topics = _restored(document.topics, TOPIC_COLUMNS, self._names_max)
            groups = _restored(document.groups, GROUP_COLUMNS, self._names_max)
        except (ValueError, zstandard.ZstdError, msgspec.MsgspecError):
            return False
        self.totals, self.topics, self.groups = totals, topics, groups
        return True


class _SeriesFile(msgspec.Struct):
    format: int
    totals: tuple[int, dict[str, bytes]]
    topics: list[tuple[Name, int, dict[str, bytes]]]
    groups: list[tuple[Name, int, dict[str, bytes]]]


def seal(packed: bytes) -> bytes:
    """The bytes of a file: a checksum, then the compressed series."""
    body = zstandard.ZstdCompressor(level=1).compress(packed)
    return zlib.crc32(body).to_bytes(4, "little") + body


def _decode(data: bytes) -> _SeriesFile:
    if zlib.crc32(data[4:]) != int.from_bytes(data[:4], "little"):
        raise ValueError("the checksum is wrong")
    body = zstandard.ZstdDecompressor().decompress(data[4:], max_output_size=256 << 20)
    document = msgspec.msgpack.decode(body, type=_SeriesFile)
    if document.format != _FORMAT:
        raise ValueError(f"format {document.format} is not known")
    return document


def _restored(
    saved: list[tuple[Name, int, dict[str, bytes]]], columns: tuple[str, ...], names_max: int
) -> dict[Name, Ring]:
    rings: dict[Name, Ring] = {}
    for name, first_step, data in saved[:names_max]:
        rings[name] = Ring(columns, NAME_STEP_MS, NAME_STEPS_MAX)
        rings[name].restore(first_step, data)
    return rings


def _is_active(values: Mapping[str, float]) -> bool:
    return any(values.get(name) for name in ("produced", "delivered", "settled", "failed", "lag"))


def _drop_quiet(rings: dict[Name, Ring], rows: Mapping[Name, Mapping[str, float]]) -> bool:
    """Make room: drop the first series whose topic or group does nothing now."""
    for name in rings:
        if not _is_active(rows[name]):
            del rings[name]
            return True
    return False
