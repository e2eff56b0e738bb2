"""The offset planner: how far a query has read, how far it reads next, and which task reads what. Pure.

Theory of operation. Spark calls the planner through the stream reader, once for each micro-batch:

      checkpoint                       broker
    start: ReadProgress           spans: [LogSpan]
          |                              |
          +---------> data_losses <------+     what was read before and is gone now: fail, or accept it
          |                              |     (`log_history` compares what was seen of each log, after a restart)
          |                              |
          +---------> plan_end <---------+     limits: maxOffsetsPerTrigger, maxBytesPerTrigger, minPartitions
                         |
                   end: ReadProgress  -------> Spark writes it to the checkpoint *before* the batch runs
                         |
    start -----> plan_tasks(start, end) -----> [OffsetRange, …], some for each task

1. `plan_end` looks at the broker and at the options. All that it decides is in the `ReadProgress` that it returns: the
   end offset of each log, the number of splits and of tasks, and the logs that do not start where the last batch
   ended.
2. `plan_tasks` looks at nothing but the two values. When a batch is run again, after a crash, with other options or
   with other data in the broker, it is cut into the same ranges as the first time. Exactly-once writing depends on
   this: the same batch number has the same rows.
3. Limits are shared evenly between the logs (`share_limit`). What does not divide evenly goes to a different log in
   each batch, so that no log starves.

A batch read uses the same functions with the end that its options name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

VERSION = 1
TASKS_MAX = 10_000
SHARED_TASKS_MIN = 4  # fewer ranges than this never share a task
SHARED_TASK_BYTES = 4 << 20  # a task with this much is worth its cost
UNKNOWN_RECORD_BYTES = 1_024  # for logs whose sizes the broker does not report (streams)
LAG_LOGS_MAX = 1_000  # logs in a progress report

LogName = tuple[str, int]  # topic and partition; a stream is its path and 0
Offsets = dict[LogName, int]


class BadCheckpoint(ValueError):
    """The checkpoint holds something this version cannot read."""


class SeenBatch(NamedTuple):
    """The batch that was the last one of a log: the offset after it, and what identifies it."""

    end: int
    identity: str


class ReadProgress(NamedTuple):
    """How far a query has read: the value that Spark keeps in the checkpoint as JSON."""

    # For each log the offset after the last one that was read.
    offsets: Offsets
    # About how many tasks the batch that ends here is cut into; 0 is one for each log.
    splits: int = 0
    # Logs that the batch that ends here does not read from where the batch before it ended: new logs, and logs where
    # records were lost and the loss was accepted.
    start_overrides: Offsets = {}  # noqa: RUF012  # never changed
    # When each topic was created: distinguishes a topic from a later one with the same name.
    created: Mapping[str, str] = {}
    # The last batch of each log when this was planned: distinguishes a log from one that was restored from an older
    # copy and has grown again.
    seen: Mapping[LogName, SeenBatch] = {}
    # About how many tasks the batch that ends here may have: if it has more ranges, small ones share a task. 0 is a
    # task for each range, as in checkpoints of older versions.
    tasks: int = 0


class LogSpan(NamedTuple):
    """What the broker holds of a log now."""

    topic: str
    partition: int
    start: int
    end: int
    record_bytes: float = 0.0  # average size of a record; 0 when it is not known
    created_at: str = ""
    last: SeenBatch | None = None  # its last batch; None if the broker does not report it
    instance: str = ""  # changes when the broker is started again

    @property
    def log(self) -> LogName:
        return self.topic, self.partition


class OffsetRange(NamedTuple):
    """What one task reads: [start, end) of a log, of the topic that was created at `created_at`."""

    topic: str
    partition: int
    start: int
    end: int
    created_at: str = ""

    @property
    def size(self) -> int:
        return self.end - self.start


class TriggerLimits(NamedTuple):
    """How much one micro-batch may read, and how it is cut into tasks."""

    offsets_max: int | None = None
    bytes_max: int | None = None
    partitions_min: int = 0
    partition_bytes: int = 64 << 20


# --- the end of the next batch ----------------------------------------------------------------------------------------


def data_losses(start: ReadProgress, spans: Sequence[LogSpan]) -> dict[LogName, str]:
    """The logs that cannot be read on from where the query is, each with a sentence that says why."""
    span_of = {span.log: span for span in spans}
    losses: dict[LogName, str] = {}
    for log, offset in start.offsets.items():
        span = span_of.get(log)
        name = f"{log[0]}/{log[1]}"
        if span is None:
            losses[log] = f"{name} was read up to offset {offset} and no longer exists"
        elif start.created.get(log[0], span.created_at) != span.created_at:
            losses[log] = f"{name} was deleted and created again at {span.created_at}; another topic was read before"
        elif offset < span.start:
            losses[log] = f"offsets {offset} to {span.start - 1} of {name} are gone (retention, or a trim)"
        elif offset > span.end:
            losses[log] = f"{name} was read up to offset {offset} and ends at {span.end} now: records were lost"
    return losses


def plan_end(start: ReadProgress, spans: Sequence[LogSpan], limits: TriggerLimits) -> ReadProgress:
    """How far the next batch reads: as far as there are records and the limits allow. `start` itself if nothing is new.

    Losses count as accepted: a log that is gone is left out, one that starts later is read from there.
    """
    overrides = _start_overrides(start, spans)
    first = {span.log: overrides.get(span.log, start.offsets.get(span.log, 0)) for span in spans}
    available = {span.log: span.end - first[span.log] for span in spans}
    record_bytes = {span.log: max(1.0, span.record_bytes) for span in spans}
    counts = _apply_limits(available, record_bytes, limits, rotation=sum(first.values()))
    offsets = {log: first[log] + counts[log] for log in first}
    if offsets == start.offsets and not any(counts.values()):
        return start
    size_bytes = sum(counts[log] * record_bytes[log] for log in counts)
    splits = max(limits.partitions_min, -int(-size_bytes // limits.partition_bytes))
    created = {span.topic: span.created_at for span in spans if span.created_at}
    seen = seen_batches(spans, start.seen)
    is_split = splits > sum(map(bool, counts.values()))  # ranges that were cut on purpose share no task
    tasks = 0 if is_split else _task_count(counts, spans, limits)
    return ReadProgress(offsets, min(splits, TASKS_MAX), overrides, created, seen, tasks)


def _task_count(counts: Mapping[LogName, int], spans: Sequence[LogSpan], limits: TriggerLimits) -> int:
    """How many tasks are worth their cost: one for each few megabytes, and some for all cores of a small machine."""
    size_bytes = sum(counts[span.log] * (span.record_bytes or UNKNOWN_RECORD_BYTES) for span in spans)
    worth = max(SHARED_TASKS_MIN, -int(-size_bytes // min(SHARED_TASK_BYTES, limits.partition_bytes)))
    return min(TASKS_MAX, max(limits.partitions_min, worth))


def seen_batches(spans: Sequence[LogSpan], before: Mapping[LogName, SeenBatch]) -> dict[LogName, SeenBatch]:
    """The last batch of each log, or the one that was seen before if the broker does not report it now."""
    seen = {span.log: span.last or before.get(span.log) for span in spans}
    return {log: batch for log, batch in seen.items() if batch is not None}


def _start_overrides(start: ReadProgress, spans: Sequence[LogSpan]) -> Offsets:
    """Logs that are read from their start instead of from where the query is."""
    lost = data_losses(start, spans)
    return {span.log: span.start for span in spans if span.log not in start.offsets or span.log in lost}


def clamp_to_target(spans: Sequence[LogSpan], target: Sequence[LogSpan]) -> list[LogSpan]:
    """The spans without what was written after `target` was taken (Trigger.AvailableNow)."""
    ends = {(span.log, span.created_at): span.end for span in target}
    clamped = []
    for span in spans:
        end = ends.get((span.log, span.created_at))
        if end is not None:
            clamped.append(span._replace(end=min(span.end, end), start=min(span.start, end)))
    return clamped


def _apply_limits(
    available: Mapping[LogName, int], record_bytes: Mapping[LogName, float], limits: TriggerLimits, rotation: int
) -> dict[LogName, int]:
    """How many records to read from each log."""
    counts = dict(available)
    if limits.offsets_max is not None:
        counts = share_limit(counts, limits.offsets_max, rotation)
    if limits.bytes_max is not None:
        sizes = {log: int(count * record_bytes[log]) for log, count in counts.items()}
        shares = share_limit(sizes, limits.bytes_max, rotation)
        fewer = {log: min(counts[log], int(shares[log] / record_bytes[log])) for log in counts}
        if not any(fewer.values()):
            # A record that is larger than the limit is read alone; otherwise the query would never get past it.
            fewer = share_limit(counts, 1, rotation)
        counts = fewer
    return counts


def share_limit(demand: Mapping[LogName, int], limit: int, rotation: int) -> dict[LogName, int]:
    """Divide `limit` evenly between the logs, none of which gets more than its demand. What does not divide evenly
    goes to the logs after `rotation`, which changes with every batch, so that no log starves."""
    shares = dict.fromkeys(demand, 0)
    left = limit
    open_logs = sorted(log for log, count in demand.items() if count > 0)
    while left > 0 and open_logs:
        share = left // len(open_logs)
        if share == 0:
            first = rotation % len(open_logs)
            for log in (open_logs[first:] + open_logs[:first])[:left]:
                shares[log] += 1
            return shares
        for log in open_logs:
            more = min(share, demand[log] - shares[log])
            shares[log] += more
            left -= more
        open_logs = [log for log in open_logs if shares[log] < demand[log]]
    return shares


# --- the tasks of a batch ---------------------------------------------------------------------------------------------


def plan_tasks(start: ReadProgress, end: ReadProgress) -> list[tuple[OffsetRange, ...]]:
    """What each task reads between two values of progress. Depends on nothing else."""
    return share_tasks(plan_ranges(start, end), end.tasks)


def share_tasks(ranges: Sequence[OffsetRange], tasks: int) -> list[tuple[OffsetRange, ...]]:
    """Ranges in order, neighbours together, so that there are at most `tasks` tasks of about the same size. A range
    is not cut here, so a large one makes a large task."""
    if not tasks or len(ranges) <= tasks:
        return [(alone,) for alone in ranges]
    total = sum(piece.size for piece in ranges)
    shares: dict[int, list[OffsetRange]] = {}
    before = 0
    for piece in ranges:
        middle = 2 * before + piece.size  # doubled
        shares.setdefault(middle * tasks // (2 * total), []).append(piece)
        before += piece.size
    return [tuple(share) for share in shares.values()]


def plan_ranges(start: ReadProgress, end: ReadProgress) -> list[OffsetRange]:
    """The ranges between two values of progress, cut if they are large."""
    if start == end:
        return []  # the overrides in it belong to the batch that ended there
    ranges = [
        OffsetRange(log[0], log[1], first, last, end.created.get(log[0], ""))
        for log, last in sorted(end.offsets.items())
        if (first := end.start_overrides.get(log, start.offsets.get(log, 0))) < last
    ]
    return split_ranges(ranges, end.splits)


def split_ranges(ranges: Sequence[OffsetRange], splits: int) -> list[OffsetRange]:
    """Cut ranges into about `splits` pieces of about the same size; each range yields at least one."""
    if splits <= len(ranges):
        return list(ranges)
    total = sum(whole.size for whole in ranges)
    pieces: list[OffsetRange] = []
    for whole in ranges:
        parts = max(1, min(whole.size, (whole.size * splits + total // 2) // total))
        for part in range(parts):
            first = whole.start + whole.size * part // parts
            last = whole.start + whole.size * (part + 1) // parts
            pieces.append(whole._replace(start=first, end=last))
    return pieces


# --- the form in the checkpoint ---------------------------------------------------------------------------------------


def to_json(progress: ReadProgress) -> dict[str, Any]:
    """The value as Spark keeps it. The names in it are part of the checkpoint's format."""
    tree: dict[str, Any] = {"version": VERSION, "offsets": _nested(progress.offsets), "splits": progress.splits}
    if progress.start_overrides:
        tree["begins"] = _nested(progress.start_overrides)
    if progress.created:
        tree["made"] = dict(sorted(progress.created.items()))
    if progress.seen:
        tree["seen"] = _nested(progress.seen)
    if progress.tasks:
        tree["tasks"] = progress.tasks
    return tree


def from_json(tree: Mapping[str, Any]) -> ReadProgress:
    """The opposite of `to_json`. Raises `BadCheckpoint`."""
    if tree.get("version") != VERSION:
        raise BadCheckpoint(
            f"the checkpoint has offsets of version {tree.get('version')!r}, this driftq reads version {VERSION}; "
            "was it written by another source, or by a newer driftq?"
        )
    seen = {
        (topic, int(partition)): SeenBatch(int(batch[0]), str(batch[1]))
        for topic, batches in tree.get("seen", {}).items()
        for partition, batch in batches.items()
    }
    return ReadProgress(
        _flat(tree["offsets"]),
        int(tree.get("splits", 0)),
        _flat(tree.get("begins", {})),
        tree.get("made", {}),
        seen,
        int(tree.get("tasks", 0)),
    )


def _nested(by_log: Mapping[LogName, Any]) -> dict[str, dict[str, Any]]:
    tree: dict[str, dict[str, Any]] = {}
    for (topic, partition), value in sorted(by_log.items()):
        tree.setdefault(topic, {})[str(partition)] = value
    return tree


def _flat(tree: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {(topic, int(partition)): int(o) for topic, offsets in tree.items() for partition, o in offsets.items()}


# --- starting and ending offsets from options -------------------------------------------------------------------------


def resolve_offsets(
    requested: int | Mapping[LogName, int], spans: Sequence[LogSpan], name: str, refuse: Callable[[str], Exception]
) -> Offsets:
    """The offsets that an option names: earliest (-2), latest (-1), or a number for each log."""
    if isinstance(requested, int):
        return {span.log: span.start if requested == -2 else span.end for span in spans}
    span_of = {span.log: span for span in spans}
    unknown, missing = sorted(requested.keys() - span_of.keys()), sorted(span_of.keys() - requested.keys())
    if unknown or missing:
        wrong = f"names {_listed(unknown)}, which are not read" if unknown else f"does not name {_listed(missing)}"
        raise refuse(f"{name} {wrong}; it must name every partition that is read (-2 earliest, -1 latest)")
    resolved: Offsets = {}
    for log, offset in requested.items():
        span = span_of[log]
        if offset > span.end:
            raise refuse(f"{name}: {log[0]}/{log[1]} ends at {span.end}, before {offset}")
        resolved[log] = {-2: span.start, -1: span.end}.get(offset, offset)
    return resolved


def _listed(logs: Sequence[LogName]) -> str:
    return ", ".join(f"{topic}/{partition}" for topic, partition in logs)


# --- lag --------------------------------------------------------------------------------------------------------------


def positions(progress: ReadProgress, spans: Sequence[LogSpan]) -> Offsets:
    """For each log that exists, where the query reads on."""
    overrides = _start_overrides(progress, spans)
    return {span.log: overrides.get(span.log, progress.offsets.get(span.log, span.start)) for span in spans}


def unread_ranges(progress: ReadProgress, spans: Sequence[LogSpan]) -> list[OffsetRange]:
    """What the query has not read yet, the longest range first."""
    first = positions(progress, spans)
    ranges = [OffsetRange(span.topic, span.partition, first[span.log], span.end) for span in spans]
    return sorted((unread for unread in ranges if unread.size > 0), key=lambda unread: -unread.size)


def lag(progress: ReadProgress, spans: Sequence[LogSpan]) -> int:
    """How many records the query has not read yet."""
    return sum(unread.size for unread in unread_ranges(progress, spans))


def lag_report(unread: Sequence[OffsetRange], oldest_s: float) -> dict[str, Any]:
    """The lag in the progress of a query: in all, the age of the oldest record, and for the longest ranges by log."""
    by_log = {(log.topic, log.partition): log.size for log in unread[:LAG_LOGS_MAX]}
    return {"offsets": sum(log.size for log in unread), "seconds": oldest_s, "logs": _nested(by_log)}
