"""Counters and histograms of durable facts and of refusals: plain numbers, read by `server.metrics.registry`.

Facts are counted when they are durable, so no counter falls after a crash. The names of topics and groups are limited;
the rest is counted as "other". One thread writes each counter; a reader in another thread may see it a moment late.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.effect_facts import KeyBegun, KeyCommitted, KeyFailed, Published
from driftq.core.model.facts import GroupCaughtUp, GroupIdled
from driftq.core.model.job_batch_facts import STATE_NAMES, JobBatchEnded, JobBatchMembersEnded
from driftq.core.model.replies import Claimed, Produced, RedriveResult, Rejected, Reply, Settlement
from driftq.core.model.schedule_facts import ScheduleFired, ScheduleMissed, SchedulePlan, SchedulePlanned
from driftq.core.model.stream_facts import StreamCreated, StreamDeleted
from driftq.wire.dead_letters import REDRIVE_GROUP
from driftq.wire.message import read_head
from driftq.wire.records import unpack

if TYPE_CHECKING:
    from driftq.core.state.state import State
    from driftq.wire.errors import Code


NAMES_MAX = 1_000
OTHER = "other"
_HOW = {f.ACKED: "acked", f.DEAD: "dead", f.CANCELLED: "cancelled", f.SKIPPED: "skipped"}


class TopicCounters:
    """What arrived in a topic; in a dead-letter topic, by reason."""

    __slots__ = ("dead_of", "messages", "payload_bytes", "reasons")

    def __init__(self, dead_of: str = "") -> None:
        self.dead_of = dead_of
        self.messages = 0
        self.payload_bytes = 0
        self.reasons: defaultdict[str, int] = defaultdict(int)


class GroupCounters:
    """What happened to a group's messages."""

    __slots__ = ("delivered", "extended", "failures", "lease_losses", "released", "settled")

    def __init__(self) -> None:
        self.delivered = 0
        self.failures = 0
        self.lease_losses = 0
        self.released = 0
        self.extended = 0
        self.settled: defaultdict[str, int] = defaultdict(int)


class Counters:
    """All counters of a server."""

    def __init__(self, state: State, names_max: int = NAMES_MAX) -> None:
        self._state = state
        self._names_max = names_max
        self.topics: dict[str, TopicCounters] = {}
        self.groups: dict[tuple[str, str], GroupCounters] = {}
        self.streams = TopicCounters()  # all streams together: the number of their paths is not limited
        self.frames = 0
        self.facts: defaultdict[str, int] = defaultdict(int)  # facts that are counted only by their kind
        self.redriven: defaultdict[str, int] = defaultdict(int)
        self.refusals: defaultdict[Code, int] = defaultdict(int)
        self.produce_refusals: defaultdict[str, int] = defaultdict(int)
        self.duplicates = 0
        self.firings = 0  # of schedules
        self.missed_firings = 0
        self.job_batches: defaultdict[str, int] = defaultdict(int)  # that have ended, by state
        self.job_batch_members: defaultdict[str, int] = defaultdict(int)
        self.commit_seconds = Histogram()
        self.fsync_seconds = Histogram()
        self.stalls: dict[str, Histogram] = {}  # of the event loop, by cause
        self.commit_frames = Histogram((1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024))
        self._logs: dict[int, TopicCounters] = {}
        self._by_group: dict[int, GroupCounters] = {}
        self._handlers: dict[type[f.Fact], Callable[[Any], None]] = {
            f.Leased: self._leased,
            f.Settled: self._settled,
            f.Failed: self._failed,
            f.Released: self._released,
            f.Extended: self._extended,
            Published: self._published,
            f.TopicCreated: lambda _: self._count_kind("topics_created"),
            f.TopicDeleted: self._topic_deleted,
            StreamCreated: lambda _: self._count_kind("streams_created"),
            StreamDeleted: lambda _: self._count_kind("streams_deleted"),
            f.GroupCreated: lambda _: self._count_kind("groups_created"),
            f.GroupDeleted: self._group_deleted,
            GroupIdled: lambda _: self._count_kind("groups_idle"),
            GroupCaughtUp: lambda _: self._count_kind("groups_caught_up"),
            JobBatchEnded: self._job_batch_ended,
            JobBatchMembersEnded: self._job_batch_members_ended,
            ScheduleFired: self._fired,
            ScheduleMissed: self._missed,
            SchedulePlanned: lambda fact: self._missed(fact.plan),
            KeyBegun: lambda _: self._count_kind("effects_begun"),
            KeyCommitted: lambda _: self._count_kind("effects_committed"),
            KeyFailed: lambda _: self._count_kind("effects_failed"),
        }

    # --- called by the engine ---

    def observe(self, lsn: int, facts: list[f.Fact]) -> None:
        """Count the facts of one frame, which are durable now."""
        self.frames += 1
        for fact in facts:
            if type(fact) is f.Appended:
                counters = self._logs.get(fact.log_id) or self._new_log(fact.log_id)
                counters.messages += fact.count
                counters.payload_bytes += fact.payload_bytes
                if counters.dead_of:
                    self._count_reasons(counters, fact)
            else:
                handler = self._handlers.get(type(fact))
                if handler is not None:
                    handler(fact)

    def observe_reply(self, command: c.Command, reply: Reply) -> None:
        """Count a reply without facts: a refusal, or a duplicate."""
        if isinstance(reply, Rejected):
            self.refusals[reply.code] += 1
            if isinstance(command, c.Produce):
                self.produce_refused(reply)
        elif isinstance(reply, Settlement | Claimed):
            for refused in reply.refused:
                self.refusals[refused.code] += 1
        elif isinstance(reply, RedriveResult):
            for part in reply.parts:
                if isinstance(part, Rejected):
                    self.refusals[part.code] += 1
        elif isinstance(reply, Produced):
            self.duplicates += 1

    def produce_refused(self, refused: Rejected) -> None:
        self.produce_refusals[str(refused.details.get("reason") or refused.code.lower())] += 1

    def committed(self, frames: int, commit_s: float, fsync_s: float) -> None:
        self.commit_seconds.observe(commit_s)
        self.fsync_seconds.observe(fsync_s)
        self.commit_frames.observe(frames)

    def stalled(self, cause: str, took_s: float) -> None:
        histogram = self.stalls.get(cause)
        if histogram is None:
            histogram = self.stalls[cause] = Histogram(STALL_SECONDS)
        histogram.observe(took_s)

    # --- facts ---

    def _fired(self, fact: ScheduleFired) -> None:
        self.firings += 1
        self.missed_firings += fact.missed

    def _missed(self, fact: ScheduleMissed | SchedulePlan) -> None:
        self.missed_firings += fact.missed

    def _job_batch_ended(self, fact: JobBatchEnded) -> None:
        self.job_batches[STATE_NAMES[fact.state]] += 1

    def _job_batch_members_ended(self, fact: JobBatchMembersEnded) -> None:
        self.job_batch_members[STATE_NAMES[fact.state]] += sum(end - first for first, end in fact.indexes)

    def _count_kind(self, name: str) -> None:
        self.facts[name] += 1

    def _new_log(self, log_id: int) -> TopicCounters:
        """The state may be ahead of what is durable: a log that was deleted already counts as "other"."""
        log = self._state.logs.get(log_id)
        if log is not None and not log.topic:
            counters = self.streams
        else:
            counters = self._topic(log.topic if log is not None else OTHER)
        self._logs[log_id] = counters
        return counters

    def _topic(self, name: str) -> TopicCounters:
        counters = self.topics.get(name)
        if counters is None:
            topic = self._state.topics.get(name)
            dead_of = topic.dead_of if topic is not None else ""
            if len(self.topics) >= self._names_max:
                name, dead_of = (f"dlq.{OTHER}", OTHER) if dead_of else (OTHER, "")
                counters = self.topics.get(name)
            if counters is None:
                counters = self.topics[name] = TopicCounters(dead_of)
        return counters

    def _count_reasons(self, counters: TopicCounters, fact: f.Appended) -> None:
        for record in unpack(fact.batch):
            letter = read_head(record.head).dlq
            counters.reasons[letter.reason if letter is not None else OTHER] += 1

    def _published(self, fact: Published) -> None:
        for part in fact.parts:
            counters = self._logs.get(part.log_id) or self._new_log(part.log_id)
            counters.messages += part.count
            counters.payload_bytes += part.payload_bytes

    def _topic_deleted(self, fact: f.TopicDeleted) -> None:
        self._count_kind("topics_deleted")
        for log_id in fact.log_ids:
            self._logs.pop(log_id, None)

    def _group(self, group_id: int) -> GroupCounters:
        counters = self._by_group.get(group_id)
        if counters is None:
            group = self._state.groups.get(group_id)
            name = (group.topic, group.name) if group is not None else (OTHER, OTHER)
            if name not in self.groups and len(self.groups) >= self._names_max:
                name = (OTHER, OTHER)
            counters = self._by_group[group_id] = self.groups.setdefault(name, GroupCounters())
        return counters

    def _group_deleted(self, fact: f.GroupDeleted) -> None:
        self._count_kind("groups_deleted")
        self._by_group.pop(fact.group_id, None)

    def _leased(self, fact: f.Leased) -> None:
        self._group(fact.group_id).delivered += _size(fact.ranges)

    def _settled(self, fact: f.Settled) -> None:
        count = _size(fact.ranges)
        self._group(fact.group_id).settled[_HOW.get(fact.how, OTHER)] += count
        group = self._state.groups.get(fact.group_id)
        if group is not None and group.name == REDRIVE_GROUP:
            known = group.topic in self.redriven or len(self.redriven) < self._names_max
            self.redriven[group.topic if known else OTHER] += count

    def _failed(self, fact: f.Failed) -> None:
        counters = self._group(fact.group_id)
        if fact.lease_lost:
            counters.lease_losses += 1
        else:
            counters.failures += 1

    def _released(self, fact: f.Released) -> None:
        self._group(fact.group_id).released += _size(fact.ranges)

    def _extended(self, fact: f.Extended) -> None:
        self._group(fact.group_id).extended += _size(fact.ranges)


def _size(ranges: tuple[tuple[int, int], ...]) -> int:
    return sum(end - first for first, end in ranges)


# From a tenth of a millisecond (a fast disk) to ten seconds (a disk that should be replaced).
SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

STALL_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Histogram:
    """How many observations fell below each bound, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, observations up to it) as Prometheus expects them; the last bound is infinite."""
        buckets: list[tuple[str, float]] = []
        running = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running += count
            buckets.append(("+Inf" if bound == float("inf") else repr(bound), running))
        return buckets
