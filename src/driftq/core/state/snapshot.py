"""Snapshots: the state as facts, and the fold of these facts into an empty state.

`restore(snapshot(state)) == state` is an invariant. The order of the facts matters: a topic before its logs, a group
before its progress.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from driftq.core.model import snapshot_facts as i
from driftq.core.model.stream_facts import StreamCreated
from driftq.core.state.logs import Log
from driftq.core.state.progress import Progress
from driftq.core.state.streams import StreamRecord

if TYPE_CHECKING:
    from driftq.core.model.facts import Fact
    from driftq.core.model.ranges import Range
    from driftq.core.state.leases import Lease
    from driftq.core.state.state import State

SETTLED_FEW = 1_000  # up to so many settled ranges are in `CursorState`; more are in `SettledState`
SETTLED_AT_ONCE = 65_536
STREAMS_AT_ONCE = 1_000


def snapshot_facts(state: State) -> Iterator[Fact]:
    """Facts that rebuild this state."""
    yield i.NumbersState(
        state.next_log_id, state.next_group_id, state.next_fence, state.last_ms, state.schedules.next_number
    )
    yield from state.tenants.snapshot()
    for topic in state.topics.values():
        yield i.TopicState(topic.name, topic.log_ids, topic.created_ms, topic.config, topic.dead_of)
    streams = state.streams.in_order()
    plain = [stream for stream in streams if stream.is_plain() and state.logs[stream.log_id].is_plain()]
    for at in range(0, len(plain), STREAMS_AT_ONCE):
        yield _plain_streams(state, plain[at : at + STREAMS_AT_ONCE])
    plain_ids = {stream.log_id for stream in plain}
    for stream in streams:
        if stream.log_id not in plain_ids:
            yield stream.snapshot()
    for log_id, log in sorted(state.logs.items()):
        if log_id not in plain_ids:
            yield log.snapshot()
        yield from log.producers.snapshot(log_id)
    for group in state.groups.values():
        yield i.GroupState(
            group.group_id, group.topic, group.name, group.created_ms, group.paused, group.turn,
            tuple(group.filters), group.active_ms, group.idle, group.commits_offsets,
        )  # fmt: skip
        for progress in group.progress:
            yield from _progress_facts(progress)
    yield from state.keys.snapshot()
    yield from state.effects.snapshot()
    yield from state.outcomes.snapshot()
    yield from state.results.snapshot()
    yield from state.reports.snapshot()
    yield from state.job_batches.snapshot()
    yield from state.stages.snapshot()
    yield from state.job_attempts.snapshot()
    yield from state.subscriptions.snapshot()
    yield from state.access_tokens.snapshot()
    yield from state.schedules.snapshot()


def _plain_streams(state: State, streams: list[StreamRecord]) -> i.PlainStreamsState:
    logs = [state.logs[stream.log_id] for stream in streams]
    types = {content_type: number for number, content_type in enumerate(_types(streams))}
    return i.PlainStreamsState(
        tuple(stream.path for stream in streams),
        tuple(types),
        array("I", (types[stream.created.content_type] for stream in streams)).tobytes(),
        array("q", (log.log_id for log in logs)).tobytes(),
        array("q", (stream.created.at_ms for stream in streams)).tobytes(),
        array("q", (stream.touched_ms for stream in streams)).tobytes(),
        array("q", (log.start for log in logs)).tobytes(),
        array("q", (log.end for log in logs)).tobytes(),
        array("q", (log.payload_bytes for log in logs)).tobytes(),
        array("q", (log.last_ms for log in logs)).tobytes(),
    )


def _types(streams: list[StreamRecord]) -> dict[str, None]:
    """The content types, each once, in the order of their first stream."""
    return dict.fromkeys(stream.created.content_type for stream in streams)


def _progress_facts(progress: Progress) -> Iterator[Fact]:
    few = len(progress.settled) <= SETTLED_FEW
    yield i.CursorState(
        progress.group_id, progress.log_id, progress.floor, progress.cursor, progress.fresh_version,
        progress.top_version, tuple((*key, cursor) for key, cursor in progress.lane_cursors.items()),
        tuple(progress.settled) if few else (), tuple(progress.ready), tuple(progress.turns.items()),
        tuple(progress.dead),
        progress.retry_debt,
    )  # fmt: skip
    if not few:
        for firsts, ends in progress.settled.packed(SETTLED_AT_ONCE):
            yield i.SettledState(progress.group_id, progress.log_id, firsts, ends)
    ranges: dict[Lease, list[Range]] = {}
    for first, end, lease in progress.held:
        ranges.setdefault(lease, []).append((first, end))
    for lease, held in ranges.items():
        yield i.HeldState(
            progress.group_id, progress.log_id, tuple(held), lease.owner, lease.token, lease.at_ms, lease.until_ms
        )
    for offset in sorted(progress.entries):
        yield progress.entries[offset].snapshot(progress.group_id, progress.log_id, offset)


class SnapshotRestore:
    """Folds snapshot facts into a state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._types: dict[str, str] = {}  # content types of streams
        self.folds: dict[type, Callable[[Any], None]] = {
            i.NumbersState: self._numbers,
            i.TopicState: self._topic,
            i.LogState: self._log,
            i.ProducerEntryState: self._producer,
            i.StreamState: self._stream,
            i.PlainStreamsState: self._plain_streams,
            i.GroupState: self._group,
            i.CursorState: self._cursor,
            i.SettledState: self._settled,
            i.HeldState: self._held,
            i.EntryState: self._entry,
            i.KeyState: self._key,
            i.EffectState: state.effects.restore,
            i.StageState: self._stage,
            i.WriterState: state.stages.restore_writer,
            i.HistoryState: state.job_attempts.restore,
        }

    def _numbers(self, fact: i.NumbersState) -> None:
        state = self._state
        state.next_log_id, state.next_group_id = fact.next_log_id, fact.next_group_id
        state.next_fence, state.last_ms = fact.next_fence, fact.at_ms
        state.schedules.next_number = fact.next_schedule

    def _topic(self, fact: i.TopicState) -> None:
        log_ids = range(fact.log_ids[0], fact.log_ids[-1] + 1)
        self._state.add_topic(fact.topic, log_ids, fact.created_ms, fact.config, fact.dead_of)

    def _log(self, fact: i.LogState) -> None:
        self._state.logs[fact.log_id].restore(fact)

    def _producer(self, fact: i.ProducerEntryState) -> None:
        self._state.logs[fact.log_id].restore_producer(fact)

    def _stream(self, fact: i.StreamState) -> None:
        state = self._state
        state.streams.restore(fact)
        stream = state.streams.by_log[fact.created.log_id]
        state.logs[stream.log_id] = Log(stream.log_id, start=stream.created.start_offset)
        state.deadlines.push(("stream", stream.log_id, 0), stream.expires_ms())
        state.tenants.count_stream(stream.path, 1)

    def _plain_streams(self, fact: i.PlainStreamsState) -> None:
        streams, logs = self._state.streams, self._state.logs
        types = [self._types.setdefault(name, name) for name in fact.content_types]  # one object for all streams
        columns = (fact.created_ms, fact.touched_ms, fact.payload_bytes, fact.last_ms)
        for path, number, (log_id, start, end), created_ms, touched_ms, payload_bytes, last_ms in zip(
            fact.paths, array("I", fact.type_numbers), fact.logs(), *(array("q", column) for column in columns),
            strict=True,
        ):  # fmt: skip
            stream = StreamRecord(StreamCreated(path, log_id, created_ms, types[number]))
            if touched_ms != created_ms:
                stream.touched_ms = touched_ms
            streams.add(stream)
            self._state.tenants.count_stream(path, 1)
            log = logs[log_id] = Log(log_id)
            if end:
                log.start = log.low_floor = start
                log.end, log.payload_bytes = end, payload_bytes
                log.last_ms = stream.touched_ms if last_ms == touched_ms else last_ms

    def _group(self, fact: i.GroupState) -> None:
        group = self._state.add_group(fact.group_id, fact.topic, fact.group, fact.created_ms, fact.commits_offsets)
        group.paused, group.turn, group.idle = fact.paused, fact.turn, fact.idle
        group.filters = dict.fromkeys(fact.filters)
        group.active_ms = fact.active_ms or self._state.last_ms

    def _cursor(self, fact: i.CursorState) -> None:
        progress = Progress(fact.group_id, fact.log_id, fact.floor)
        progress.restore(fact)
        self._state.groups[fact.group_id].progress.append(progress)
        log = self._state.logs[fact.log_id]
        log.low_floor = min(log.low_floor, fact.floor) if len(log.readers) > 1 else fact.floor

    def _settled(self, fact: i.SettledState) -> None:
        self._state.progress_of(fact.group_id, fact.log_id).restore_settled(fact)

    def _held(self, fact: i.HeldState) -> None:
        progress = self._state.progress_of(fact.group_id, fact.log_id)
        progress.restore_held(fact)
        self._state.schedule(progress)

    def _entry(self, fact: i.EntryState) -> None:
        progress = self._state.progress_of(fact.group_id, fact.log_id)
        progress.restore_entry(fact)
        self._state.schedule(progress)

    def _key(self, fact: i.KeyState) -> None:
        self._state.keys.restore(fact)
        self._state.deadlines.push(("keys", 0, 0), self._state.keys.next_ms())

    def _stage(self, fact: i.StageState) -> None:
        self._state.stages.restore_stage(fact)
        self._state.deadlines.push(("stages", 0, 0), fact.expires_ms)
