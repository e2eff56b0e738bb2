"""Takes a snapshot of the state as facts, and puts such facts back: the two halves of one table.

`fold(images(state)) == state` is an invariant; the order of images matters (a topic before its logs, a group before its
progress).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from driftq.core.model import snapshot_facts as i
from driftq.core.state.logs import Log
from driftq.core.state.progress import Progress

if TYPE_CHECKING:
    from driftq.core.model.facts import Fact
    from driftq.core.model.ranges import Range
    from driftq.core.state.leases import Lease
    from driftq.core.state.state import State

SETTLED_FEW = 1_000  # as many settled ranges are told with the cursor; more have facts of their own
SETTLED_AT_ONCE = 65_536


def snapshot_facts(state: State) -> Iterator[Fact]:
    """Facts that rebuild this state."""
    yield i.NumbersState(state.next_log_id, state.next_group_id, state.next_fence, state.last_ms)
    for topic in state.topics.values():
        yield i.TopicState(topic.name, topic.log_ids, topic.created_ms, topic.config, topic.dead_of)
    yield from state.streams.images()
    for _, log in sorted(state.logs.items()):
        yield log.image()
        yield from log.producers.images(log.log_id)
    for group in state.groups.values():
        yield i.GroupState(
            group.group_id, group.topic, group.name, group.created_ms, group.paused, group.turn,
            tuple(group.filters), group.active_ms, group.idle,
        )  # fmt: skip
        for progress in group.progress:
            yield from _progress_images(progress)
    yield from state.keys.images()
    yield from state.effects.images()
    yield from state.outcomes.images()
    yield from state.stages.images()
    yield from state.job_attempts.images()
    yield from state.subscriptions.images()


def _progress_images(progress: Progress) -> Iterator[Fact]:
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
        yield progress.entries[offset].image(progress.group_id, progress.log_id, offset)


class SnapshotRestore:
    """Puts images into a state."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.folds: dict[type, Callable[[Any], None]] = {
            i.NumbersState: self._numbers,
            i.TopicState: self._topic,
            i.LogState: self._log,
            i.ProducerEntryState: self._producer,
            i.StreamState: self._stream,
            i.GroupState: self._group,
            i.CursorState: self._cursor,
            i.SettledState: self._settled,
            i.HeldState: self._held,
            i.EntryState: self._entry,
            i.KeyState: self._key,
            i.EffectState: state.effects.place,
            i.StageState: self._stage,
            i.WriterState: state.stages.place_writer,
            i.HistoryState: state.job_attempts.place,
        }

    def _numbers(self, image: i.NumbersState) -> None:
        state = self._state
        state.next_log_id, state.next_group_id = image.next_log_id, image.next_group_id
        state.next_fence, state.last_ms = image.next_fence, image.at_ms

    def _topic(self, image: i.TopicState) -> None:
        log_ids = range(image.log_ids[0], image.log_ids[-1] + 1)
        self._state.add_topic(image.topic, log_ids, image.created_ms, image.config, image.dead_of)

    def _log(self, image: i.LogState) -> None:
        self._state.logs[image.log_id].place(image)

    def _producer(self, image: i.ProducerEntryState) -> None:
        self._state.logs[image.log_id].producers.place(image)

    def _stream(self, image: i.StreamState) -> None:
        state = self._state
        state.streams.place(image)
        stream = state.streams.by_log[image.created.log_id]
        state.logs[stream.log_id] = Log(stream.log_id, start=stream.created.start_offset)
        state.deadlines.push(("stream", stream.log_id, 0), stream.expires_ms())

    def _group(self, image: i.GroupState) -> None:
        group = self._state.add_group(image.group_id, image.topic, image.group, image.created_ms)
        group.paused, group.turn, group.idle = image.paused, image.turn, image.idle
        group.filters = dict.fromkeys(image.filters)
        group.active_ms = image.active_ms or self._state.last_ms

    def _cursor(self, image: i.CursorState) -> None:
        progress = Progress(image.group_id, image.log_id, image.floor)
        progress.place(image)
        self._state.groups[image.group_id].progress.append(progress)
        log = self._state.logs[image.log_id]
        log.low_floor = min(log.low_floor, image.floor) if len(log.readers) > 1 else image.floor

    def _settled(self, image: i.SettledState) -> None:
        self._state.progress_of(image.group_id, image.log_id).place_settled(image)

    def _held(self, image: i.HeldState) -> None:
        progress = self._state.progress_of(image.group_id, image.log_id)
        progress.place_held(image)
        self._state.schedule(progress)

    def _entry(self, image: i.EntryState) -> None:
        progress = self._state.progress_of(image.group_id, image.log_id)
        progress.place_entry(image)
        self._state.schedule(progress)

    def _key(self, image: i.KeyState) -> None:
        self._state.keys.place(image)
        self._state.deadlines.push(("keys", 0, 0), self._state.keys.next_ms())

    def _stage(self, image: i.StageState) -> None:
        self._state.stages.place_stage(image)
        self._state.deadlines.push(("stages", 0, 0), image.expires_ms)
