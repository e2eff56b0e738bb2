"""The broker's state: the fold of all facts. `apply` is the only thing that changes it.

`apply` never refuses and never asks for the time: whatever a decision needed to know is written in the fact. Restart,
checkpoint and simulation are this fold and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driftq.core.model import facts as f
from driftq.core.model.deadlines import Deadlines
from driftq.core.state import lanes
from driftq.core.state.clock_correction import ClockSet, set_clock
from driftq.core.state.groups import DEAD_PREFIX, HISTORY_SUFFIX, Group, GroupActivity, Topic, link_history
from driftq.core.state.idempotency import DoneMessages, EffectRecord, EffectTable
from driftq.core.state.jobs import JobAttempts, JobTenure
from driftq.core.state.logs import Log
from driftq.core.state.outcomes import Outcomes
from driftq.core.state.produced_keys import ProducedKey, ProducedKeyTable, is_job
from driftq.core.state.progress import Progress
from driftq.core.state.stages import Stages
from driftq.core.state.streams import StreamRecord, StreamTable
from driftq.core.state.subscriptions import SubscriptionTable


class State:
    """Everything the broker knows, by name and by number."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.logs: dict[int, Log] = {f.STAGING_LOG: Log(f.STAGING_LOG)}
        self.groups: dict[int, Group] = {}
        self.history_logs: dict[int, int] = {}  # where the history of a log is told, if it is
        self.streams = StreamTable()
        self.activity = GroupActivity(self.groups, self.logs)
        self.tenure = JobTenure(self.logs, self.groups)
        self.keys = ProducedKeyTable(self.tenure)
        self.effects = EffectTable()
        self.done = DoneMessages(self.effects, self.keys, self.logs, self.groups)
        self.stages = Stages()
        self.histories = JobAttempts()
        self.deadlines = Deadlines()
        self.outcomes = Outcomes(self.deadlines)
        self.subscriptions = SubscriptionTable(self.deadlines)
        self.next_log_id = f.STAGING_LOG + 1
        self.next_group_id = 1
        self.next_fence = 1
        self.last_ms = 0  # the time of the last fact that has one
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
            ClockSet: lambda fact: set_clock(self, fact),
            f.HoleMade: lambda fact: None,
            f.RecordsLost: self._records_lost,
            f.StreamCreated: self._stream_created,
            f.StreamClosed: self._stream_closed,
            f.StreamDeleted: self._stream_deleted,
            f.StreamTouched: self._stream_touched,
            f.GroupCreated: self._group_created,
            f.GroupSought: self._group_sought,
            f.GroupPaused: self._group_paused,
            f.GroupDeleted: self._group_deleted,
            f.KeyBegun: self._key_begun,
            f.KeyCommitted: self._key_committed,
            f.KeyFailed: self._key_failed,
            f.KeysSwept: self._keys_swept,
            f.FailureExplained: self._failure_explained,
            f.Staged: self._staged,
            f.Published: self._published,
            f.StagesForgotten: self._stages_forgotten,
            **self.outcomes.folds,
            **self.activity.folds,
            **self.subscriptions.folds,
        }

    def progress_of(self, group_id: int, log_id: int) -> Progress:
        return self.groups[group_id].progress[self.logs[log_id].partition]

    # --- topics and records ---

    def _topic_created(self, fact: f.TopicCreated) -> None:
        first, count = fact.first_log_id, fact.partitions
        dead = DEAD_PREFIX + fact.topic
        self.add_topic(fact.topic, range(first, first + count), fact.at_ms, fact.config, "")
        self.add_topic(dead, range(first + count, first + 2 * count), fact.at_ms, f.TopicConfig(), fact.topic)
        self._passed(fact.at_ms)

    def add_topic(self, name: str, log_ids: range, at_ms: int, config: f.TopicConfig, dead_of: str) -> None:
        self.topics[name] = Topic(name, tuple(log_ids), at_ms, config, dead_of)
        for partition, log_id in enumerate(log_ids):
            self.logs[log_id] = Log(log_id, topic=name, partition=partition)
        self.next_log_id = max(self.next_log_id, log_ids.stop)
        link_history(self.topics, self.history_logs, name.removesuffix(HISTORY_SUFFIX))

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
            for group in topic.groups.values():
                del self.groups[group.group_id]
            for log_id in topic.log_ids:
                self.keys.forget_log(log_id)
                del self.logs[log_id]
                self.history_logs.pop(log_id, None)

    def _appended(self, fact: f.Appended) -> None:
        log = self.logs[fact.log_id]
        assert log.end == fact.first_offset, f"log {fact.log_id} ends at {log.end}, not at {fact.first_offset}"
        log.extend(fact.count, fact.payload_bytes, fact.at_ms)
        self._passed(fact.at_ms)
        if fact.along is not None:
            self._along(log, fact, fact.along)
        if not log.topic:
            self._stream_appended(fact)
        if log.readers and not fact.first_offset & 0xFF:
            log.low_floor = self.activity.lowest_floor(log)

    def _along(self, log: Log, fact: f.Appended, along: f.AppendMetadata) -> None:
        if along.producer is not None:
            log.producers.remember(along.producer, fact.first_offset, log.end, fact.at_ms)
        if along.key or along.job:
            self._remember(log, fact, along)
        if along.marks:
            log.mark(along.marks, fact.first_offset, fact.at_ms)
            for mark in along.marks:
                if mark.not_before_ms > fact.at_ms:
                    for group_id in log.readers:
                        self._delay(self.progress_of(group_id, log.log_id), log, fact.first_offset + mark.index, mark)

    def _remember(self, log: Log, fact: f.Appended, along: f.AppendMetadata) -> None:
        place = (log.log_id, fact.first_offset, fact.count, along.key_digest)
        if along.key:
            # Before ids had a field of their own, a job's id was its key.
            ttl_ms = along.key_expires_ms - fact.at_ms if is_job(along.key) else 0
            self.keys.remember(along.key, ProducedKey(*place, along.key_expires_ms, ttl_ms))
            self.done.produced(log, fact, along.key)
        if along.job:
            self.keys.remember(along.job, ProducedKey(*place, fact.at_ms + along.job_ttl_ms, along.job_ttl_ms))
        self.deadlines.push(("keys", 0, 0), self.keys.next_ms())

    def _delay(self, progress: Progress, log: Log, offset: int, mark: f.RecordSchedule) -> None:
        progress.delay(offset, mark.not_before_ms)
        lanes.pass_delayed(progress, log, mark)
        self.schedule(progress)

    def _trimmed(self, fact: f.Trimmed) -> None:
        log = self.logs[fact.log_id]
        self._passed(fact.at_ms)
        ended = self.keys.unfinished(log.log_id, log.start, fact.start_offset)
        log.trim(fact.start_offset)
        self.keys.end(ended, self.last_ms)
        for group_id in log.readers:
            progress = self.progress_of(group_id, log.log_id)
            progress.trim(fact.start_offset)
            progress.forget_lanes(log.lanes)

    def _records_lost(self, fact: f.RecordsLost) -> None:
        log = self.logs[fact.log_id]
        log.lose(fact.first_offset, fact.end_offset)
        log.ended_ms = self.last_ms
        for group_id in log.readers:
            progress = self.progress_of(group_id, log.log_id)
            progress.pass_over(log.lost)
            lanes.pass_all(progress, log)
            self.schedule(progress)

    # --- groups ---

    def _group_created(self, fact: f.GroupCreated) -> None:
        self._passed(fact.at_ms)
        group = self.add_group(fact.group_id, fact.topic, fact.group, fact.at_ms)
        for log_id, start in zip(self.topics[fact.topic].log_ids, fact.starts, strict=True):
            group.progress.append(Progress(fact.group_id, log_id, start))
            self._restart(group.progress[-1], start, fact.at_ms)

    def add_group(self, group_id: int, topic: str, name: str, at_ms: int) -> Group:
        group = Group(group_id, topic, name, at_ms)
        self.groups[group_id] = self.topics[topic].groups[name] = group
        for log_id in self.topics[topic].log_ids:
            self.logs[log_id].readers.append(group_id)
        self.next_group_id = max(self.next_group_id, group_id + 1)
        return group

    def _restart(self, progress: Progress, start: int, at_ms: int) -> None:
        """A group begins at an offset: messages that are still delayed rest for it too."""
        log = self.logs[progress.log_id]
        log.low_floor = min(log.low_floor, start) if len(log.readers) > 1 else start
        progress.delay_all(log.delayed, at_ms)
        progress.pass_over(log.passed_over(self.groups[progress.group_id].name))
        log.ended_ms = self.last_ms
        lanes.pass_all(progress, log)
        self.schedule(progress)

    def _group_sought(self, fact: f.GroupSought) -> None:
        self._passed(fact.at_ms)
        progress = self.progress_of(fact.group_id, fact.log_id)
        progress.seek(fact.offset)
        self._restart(progress, fact.offset, fact.at_ms)
        self.groups[fact.group_id].use(fact.at_ms)

    def _group_paused(self, fact: f.GroupPaused) -> None:
        self.groups[fact.group_id].paused = fact.paused

    def _group_deleted(self, fact: f.GroupDeleted) -> None:
        self._passed(fact.at_ms)
        group = self.groups.pop(fact.group_id)
        topic = self.topics[group.topic]
        del topic.groups[group.name]
        for log_id in topic.log_ids:
            self.logs[log_id].readers.remove(fact.group_id)
            self.logs[log_id].ended_ms = self.last_ms

    def _filter_noted(self, fact: f.FilterNoted) -> None:
        self._passed(fact.at_ms)
        group = self.groups[fact.group_id]
        group.filters[fact.task, fact.label] = None
        for log_id in self.topics[group.topic].log_ids:
            self.logs[log_id].ended_ms = self.last_ms

    def _leased(self, fact: f.Leased) -> None:
        group, log = self.groups[fact.group_id], self.logs[fact.log_id]
        progress = group.progress[log.partition]
        group.turn = (log.partition + 1) % len(group.progress)
        group.use(fact.at_ms)
        progress.lease(fact)
        lanes.pass_leased(progress, log, fact)
        if log.tracked.count:
            self.histories.lease(log, fact)
        self.schedule(progress)
        self._passed(fact.at_ms)

    def _extended(self, fact: f.Extended) -> None:
        progress = self.progress_of(fact.group_id, fact.log_id)
        progress.extend(fact)
        self.schedule(progress)

    def _failed(self, fact: f.Failed) -> None:
        progress = self.progress_of(fact.group_id, fact.log_id)
        progress.fail(fact)
        self.histories.fail(self.logs[fact.log_id], fact)
        self.schedule(progress)
        self._passed(fact.at_ms)

    def _failure_explained(self, fact: f.FailureExplained) -> None:
        progress = self.progress_of(fact.group_id, fact.log_id)
        progress.explain(fact)
        self.histories.explain(self.logs[fact.log_id], fact)
        self.schedule(progress)
        self._passed(fact.at_ms)

    def _released(self, fact: f.Released) -> None:
        progress = self.progress_of(fact.group_id, fact.log_id)
        progress.release(fact)
        self.histories.release(self.logs[fact.log_id], fact)
        self.schedule(progress)

    def _settled(self, fact: f.Settled) -> None:
        log = self.logs[fact.log_id]
        group = self.groups[fact.group_id]
        progress = group.progress[log.partition]
        if fact.how == f.ACKED:
            group.use(fact.at_ms)
        for first, end in fact.ranges:
            if fact.how == f.DEAD and end == first + 1:
                progress.bury(first)
            else:
                progress.settle(first, end)
        self._passed(fact.at_ms)
        lanes.pass_settled(progress, log, fact)
        if log.tracked.count:
            self.histories.settle(log, fact)
        self.keys.end_jobs(log.log_id, fact.ranges, self.last_ms)
        self.schedule(progress)

    def _cancelled(self, fact: f.Cancelled) -> None:
        self._passed(fact.at_ms)
        self.logs[fact.log_id].cancel(fact.offset)
        self.keys.end_jobs(fact.log_id, ((fact.offset, fact.offset + 1),), self.last_ms)

    def schedule(self, progress: Progress) -> None:
        at_ms = progress.next_ms()
        if at_ms is not None:
            self.deadlines.push(("group", progress.group_id, progress.log_id), at_ms)

    # --- streams ---

    def _stream_created(self, fact: f.StreamCreated) -> None:
        self.add_stream(StreamRecord(fact))
        self._passed(fact.at_ms)

    def add_stream(self, stream: StreamRecord) -> None:
        self.streams.add(stream)
        self.logs[stream.log_id] = Log(stream.log_id, start=stream.created.start_offset)
        self.next_log_id = max(self.next_log_id, stream.log_id + 1)
        self.deadlines.push(("stream", stream.log_id, 0), stream.expires_ms())

    def _stream_closed(self, fact: f.StreamClosed) -> None:
        stream = self.streams.by_log[fact.log_id]
        if fact.producer is not None:
            log = self.logs[fact.log_id]
            log.producers.remember(fact.producer, log.end, log.end, fact.at_ms)
        stream.move(fact.at_ms, fact.stream_seq, True, fact.producer)

    def _stream_appended(self, fact: f.Appended) -> None:
        along = fact.along or f.AppendMetadata()
        self.streams.by_log[fact.log_id].move(fact.at_ms, along.stream_seq, along.closes, along.producer)

    def _stream_deleted(self, fact: f.StreamDeleted) -> None:
        stream = self.streams.by_log[fact.log_id]
        if not stream.soft_deleted:
            self.subscriptions.stream_deleted(stream.path)
        if fact.soft:
            stream.soft_deleted = True
            return
        self.streams.remove(stream)
        del self.logs[fact.log_id]

    def _stream_touched(self, fact: f.StreamTouched) -> None:
        stream = self.streams.by_log[fact.log_id]
        stream.touched_ms = max(stream.touched_ms, fact.at_ms)

    # --- effects and stages ---

    def _key_begun(self, fact: f.KeyBegun) -> None:
        self._passed(fact.at_ms)
        self.next_fence = max(self.next_fence, fact.fence + 1)
        self.effects.forget_some(lambda effect: self.is_forgettable_at(effect, self.last_ms))
        self.effects.begin(fact)

    def _key_committed(self, fact: f.KeyCommitted) -> None:
        self._passed(fact.at_ms)
        self.done.commit(fact)

    def _key_failed(self, fact: f.KeyFailed) -> None:
        self._passed(fact.at_ms)
        self.effects.fail(fact)

    def _keys_swept(self, fact: f.KeysSwept) -> None:
        self._passed(fact.at_ms)
        self.keys.sweep(fact.until_ms, self.last_ms)
        self.deadlines.push(("keys", 0, 0), self.keys.next_ms())

    def is_forgettable_at(self, effect: EffectRecord, now_ms: int) -> bool:
        """Past its time, and its message (if it named one) settled for the group. Fences rise over all keys together,
        so that whoever held a forgotten key is still late."""
        if effect.until_ms > now_ms:
            return False
        if effect.group_id not in self.groups or effect.log_id not in self.logs:
            return True
        return self.progress_of(effect.group_id, effect.log_id).is_settled(effect.offset)

    def _staged(self, fact: f.Staged) -> None:
        self.logs[f.STAGING_LOG].extend(fact.count, fact.payload_bytes, fact.at_ms)
        self.stages.stage(fact)
        self.deadlines.push(("stages", 0, 0), fact.expires_ms)
        self._passed(fact.at_ms)

    def _published(self, fact: f.Published) -> None:
        for part in fact.parts:
            log = self.logs[part.log_id]
            assert log.end == part.first_offset, f"log {part.log_id} ends at {log.end}, not at {part.first_offset}"
            log.extend(part.count, part.payload_bytes, fact.at_ms)
            stream = self.streams.by_log.get(part.log_id)
            if stream is not None:
                stream.move(fact.at_ms, "", False, None)
        self.stages.publish(fact)
        self.logs[f.STAGING_LOG].trim(fact.staging_start)
        self._passed(fact.at_ms)

    def _stages_forgotten(self, fact: f.StagesForgotten) -> None:
        self.stages.forget(fact.handles)
        self.logs[f.STAGING_LOG].trim(fact.staging_start)

    def _passed(self, at_ms: int) -> None:
        if at_ms > self.last_ms:
            self.last_ms = at_ms
