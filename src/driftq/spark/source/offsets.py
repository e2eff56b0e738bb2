"""The planner: how far a query has read, how far it reads next, and which task reads what. Pure.

What Spark keeps in the checkpoint is a `Reached`. Everything that decides how the range between two of them is cut
into tasks is inside the second one, so that a batch that is run again, after a restart with other options or with
other things in the broker, is cut exactly as it was the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

VERSION = 1
TASKS_MAX = 10_000

LogName = tuple[str, int]  # topic and partition; a stream is its path and 0
Offsets = dict[LogName, int]


class BadCheckpoint(ValueError):
    """The checkpoint holds something this version cannot read."""


class Reached(NamedTuple):
    """How far a query has read. `offsets` are the next to be read.

    `begins` are logs that the step to here begins elsewhere than where the last one ended: new ones, and those where
    records were lost and the loss was accepted. `made` tells a topic from another one that took its name later.
    """

    offsets: Offsets
    splits: int = 0
    begins: Offsets = {}  # noqa: RUF012  # nobody changes it
    made: Mapping[str, str] = {}


class LogSpan(NamedTuple):
    """What the broker holds of a log."""

    topic: str
    partition: int
    start: int
    end: int
    record_bytes: float = 0.0
    made: str = ""

    @property
    def log(self) -> LogName:
        return self.topic, self.partition


class OffsetRange(NamedTuple):
    """What one task reads: [start, end) of a log, of the topic that was made then."""

    topic: str
    partition: int
    start: int
    end: int
    made: str = ""


class TriggerLimits(NamedTuple):
    """How much one step may take."""

    offsets_max: int | None = None
    bytes_max: int | None = None
    partitions_min: int = 0
    partition_bytes: int = 64 << 20


# --- the checkpointed form --------------------------------------------------------------------------------------------


def to_json(reached: Reached) -> dict[str, Any]:
    """As Spark keeps it."""
    told: dict[str, Any] = {"version": VERSION, "offsets": nested(reached.offsets), "splits": reached.splits}
    if reached.begins:
        told["begins"] = nested(reached.begins)
    if reached.made:
        told["made"] = dict(sorted(reached.made.items()))
    return told


def from_json(told: Mapping[str, Any]) -> Reached:
    if told.get("version") != VERSION:
        raise BadCheckpoint(
            f"the checkpoint has offsets of version {told.get('version')!r}, this driftq reads version {VERSION}; "
            "was it made by another source, or by a newer driftq?"
        )
    return Reached(
        flat(told["offsets"]), int(told.get("splits", 0)), flat(told.get("begins", {})), told.get("made", {})
    )


def nested(offsets: Mapping[LogName, int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def flat(told: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {(topic, int(partition)): int(o) for topic, offsets in told.items() for partition, o in offsets.items()}


# --- stepping ---------------------------------------------------------------------------------------------------------


def losses(reached: Reached, spans: Sequence[LogSpan]) -> dict[LogName, str]:
    """What should be read and is not there (any more), as sentences."""
    held = {span.log: span for span in spans}
    found: dict[LogName, str] = {}
    for log, offset in reached.offsets.items():
        span = held.get(log)
        name = f"{log[0]}/{log[1]}"
        if span is None:
            found[log] = f"{name} was read up to offset {offset} and is not there any more"
        elif reached.made.get(log[0], span.made) != span.made:
            found[log] = f"{name} was deleted and made again at {span.made}; what was read before is another topic"
        elif offset < span.start:
            found[log] = f"offsets {offset} to {span.start - 1} of {name} are gone (retention, or a trim)"
        elif offset > span.end:
            found[log] = f"{name} was read up to offset {offset} and ends at {span.end} now: records were lost"
    return found


def step(reached: Reached, spans: Sequence[LogSpan], limits: TriggerLimits) -> Reached:
    """How far to read next: as far as there is something and the limits allow. The same `Reached` if nothing is new.

    Losses are taken as accepted: a log that is gone is left out, one that begins later is read from there.
    """
    begins = _begins(reached, spans)
    first = {span.log: begins.get(span.log, reached.offsets.get(span.log, 0)) for span in spans}
    available = {span.log: span.end - first[span.log] for span in spans}
    record_bytes = {span.log: max(1.0, span.record_bytes) for span in spans}
    taken = _limited(available, record_bytes, limits, sum(first.values()))
    offsets = {log: first[log] + taken[log] for log in first}
    if offsets == reached.offsets and not any(taken.values()):
        return reached
    size_bytes = sum(taken[log] * record_bytes[log] for log in taken)
    splits = max(limits.partitions_min, -int(-size_bytes // limits.partition_bytes))
    return Reached(offsets, min(splits, TASKS_MAX), begins, {span.topic: span.made for span in spans if span.made})


def _begins(reached: Reached, spans: Sequence[LogSpan]) -> Offsets:
    """Logs that are not read on from where they were left."""
    lost = losses(reached, spans)
    return {span.log: span.start for span in spans if span.log not in reached.offsets or span.log in lost}


def up_to(spans: Sequence[LogSpan], target: Sequence[LogSpan]) -> list[LogSpan]:
    """What is there now of what was there when `target` was taken: nothing that came later."""
    ends = {(span.log, span.made): span.end for span in target}
    return [
        span._replace(end=min(span.end, ends[span.log, span.made]), start=min(span.start, ends[span.log, span.made]))
        for span in spans
        if (span.log, span.made) in ends
    ]


def _limited(
    available: Mapping[LogName, int], record_bytes: Mapping[LogName, float], limits: TriggerLimits, turn: int
) -> dict[LogName, int]:
    taken = dict(available)
    if limits.offsets_max is not None:
        taken = shared(taken, limits.offsets_max, turn)
    if limits.bytes_max is not None:
        wanted = {log: int(count * record_bytes[log]) for log, count in taken.items()}
        rooms = shared(wanted, limits.bytes_max, turn)
        fewer = {log: min(taken[log], int(rooms[log] / record_bytes[log])) for log in taken}
        if not any(fewer.values()):
            # A record that is larger than the limit is read alone: standing still is no way to obey.
            fewer = shared(taken, 1, turn)
        taken = fewer
    return taken


def shared(wanted: Mapping[LogName, int], limit: int, turn: int) -> dict[LogName, int]:
    """Give out `limit`, the same to everyone, except that nobody gets more than wanted. What does not divide goes to
    whose turn it is; `turn` moves on with what was read, so that none is passed over for ever."""
    given = dict.fromkeys(wanted, 0)
    left = limit
    open_logs = sorted(log for log, want in wanted.items() if want > 0)
    while left > 0 and open_logs:
        share = left // len(open_logs)
        if share == 0:
            begin = turn % len(open_logs)
            for log in (open_logs[begin:] + open_logs[:begin])[:left]:
                given[log] += 1
            return given
        for log in open_logs:
            more = min(share, wanted[log] - given[log])
            given[log] += more
            left -= more
        open_logs = [log for log in open_logs if given[log] < wanted[log]]
    return given


# --- cutting ----------------------------------------------------------------------------------------------------------


def ranges(start: Reached, end: Reached) -> list[OffsetRange]:
    """What lies between two places, cut for tasks. Depends on nothing but the two."""
    if start == end:
        return []  # what the last step began elsewhere is not begun again
    whole = [
        OffsetRange(log[0], log[1], first, last, end.made.get(log[0], ""))
        for log, last in sorted(end.offsets.items())
        if (first := end.begins.get(log, start.offsets.get(log, 0))) < last
    ]
    return cut(whole, end.splits)


def cut(whole: Sequence[OffsetRange], splits: int) -> list[OffsetRange]:
    """Cut ranges into about `splits` pieces of about one size; each range gives at least one."""
    if splits <= len(whole):
        return list(whole)
    total = sum(each.end - each.start for each in whole)
    found: list[OffsetRange] = []
    for each in whole:
        count = each.end - each.start
        pieces = max(1, min(count, (count * splits + total // 2) // total))
        for piece in range(pieces):
            first, last = each.start + count * piece // pieces, each.start + count * (piece + 1) // pieces
            found.append(each._replace(start=first, end=last))
    return found


# --- where to begin and to end ----------------------------------------------------------------------------------------


def resolved(
    asked: int | Mapping[LogName, int], spans: Sequence[LogSpan], name: str, refuse: Callable[[str], Exception]
) -> Offsets:
    """Offsets for what an option says: earliest (-2), latest (-1), or a number for each log."""
    if isinstance(asked, int):
        return {span.log: span.start if asked == -2 else span.end for span in spans}
    held = {span.log: span for span in spans}
    unknown, missing = sorted(asked.keys() - held.keys()), sorted(held.keys() - asked.keys())
    if unknown or missing:
        wrong = f"names {_listed(unknown)}, which are not read" if unknown else f"does not name {_listed(missing)}"
        raise refuse(f"{name} {wrong}; it has to name every partition that is read (-2 earliest, -1 latest)")
    found: Offsets = {}
    for log, offset in asked.items():
        span = held[log]
        if offset > span.end:
            raise refuse(f"{name}: {log[0]}/{log[1]} ends at {span.end}, before {offset}")
        found[log] = {-2: span.start, -1: span.end}.get(offset, offset)
    return found


def _listed(logs: Sequence[LogName]) -> str:
    return ", ".join(f"{topic}/{partition}" for topic, partition in logs)


def waiting(reached: Reached, spans: Sequence[LogSpan]) -> list[OffsetRange]:
    """What lies ahead of a query, most first."""
    first = reached.offsets | _begins(reached, spans)
    ahead = [OffsetRange(span.topic, span.partition, first[span.log], span.end) for span in spans]
    return sorted((each for each in ahead if each.start < each.end), key=lambda each: each.start - each.end)


def behind(reached: Reached, spans: Sequence[LogSpan]) -> int:
    """How many records lie ahead of a query."""
    return sum(each.end - each.start for each in waiting(reached, spans))
