"""The broker's state: the tables that all facts fold into. `core.state.fold` changes them, nothing else does.

    State
    |- topics, groups          by name and by number; a group has a Progress for each partition
    |- logs                    by number: every partition, every stream, and the staging log
    |- streams, subscriptions  by path, by log and by number
    |- keys, effects, outcomes what happened once and must not happen again
    |- stages                  batches that wait to be published
    |- job_attempts, results, reports   what became of jobs, and how far those are that run
    |- job_batches           which jobs belong together, and what is produced when the last of them ends
    |- access_tokens, tenants  who may do what, and how much
    |- schedules               what is produced at which times
    `- deadlines               when to look at what next

Rules read the tables and never change them. A snapshot is the same state as facts (`core.state.snapshot`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from driftq.core.model.facts import STAGING_LOG
from driftq.core.state import lanes
from driftq.core.state.access_tokens import AccessTokenTable
from driftq.core.state.deadlines import Deadlines
from driftq.core.state.effects import PENDING_KEPT_MS, EffectMessages, EffectStatus, EffectTable
from driftq.core.state.groups import HISTORY_SUFFIX, Group, GroupActivity, Topic, link_history
from driftq.core.state.idempotency_keys import ProducedKeyTable
from driftq.core.state.job_batches import JobBatchTable
from driftq.core.state.jobs import JobAttempts, JobTenure
from driftq.core.state.logs import Log
from driftq.core.state.outcomes import Outcomes
from driftq.core.state.progress import Progress
from driftq.core.state.results import ReportTable, ResultTable
from driftq.core.state.schedules import ScheduleTable
from driftq.core.state.stages import Stages
from driftq.core.state.streams import StreamTable
from driftq.core.state.subscriptions import SubscriptionTable
from driftq.core.state.tenants import TenantTable

if TYPE_CHECKING:
    from driftq.core.model.facts import GroupCreated, TopicConfig
    from driftq.core.state.effects import EffectRecord
    from driftq.core.state.streams import StreamRecord


class State:
    """Everything the broker knows, by name and by number."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}  # by name, with their dead-letter topics
        self.logs: dict[int, Log] = {STAGING_LOG: Log(STAGING_LOG)}  # by log id
        self.groups: dict[int, Group] = {}  # by group id; the groups of a topic are in `Topic.groups` too
        self.history_logs: dict[int, int] = {}  # by log id: the log that takes its history, if the topic keeps one
        self.streams = StreamTable()
        self.activity = GroupActivity(self.groups, self.logs)  # which groups count for back-pressure
        self.tenure = JobTenure(self.logs, self.groups)  # whether the message of a job id is unfinished
        self.keys = ProducedKeyTable(self.tenure)  # idempotency keys of produces, and job ids
        self.effects = EffectTable()  # effect keys: pending, committed, failed
        self.effect_messages = EffectMessages(self.effects, self.keys, self.logs, self.groups)
        self.stages = Stages()  # staged batches, and the last publication of each writer
        self.job_attempts = JobAttempts()  # the attempts of tracked jobs
        self.deadlines = Deadlines()  # when to sweep what
        self.outcomes = Outcomes(self.deadlines)  # outcomes that were carried out, for repeats
        self.results = ResultTable(self.deadlines)  # of jobs
        self.reports = ReportTable()  # how far jobs are that run
        self.job_batches = JobBatchTable(self.deadlines, self.logs, self.results)
        self.subscriptions = SubscriptionTable(self.deadlines)
        self.access_tokens = AccessTokenTable()
        self.tenants = TenantTable()
        self.schedules = ScheduleTable(self.tenants)
        self.next_log_id = STAGING_LOG + 1  # numbers are never reused
        self.next_group_id = 1
        self.next_fence = 1  # of effects; rises over all keys together
        self.last_ms = 0  # the time of the last fact that has one
        self.discarded: list[Progress] = []  # of deleted groups: no longer part of the state, freed little by little

    def table_folds(self) -> dict[type, Callable[[Any], None]]:
        """The folds of the tables that fold facts of their own."""
        return {
            **self.outcomes.folds,
            **self.results.folds,
            **self.reports.folds,
            **self.job_batches.folds,
            **self.activity.folds,
            **self.subscriptions.folds,
            **self.access_tokens.folds,
            **self.tenants.folds,
            **self.schedules.folds,
        }

    def progress_of(self, group_id: int, log_id: int) -> Progress:
        return self.groups[group_id].progress[self.logs[log_id].partition]

    def free_discarded(self, count: int) -> bool:
        """Free some of what deleted groups held. To free a hundred thousand objects at once would hold up everything.
        False if nothing is left."""
        while self.discarded and count > 0:
            entries = self.discarded[-1].entries
            freed = min(count, len(entries))
            entries.free(freed)
            count -= freed + 1
            if not entries:
                self.discarded.pop()
        return bool(self.discarded)

    def pending_count(self) -> int:
        """How many held ranges and messages with a history there are in all groups: a snapshot has an item for each."""
        progresses = (progress for group in self.groups.values() for progress in group.progress)
        return sum(len(progress.entries) + len(progress.held) for progress in progresses)

    def add_topic(self, name: str, log_ids: range, at_ms: int, config: TopicConfig, dead_of: str) -> None:
        self.topics[name] = Topic(name, tuple(log_ids), at_ms, config, dead_of)
        for partition, log_id in enumerate(log_ids):
            self.logs[log_id] = Log(log_id, topic=name, partition=partition)
        self.next_log_id = max(self.next_log_id, log_ids.stop)
        self.tenants.count_topic(name, 1)
        link_history(self.topics, self.history_logs, name.removesuffix(HISTORY_SUFFIX))

    def add_group(self, group_id: int, topic: str, name: str, at_ms: int, commits_offsets: bool) -> Group:
        group = Group(group_id, topic, name, at_ms, commits_offsets)
        self.groups[group_id] = self.topics[topic].groups[name] = group
        for log_id in self.topics[topic].log_ids:
            self.logs[log_id].add_reader(group_id)
        self.next_group_id = max(self.next_group_id, group_id + 1)
        self.tenants.count_group(topic, 1)
        return group

    def preview_group(self, fact: GroupCreated) -> Group:
        """The group that a fact will create, for the rest of the command that creates it. Not part of the state."""
        group = Group(fact.group_id, fact.topic, fact.group, fact.at_ms)
        for log_id, start in zip(self.topics[fact.topic].log_ids, fact.starts, strict=True):
            progress = Progress(fact.group_id, log_id, start)
            lanes.start(progress, self.logs[log_id], fact.group, fact.at_ms)
            group.progress.append(progress)
        return group

    def add_stream(self, stream: StreamRecord) -> None:
        self.streams.add(stream)
        self.tenants.count_stream(stream.path, 1)
        self.logs[stream.log_id] = Log(stream.log_id, start=stream.created.start_offset)
        self.next_log_id = max(self.next_log_id, stream.log_id + 1)
        self.deadlines.push(("stream", stream.log_id, 0), stream.expires_ms())

    def schedule(self, progress: Progress) -> None:
        """Make sure that the group is swept when its next lease or backoff ends."""
        at_ms = progress.next_ms()
        if at_ms is not None:
            self.deadlines.push(("group", progress.group_id, progress.log_id), at_ms)

    def is_forgettable_at(self, effect: EffectRecord, now_ms: int) -> bool:
        """Whether an effect is past its time and its message, if it named one, is settled for the group. Fences rise
        over all keys together, so that earlier holders of a forgotten key stay fenced off."""
        if effect.until_ms > now_ms:
            return False
        if effect.group_id not in self.groups or effect.log_id not in self.logs:
            return True
        return self.progress_of(effect.group_id, effect.log_id).is_settled(effect.offset)

    def is_sweepable_at(self, effect: EffectRecord, now_ms: int) -> bool:
        """Whether a sweep forgets an effect. A holder whose lease ran out may still commit, so a pending one is kept
        for a while longer."""
        kept_ms = PENDING_KEPT_MS if effect.status is EffectStatus.PENDING else 0
        return effect.until_ms + kept_ms <= now_ms and self.is_forgettable_at(effect, now_ms)
