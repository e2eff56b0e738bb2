"""How each fact changes the state: the fold.

    journal or decision -> fact -> Fold.folds[type(fact)](fact) -> the tables of `State`

The fold never refuses and never asks for the time: whatever a decision needed to know is in the fact. Restart,
checkpoint and simulation run this fold and nothing else, so a state rebuilt from the journal equals the one that was
lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from driftq.core.model import effect_facts as e
from driftq.core.model import facts as f
from driftq.core.model import stream_facts as s
from driftq.core.model.facts import LaneKey
from driftq.core.state import lanes
from driftq.core.state.deadlines import timer_folds
from driftq.core.state.effects import CHECKED_PER_BEGIN
from driftq.core.state.groups import DEAD_PREFIX, link_history
from driftq.core.state.idempotency_keys import ProducedKey, is_job
from driftq.core.state.progress import Progress
from driftq.core.state.streams import StreamRecord

if TYPE_CHECKING:
    from driftq.core.state.logs import Log
    from driftq.core.state.state import State


class Fold:
    """Folds facts into one state. The tables are bound once, so that a fact costs no extra lookup."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.topics = state.topics
        self.logs = state.logs
        self.groups = state.groups
        self.history_logs = state.history_logs
        self.streams = state.streams
        self.activity = state.activity
        self.keys = state.keys
        self.effects = state.effects
        self.effect_messages = state.effect_messages
        self.stages = state.stages
        self.job_attempts = state.job_attempts
        self.results = state.results
        self.reports = state.reports
        self.deadlines = state.deadlines
        self.subscriptions = state.subscriptions
        self.tenants = state.tenants
        self.folds: dict[type, Callable[[Any], None]] = {
            f.Appended: self._appended,
            f.Leased: self._leased,
            f.Settled: self._settled,
            f.Cancelled: self._cancelled,
            f.FilterNoted: self._filter_noted,
            f.Failed: self._failed,
            f.Extended: self._extended,
            f.Released: self._released,
            f.TopicCreated: self._topic_created,
            f.TopicConfigured: self._topic_configured,
            f.TopicDeleted: self._topic_deleted,
            f.Trimmed: self._trimmed,
            **timer_folds(state),
            f.HoleMade: lambda fact: None,
            f.RecordsLost: self._records_lost,
            s.StreamCreated: self._stream_created,
            s.StreamClosed: self._stream_closed,
            s.StreamDeleted: self._stream_deleted,
            s.StreamTouched: self._stream_touched,
            f.GroupCreated: self._group_created,
            f.GroupSought: self._group_sought,
            f.GroupPaused: self._group_paused,
            f.GroupDeleted: self._group_deleted,
            e.KeyBegun: self._key_begun,
            e.KeyCommitted: self._key_committed,
            e.KeyFailed: self._key_failed,
            e.EffectsChecked: self._effects_checked,
            e.KeysSwept: self._keys_swept,
            f.FailureExplained: self._failure_explained,
            e.Staged: self._staged,
            e.Published: self._published,
            e.StagesForgotten: self._stages_forgotten,
            **state.table_folds(),
        }

    # --- topics and records ---

    def _topic_created(self, fact: f.TopicCreated) -> None:
        first, count = fact.first_log_id, fact.partitions
        dead = DEAD_PREFIX + fact.topic
        self.state.add_topic(fact.topic, range(first, first + count), fact.at_ms, fact.config, "")
        self.state.add_topic(dead, range(first + count, first + 2 * count), fact.at_ms, f.TopicConfig(), fact.topic)
        self._note_time(fact.at_ms)

    def _topic_configured(self, fact: f.TopicConfigured) -> None:
        topic = self.topics[fact.topic]
        if fact.config.fair and not topic.config.fair:
            for log_id in topic.log_ids:
                self.logs[log_id].fair_from = self.logs[log_id].end
        topic.config = fact.config
        link_history(self.topics, self.history_logs, fact.topic)

    def _topic_deleted(self, fact: f.TopicDeleted) -> None:
        for name in (fact.topic, DEAD_PREFIX + fact.topic):
            topic = self.topics.pop(name)
            self.tenants.count_topic(name, -1)
            for group in topic.groups.values():
                del self.groups[group.group_id]
                self.state.discarded += group.progress
                self.tenants.count_group(name, -1)
                self.results.drop_group(group.group_id)
                self.reports.drop_group(group.group_id)
            for log_id in topic.log_ids:
                self.keys.forget_log(log_id)
                del self.logs[log_id]
                self.history_logs.pop(log_id, None)

    def _appended(self, fact: f.Appended) -> None:
        log = self.logs[fact.log_id]
        assert log.end == fact.first_offset, f"log {fact.log_id} ends at {log.end}, not at {fact.first_offset}"
        log.extend(fact.count, fact.payload_bytes, fact.at_ms)
        self._note_time(fact.at_ms)
        if fact.along is not None:
            self._fold_metadata(log, fact, fact.along)
        if not log.topic:
            self._stream_appended(fact)
        if log.readers and not fact.first_offset & 0xFF:
            log.low_floor = self.activity.lowest_floor(log)

    def _fold_metadata(self, log: Log, fact: f.Appended, along: f.AppendMetadata) -> None:
        if along.producer is not None:
            log.remember(along.producer, fact.first_offset, log.end, fact.at_ms)
        if along.key or along.job:
            self._remember_keys(log, fact, along)
        if along.marks:
            log.mark(along.marks, fact.first_offset, fact.at_ms)
            self._delay(log, fact.first_offset, fact.at_ms, along.marks)

    def _remember_keys(self, log: Log, fact: f.Appended, along: f.AppendMetadata) -> None:
        produced = (log.log_id, fact.first_offset, fact.count, along.key_digest)
        if along.key:
            ttl_ms = along.key_expires_ms - fact.at_ms if is_job(along.key) else 0  # a job id in old journals
            self.keys.remember(along.key, ProducedKey(*produced, along.key_expires_ms, ttl_ms))
            self.effect_messages.produced(log, fact, along.key)
        if along.job:
            job = ProducedKey(*produced, fact.at_ms + along.job_ttl_ms, along.job_ttl_ms, is_open=True)
            self.keys.remember(along.job, job)
        self.deadlines.push(("keys", 0, 0), self.keys.next_ms())

    def _delay(self, log: Log, first_offset: int, at_ms: int, marks: tuple[f.RecordSchedule, ...]) -> None:
        """The messages of an append that must wait for their time, in every group."""
        waiting = [mark for mark in marks if mark.not_before_ms > at_ms]
        if not waiting:
            return
        delayed = [(mark.not_before_ms, first_offset + mark.index) for mark in waiting]
        keys = {LaneKey(mark.priority, mark.task, mark.label, mark.tenant): None for mark in waiting}
        for group_id in log.readers:
            progress = self.state.progress_of(group_id, log.log_id)
            progress.delay_all(delayed, at_ms)
            for key in keys:
                lanes.pass_lane(progress, log, key)
            self.state.schedule(progress)

    def _trimmed(self, fact: f.Trimmed) -> None:
        log = self.logs[fact.log_id]
        self._note_time(fact.at_ms)
        is_whole = bool(log.topic) and fact.start_offset == log.end
        if is_whole:
            log.ended_ms = self.state.last_ms  # its job ids end then, each when it is looked up
        else:
            self.keys.end_below(log.log_id, log.start, fact.start_offset, self.state.last_ms)
        log.trim(fact.start_offset)
        for group_id in log.readers:
            progress = self.state.progress_of(group_id, log.log_id)
            (progress.clear if is_whole else progress.trim)(fact.start_offset)
            progress.forget_lanes(log.lanes.by_key)
            if self.reports:
                self.reports.settle(group_id, log.log_id, ((0, fact.start_offset),))

    def _records_lost(self, fact: f.RecordsLost) -> None:
        log = self.logs[fact.log_id]
        if fact.end_offset > log.end:
            log.extend(fact.end_offset - log.end, 0, log.last_ms)
        for offset in range(max(fact.first_offset, log.start), fact.end_offset):
            log.cancel(offset)
        log.ended_ms = self.state.last_ms
        for group_id in log.readers:
            progress = self.state.progress_of(group_id, log.log_id)
            progress.pass_over(((fact.first_offset, fact.end_offset),))
            lanes.pass_all(progress, log)
            self.state.schedule(progress)

    # --- groups ---

    def _group_created(self, fact: f.GroupCreated) -> None:
        self._note_time(fact.at_ms)
        group = self.state.add_group(fact.group_id, fact.topic, fact.group, fact.at_ms, fact.commits_offsets)
        for log_id, start in zip(self.topics[fact.topic].log_ids, fact.starts, strict=True):
            group.progress.append(Progress(fact.group_id, log_id, start))
            self._restart(group.progress[-1], start, fact.at_ms)

    def _restart(self, progress: Progress, start: int, at_ms: int) -> None:
        """A group starts at an offset: delayed messages wait for their time, and what it never gets is settled."""
        log = self.logs[progress.log_id]
        log.low_floor = min(log.low_floor, start) if len(log.readers) > 1 else start
        lanes.start(progress, log, self.groups[progress.group_id].name, at_ms)
        log.ended_ms = self.state.last_ms
        self.state.schedule(progress)

    def _group_sought(self, fact: f.GroupSought) -> None:
        self._note_time(fact.at_ms)
        progress = self.state.progress_of(fact.group_id, fact.log_id)
        progress.seek(fact.offset)
        self.results.seek(fact.group_id, fact.log_id, fact.offset)
        self.reports.seek(fact.group_id, fact.log_id)
        self._restart(progress, fact.offset, fact.at_ms)
        self.groups[fact.group_id].use(fact.at_ms)

    def _group_paused(self, fact: f.GroupPaused) -> None:
        self.groups[fact.group_id].paused = fact.paused

    def _group_deleted(self, fact: f.GroupDeleted) -> None:
        self._note_time(fact.at_ms)
        group = self.groups.pop(fact.group_id)
        self.state.discarded += group.progress
        self.tenants.count_group(group.topic, -1)
        topic = self.topics[group.topic]
        del topic.groups[group.name]
        self.results.drop_group(fact.group_id)
        self.reports.drop_group(fact.group_id)
        for log_id in topic.log_ids:
            self.logs[log_id].readers.remove(fact.group_id)
            self.logs[log_id].ended_ms = self.state.last_ms

    def _filter_noted(self, fact: f.FilterNoted) -> None:
        self._note_time(fact.at_ms)
        group = self.groups[fact.group_id]
        group.filters[fact.task, fact.label] = None
        for log_id in self.topics[group.topic].log_ids:
            self.logs[log_id].ended_ms = self.state.last_ms

    def _leased(self, fact: f.Leased) -> None:
        group, log = self.groups[fact.group_id], self.logs[fact.log_id]
        progress = group.progress[log.partition]
        group.turn = (log.partition + 1) % len(group.progress)
        group.use(fact.at_ms)
        progress.lease(fact)
        lanes.pass_leased(progress, log, fact)
        if log.tracked.count:
            self.job_attempts.lease(log, fact)
        self.state.schedule(progress)
        self._note_time(fact.at_ms)

    def _extended(self, fact: f.Extended) -> None:
        progress = self.state.progress_of(fact.group_id, fact.log_id)
        progress.extend(fact)
        self.state.schedule(progress)

    def _failed(self, fact: f.Failed) -> None:
        progress = self.state.progress_of(fact.group_id, fact.log_id)
        progress.fail(fact)
        self.job_attempts.fail(self.logs[fact.log_id], fact)
        self.state.schedule(progress)
        self._note_time(fact.at_ms)

    def _failure_explained(self, fact: f.FailureExplained) -> None:
        progress = self.state.progress_of(fact.group_id, fact.log_id)
        progress.explain(fact)
        self.job_attempts.explain(self.logs[fact.log_id], fact)
        self.state.schedule(progress)
        self._note_time(fact.at_ms)

    def _released(self, fact: f.Released) -> None:
        progress = self.state.progress_of(fact.group_id, fact.log_id)
        progress.release(fact)
        self.job_attempts.release(self.logs[fact.log_id], fact)
        self.state.schedule(progress)

    def _settled(self, fact: f.Settled) -> None:
        log = self.logs[fact.log_id]
        group = self.groups[fact.group_id]
        progress = group.progress[log.partition]
        if fact.how == f.ACKED:
            group.use(fact.at_ms)
        for first, end in fact.ranges:
            if fact.how == f.DEAD and end == first + 1:
                progress.dead_letter(first)
            else:
                progress.settle(first, end)
        self._note_time(fact.at_ms)
        lanes.pass_settled(progress, log, fact)
        if log.tracked.count:
            self.job_attempts.settle(log, fact)
        if self.reports:
            self.reports.settle(fact.group_id, fact.log_id, fact.ranges)
        self.keys.end_jobs(log.log_id, fact.ranges, self.state.last_ms)
        self.state.schedule(progress)

    def _cancelled(self, fact: f.Cancelled) -> None:
        self._note_time(fact.at_ms)
        self.logs[fact.log_id].cancel(fact.offset)
        self.keys.end_jobs(fact.log_id, ((fact.offset, fact.offset + 1),), self.state.last_ms)

    # --- streams ---

    def _stream_created(self, fact: s.StreamCreated) -> None:
        self.state.add_stream(StreamRecord(fact))
        self._note_time(fact.at_ms)

    def _stream_closed(self, fact: s.StreamClosed) -> None:
        stream = self.streams.by_log[fact.log_id]
        if fact.producer is not None:
            log = self.logs[fact.log_id]
            log.remember(fact.producer, log.end, log.end, fact.at_ms)
        stream.move(fact.at_ms, fact.stream_seq, True, fact.producer)

    def _stream_appended(self, fact: f.Appended) -> None:
        along = fact.along or f.AppendMetadata()
        self.streams.by_log[fact.log_id].move(fact.at_ms, along.stream_seq, along.closes, along.producer)

    def _stream_deleted(self, fact: s.StreamDeleted) -> None:
        stream = self.streams.by_log[fact.log_id]
        if not stream.soft_deleted:
            self.subscriptions.stream_deleted(stream.path)
        if fact.soft:
            stream.soft_deleted = True
            return
        self.streams.remove(stream)
        self.tenants.count_stream(stream.path, -1)
        del self.logs[fact.log_id]

    def _stream_touched(self, fact: s.StreamTouched) -> None:
        stream = self.streams.by_log[fact.log_id]
        stream.touched_ms = max(stream.touched_ms, fact.at_ms)

    # --- effects and stages ---

    def _key_begun(self, fact: e.KeyBegun) -> None:
        self._note_time(fact.at_ms)
        self.state.next_fence = max(self.state.next_fence, fact.fence + 1)
        now_ms = self.state.last_ms
        self.effects.forget_some(CHECKED_PER_BEGIN, lambda effect: self.state.is_forgettable_at(effect, now_ms))
        self.effects.begin(fact)

    def _effects_checked(self, fact: e.EffectsChecked) -> None:
        self._note_time(fact.at_ms)
        now_ms = self.state.last_ms
        self.effects.forget_some(fact.count, lambda effect: self.state.is_sweepable_at(effect, now_ms))

    def _key_committed(self, fact: e.KeyCommitted) -> None:
        self._note_time(fact.at_ms)
        self.effect_messages.commit(fact)

    def _key_failed(self, fact: e.KeyFailed) -> None:
        self._note_time(fact.at_ms)
        self.effects.fail(fact)

    def _keys_swept(self, fact: e.KeysSwept) -> None:
        self._note_time(fact.at_ms)
        self.keys.sweep(fact.until_ms, self.state.last_ms)
        self.deadlines.push(("keys", 0, 0), self.keys.next_ms())

    def _staged(self, fact: e.Staged) -> None:
        self.logs[f.STAGING_LOG].extend(fact.count, fact.payload_bytes, fact.at_ms)
        self.stages.stage(fact)
        self.deadlines.push(("stages", 0, 0), fact.expires_ms)
        self._note_time(fact.at_ms)

    def _published(self, fact: e.Published) -> None:
        for part in fact.parts:
            log = self.logs[part.log_id]
            assert log.end == part.first_offset, f"log {part.log_id} ends at {log.end}, not at {part.first_offset}"
            log.extend(part.count, part.payload_bytes, fact.at_ms)
            stream = self.streams.by_log.get(part.log_id)
            if stream is not None:
                stream.move(fact.at_ms, "", False, None)
        self.stages.publish(fact)
        self.logs[f.STAGING_LOG].trim(fact.staging_start)
        self._note_time(fact.at_ms)

    def _stages_forgotten(self, fact: e.StagesForgotten) -> None:
        self.stages.forget(fact.handles)
        self.logs[f.STAGING_LOG].trim(fact.staging_start)

    def _note_time(self, at_ms: int) -> None:
        state = self.state
        if at_ms > state.last_ms:
            state.last_ms = at_ms
