"""Whether a fact fits a state that has lost some of its history, and what must be said before it so that it does.

`State.apply` is total over facts that `decide` made, in order. Behind a hole that is no longer so: a log may be
unknown, or end too early. `why_not` names what makes a fact impossible; `ahead` gives the facts that close its gaps:
lost or saved records, things whose end was lost. `as_known` and `passed_over` do the same for deliveries. Reads state,
changes nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from driftq.core.model import facts as f
from driftq.core.model.effect_facts import Published, PublishedBatch, Staged, StagesForgotten
from driftq.core.model.facts import GroupCaughtUp, GroupIdled, LaneKey
from driftq.core.model.ranges import Range, RangeSet
from driftq.core.model.stream_facts import StreamClosed, StreamCreated, StreamDeleted, StreamTouched
from driftq.core.state.groups import DEAD_PREFIX
from driftq.core.state.logs import Log

if TYPE_CHECKING:
    from driftq.core.state.progress import Progress
    from driftq.core.state.state import State

Fill = Callable[[Log, int], Iterator[f.Fact]]  # facts that bring a log's end up to an offset
OfGroup = f.GroupSought | f.Leased | f.Extended | f.Failed | f.FailureExplained | f.Released | f.Settled

REPAIRER = "driftq repair"


class Made:
    """What the facts before this one, in the same frame, have brought about."""

    def __init__(self) -> None:
        self.logs: set[int] = set()
        self.groups: dict[int, str] = {}  # with the topic each reads
        self.ends: dict[int, int] = {}

    def note(self, fact: f.Fact) -> None:
        match fact:
            case f.TopicCreated():
                self.logs.update(range(fact.first_log_id, fact.first_log_id + 2 * fact.partitions))
            case StreamCreated():
                self.logs.add(fact.log_id)
            case f.GroupCreated():
                self.groups[fact.group_id] = fact.topic
            case f.Appended():
                self.ends[fact.log_id] = fact.first_offset + fact.count
            case _:
                pass


def why_not(state: State, fact: f.Fact, made: Made) -> str | None:
    """Why a fact cannot be folded here, or None if it can (once `ahead` is said)."""
    match fact:
        case f.TopicConfigured() | f.TopicDeleted():
            return None if fact.topic in state.topics else f"topic {fact.topic} is not known"
        case f.Appended():
            return _append(state, made, fact.log_id, fact.first_offset)
        case Staged():
            return _append(state, made, f.STAGING_LOG, fact.first_offset)
        case Published():
            return next(filter(None, (_part(state, made, part) for part in fact.parts)), None)
        case f.Trimmed():
            return _log(state, made, fact.log_id) or (
                "the log begins later already" if fact.start_offset < state.logs[fact.log_id].start else None
            )
        case f.Cancelled():
            return _log(state, made, fact.log_id)
        case StreamCreated() | StreamClosed() | StreamDeleted() | StreamTouched():
            return _stream(state, fact, made)
        case f.GroupCreated():
            topic = state.topics.get(fact.topic)
            same = topic is not None and len(topic.log_ids) == len(fact.starts)
            return None if same else f"topic {fact.topic} is not known with {len(fact.starts)} partitions"
        case f.GroupPaused() | f.GroupDeleted() | f.FilterNoted() | GroupIdled() | GroupCaughtUp():
            return None if fact.group_id in state.groups else f"group {fact.group_id} is not known"
        case f.GroupSought() | f.Leased() | f.Extended() | f.Released() | f.Settled():
            return _of_group(state, fact, made)
        case f.Failed() | f.FailureExplained():
            return _of_group(state, fact, made)
        case _:
            return None


def _log(state: State, made: Made, log_id: int) -> str | None:
    return None if log_id in state.logs or log_id in made.logs else f"log {log_id} is not known"


def _append(state: State, made: Made, log_id: int, first_offset: int) -> str | None:
    if log_id in made.logs:
        return None
    if log_id not in state.logs:
        return f"log {log_id} is not known"
    end = made.ends.get(log_id, state.logs[log_id].end)
    return f"log {log_id} ends at {end} already" if first_offset < end else None


def _part(state: State, made: Made, part: PublishedBatch) -> str | None:
    staging = state.logs[f.STAGING_LOG]
    first, end = part.staged_offset, part.staged_offset + part.count
    lost = any(low < end and first < high for low, high in staging.lost)
    if lost or first < staging.start or end > staging.end:
        return f"the staged batch at {first} is lost"
    return _append(state, made, part.log_id, part.first_offset)


def _stream(state: State, fact: StreamCreated | StreamClosed | StreamDeleted | StreamTouched, made: Made) -> str | None:
    if isinstance(fact, StreamCreated):
        if fact.source_log_id is not None and fact.source_log_id not in state.streams.by_log:
            return f"the stream that {fact.path} was forked from is not known"
        old = state.streams.by_path.get(fact.path)
        return f"another stream {fact.path} is there, with forks" if old is not None and old.forks else None
    stream = state.streams.by_log.get(fact.log_id)
    if stream is None:
        return None if fact.log_id in made.logs else f"the stream of log {fact.log_id} is not known"
    if isinstance(fact, StreamDeleted) and not fact.soft and stream.forks:
        return f"stream {stream.path} has forks"
    return None


def _of_group(state: State, fact: OfGroup, made: Made) -> str | None:
    group = state.groups.get(fact.group_id)
    topic = group.topic if group is not None else made.groups.get(fact.group_id)
    if topic is None:
        return f"group {fact.group_id} is not known"
    log = state.logs.get(fact.log_id)
    if log is None or log.topic != topic:
        return f"group {fact.group_id} does not read log {fact.log_id}"
    if group is None:
        return None
    progress = group.progress[log.partition]
    if isinstance(fact, f.Leased):
        return next(filter(None, (_lease(progress, first, end) for first, end in fact.ranges)), None)
    if isinstance(fact, f.Failed | f.FailureExplained):
        known = fact.offset in progress.entries or progress.held.lease_at(fact.offset) is not None
        return None if known else f"offset {fact.offset} was not held"
    return None


def _lease(progress: Progress, first: int, end: int) -> str | None:
    if first < progress.floor or next(progress.settled.overlapping(first, end), None) is not None:
        return f"offset {first} is settled"
    if next(progress.held.overlapping(first, end), None) is not None:
        return f"offset {first} is held by somebody else"
    entries = progress.entries_in(first, end)
    if entries and (end > first + 1 or progress.entries[first].held):
        return f"offset {entries[0]} has a history"
    return None


# --- what must be said first ---


def ahead(state: State, fact: f.Fact, fill: Fill) -> Iterator[f.Fact]:
    """The facts that must be folded before this one; `fill` closes the gap between a log's end and an offset."""
    match fact:
        case f.TopicCreated() if fact.topic in state.topics:
            both = (state.topics[fact.topic], state.topics[DEAD_PREFIX + fact.topic])
            yield f.TopicDeleted(fact.topic, tuple(log_id for topic in both for log_id in topic.log_ids))
        case StreamCreated() if fact.path in state.streams.by_path:
            yield StreamDeleted(state.streams.by_path[fact.path].log_id, soft=False)
        case f.GroupCreated():
            topic = state.topics[fact.topic]
            if fact.group in topic.groups:
                yield f.GroupDeleted(topic.groups[fact.group].group_id)
        case _:
            pass
    for log_id, offset in _named(state, fact):
        log = state.logs[log_id]
        if offset > log.end:
            yield from fill(log, offset)


def _named(state: State, fact: f.Fact) -> Iterator[Range]:
    """The logs that a fact speaks of, each with the offset that it must have reached."""
    match fact:
        case f.Appended():
            yield fact.log_id, fact.first_offset
        case f.Trimmed():
            yield fact.log_id, fact.start_offset
        case f.GroupCreated():
            yield from zip(state.topics[fact.topic].log_ids, fact.starts, strict=True)
        case f.GroupSought():
            yield fact.log_id, fact.offset
        case f.Failed() | f.FailureExplained() | f.Cancelled():
            yield fact.log_id, fact.offset + 1
        case f.Leased() | f.Extended() | f.Released() | f.Settled():
            yield fact.log_id, max((end for _, end in fact.ranges), default=0)
        case Staged():
            yield f.STAGING_LOG, fact.first_offset
        case Published():
            yield f.STAGING_LOG, fact.staging_start
            yield from ((part.log_id, part.first_offset) for part in fact.parts)
        case StagesForgotten():
            yield f.STAGING_LOG, fact.staging_start
        case _:
            pass


def passed_over(state: State, fact: f.Fact) -> Iterator[f.Fact]:
    """A delivery that jumps over fresh messages shows that theirs was lost: they come back, unseen."""
    if not isinstance(fact, f.Leased):
        return
    log = state.logs[fact.log_id]
    progress = state.progress_of(fact.group_id, fact.log_id)
    fresh = [(first, end) for first, end in fact.ranges if first not in progress.entries]
    if not fresh:
        return
    top = max(end for _, end in fresh)
    left = RangeSet()
    if fact.lane is None:
        if top > (start := max(progress.cursor, progress.floor)):
            left.add(start, top)
        for first, end in log.marked:
            left.discard(first, end)
    else:
        for offset in _lane_offsets(log, progress, LaneKey(*fact.lane), top):
            left.add(offset, offset + 1)
    for first, end in (*progress.settled, *fresh, *((low, high) for low, high, _ in progress.held)):
        left.discard(first, end)
    for offset in progress.entries:
        left.discard(offset, offset + 1)
    if left:
        back = tuple(left)
        yield f.Leased(fact.group_id, fact.log_id, back, REPAIRER, REPAIRER, fact.at_ms, fact.at_ms, fact.lane)
        yield f.Released(fact.group_id, fact.log_id, back, fact.at_ms, sent=False)


def _lane_offsets(log: Log, progress: Progress, key: LaneKey, top: int) -> Iterable[int]:
    lane = log.lanes.get(key)
    if lane is None:
        return ()
    start = max(progress.lane_cursors.get(key, 0), progress.floor)
    return lane.offsets[bisect_left(lane.offsets, start) : bisect_left(lane.offsets, top)]


def as_known(state: State, fact: f.Fact) -> list[f.Fact]:
    """The fact in terms of what is left. A lost record is not delivered; a saved one has lost its lane; and a message
    whose earlier attempts are lost is delivered for the first time, in its own lane."""
    if not isinstance(fact, f.Leased):
        return [fact]
    log = state.logs[fact.log_id]
    entries = state.progress_of(fact.group_id, fact.log_id).entries
    lanes: dict[LaneKey | None, RangeSet] = {}
    for first, end in fact.ranges:
        for offset in range(first, end):
            if offset not in log.lost:
                lane = log.lane_of(offset) if offset in log.marked and offset not in entries else None
                lanes.setdefault(lane, RangeSet()).add(offset, offset + 1)
    # Messages with a history are leased one by one, so touching ranges stay apart where the fact kept them apart.
    own = set(fact.ranges)
    return [replace(fact, ranges=_as_given(ranges, own), lane=lane) for lane, ranges in lanes.items()]


def _as_given(ranges: RangeSet, given: set[Range]) -> tuple[Range, ...]:
    """The same offsets, cut where the fact cut them."""
    cuts = sorted({first for first, _ in given} | {end for _, end in given})
    found: list[Range] = []
    for first, end in ranges:
        inside = [cut for cut in cuts if first < cut < end]
        found.extend(zip([first, *inside], [*inside, end], strict=True))
    return tuple(found)
