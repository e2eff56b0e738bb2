"""Job batches: which jobs belong together, which of them have ended, and with what.

    JobBatchTable
    |- by_number, by_id      every batch, until it is forgotten
    |- jobs                  by log and offset: members that have not ended, so that the end of a job finds its batch
    `- expiries              when the outermost batches that have ended are forgotten, with all that is nested in them

The decisions are made in `core.transitions.job_batches`. The results of members are kept with their batch, because it
may end long after the results of its first members would expire.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from driftq.core.model import job_batch_facts as b

if TYPE_CHECKING:
    from driftq.core.model.facts import Fact
    from driftq.core.state.deadlines import Deadlines
    from driftq.core.state.logs import Log
    from driftq.core.state.results import ResultTable

RESULTS_BYTES_MAX = 16 << 20  # of one batch; what does not fit is not kept
MEMBER_BYTES = 300  # the cost of a member without its step and its result
MEMBERS_AT_ONCE = 5_000  # in one fact of a snapshot
STEPS_BYTES = 64 << 10  # of steps and results in one fact of a snapshot, about


class JobBatch:
    """One batch."""

    __slots__ = (
        "cancelled_ms", "counts", "created", "ended", "live", "members", "next_step", "result_bytes", "results",
        "results_lost", "sealed", "states", "topics",
    )  # fmt: skip

    def __init__(self, created: b.JobBatchCreated) -> None:
        self.created = created
        self.sealed = False  # nothing is added any more
        self.cancelled_ms = 0  # when it was cancelled
        self.ended: b.JobBatchEnded | None = None
        self.members: list[b.BatchMember] = []
        self.states = bytearray()  # of each member
        self.counts = [0] * 6  # of members, by state
        self.next_step = 0  # of a chain: the first that waits, if one does
        self.results: dict[int, b.JobBatchResult] = {}  # by member
        self.result_bytes = 0
        self.results_lost = 0  # that were not kept, because there were too many bytes
        self.topics: dict[str, None] = {}  # every topic that it or what is nested in it uses
        self.live = 0  # members that were produced and have not ended

    @property
    def number(self) -> int:
        return self.created.number

    @property
    def batch_id(self) -> str:
        return self.created.created.batch_id

    @property
    def parent(self) -> int:
        return self.created.parent

    @property
    def is_due(self) -> bool:
        """Whether it should have ended, or should have started its next step: the frame had no room for that."""
        return self.sealed and not self.live and self.ended is None

    def add(self, member: b.BatchMember) -> None:
        state = b.WAITING if member.log_id == b.WAITING_STEP else b.RUNNING
        self.members.append(member)
        self.states.append(state)
        self.counts[state] += 1
        self.live += state == b.RUNNING

    def turn(self, index: int, state: int) -> None:
        before = self.states[index]
        self.states[index] = state
        self.counts[before] -= 1
        self.counts[state] += 1
        self.live += (state == b.RUNNING) - (before == b.RUNNING)

    def children(self) -> Iterator[int]:
        """The numbers of the batches that are its members."""
        return (member.offset for member in self.members if member.log_id == b.CHILD)

    def keep(self, result: b.JobBatchResult) -> None:
        size = len(result.result) + len(result.error) + len(result.traceback)
        if self.result_bytes + size <= RESULTS_BYTES_MAX:
            self.result_bytes += size
            self.results[result.index] = result
        else:
            self.results_lost += 1


class JobBatchTable:
    """Every batch of jobs."""

    __slots__ = (
        "_deadlines", "_expiries", "_logs", "_results", "by_id", "by_number", "folds", "jobs", "next_number",
        "unended", "waiting_bytes",
    )  # fmt: skip

    def __init__(self, deadlines: Deadlines, logs: dict[int, Log], results: ResultTable) -> None:
        self._deadlines = deadlines
        self._logs = logs
        self._results = results
        self._expiries: list[tuple[int, int]] = []  # heap of (time, number)
        self.by_number: dict[int, JobBatch] = {}
        self.by_id: dict[str, JobBatch] = {}
        self.jobs: dict[int, dict[int, tuple[JobBatch, int]]] = {}  # by log and offset: the batch and the index
        self.unended = 0
        self.waiting_bytes = 0  # of callbacks and steps that are not produced yet
        self.next_number = 1
        self.folds: dict[type, Callable[[Any], None]] = {
            b.JobBatchCreated: self._created,
            b.JobBatchAdded: self._added,
            b.JobBatchSealed: self._sealed,
            b.JobBatchCancelled: self._cancelled,
            b.JobBatchMembersEnded: self._members_ended,
            b.JobBatchStepStarted: self._step_started,
            b.JobBatchEnded: self._ended,
            b.JobBatchesForgotten: self._forgotten,
            b.JobBatchState: self._restored,
            b.JobBatchMembersState: self._members_restored,
        }

    def __len__(self) -> int:
        return len(self.by_number)

    def find(self, batch_id: str) -> JobBatch | None:
        return self.by_id.get(batch_id)

    def first_of_many(self, log_id: int, count: int) -> int | None:
        """The first offset in a log of a member that has not ended; None if at most `count` have not."""
        jobs = self.jobs.get(log_id, ())
        return min(jobs) if len(jobs) > count else None

    def within(self, log_id: int, first: int, end: int) -> Iterator[tuple[JobBatch, int]]:
        """The members in a range of a log that have not ended. Costs as much as the smaller of range and members."""
        jobs = self.jobs.get(log_id)
        if jobs is None:
            return
        few = end - first < len(jobs)
        for offset in range(first, end) if few else sorted(offset for offset in jobs if first <= offset < end):
            if (member := jobs.get(offset)) is not None:
                yield member

    def next_ms(self) -> int | None:
        """When to forget the next one."""
        return self._expiries[0][0] if self._expiries else None

    def expired(self, now_ms: int, limit: int) -> tuple[int, ...]:
        """Outermost batches whose time is over."""
        due = (number for at_ms, number in heapq.nsmallest(limit, self._expiries) if at_ms <= now_ms)
        return tuple(number for number in due if number in self.by_number)

    # --- facts ---

    def _created(self, fact: b.JobBatchCreated) -> None:
        batch = self.by_number[fact.number] = self.by_id[fact.created.batch_id] = JobBatch(fact)
        self.next_number = max(self.next_number, fact.number + 1)
        self.unended += 1
        if fact.created.topic:
            self._use(batch, fact.created.topic)
        for _, callback in callbacks_of(fact.created):
            self._use(batch, callback.target_topic)
            self.waiting_bytes += template_bytes(callback)

    def _added(self, fact: b.JobBatchAdded) -> None:
        batch = self.by_number[fact.number]
        for member in fact.members:
            self._add(batch, member)
        self._schedule(batch)

    def _add(self, batch: JobBatch, member: b.BatchMember) -> None:
        batch.add(member)
        if member.log_id >= 0:
            self._follow(batch, len(batch.members) - 1, member.log_id, member.offset)
        elif member.step is not None:
            self.waiting_bytes += template_bytes(member.step)
            for topic in topics_of(member.step):
                self._use(batch, topic)

    def _follow(self, batch: JobBatch, index: int, log_id: int, offset: int) -> None:
        """The end of this job is the end of the member."""
        self.jobs.setdefault(log_id, {})[offset] = batch, index
        self._use(batch, self._logs[log_id].topic)

    def _use(self, batch: JobBatch, topic: str) -> None:
        """A topic belongs to the batch and to all around it."""
        user: JobBatch | None = batch
        while user is not None and topic not in user.topics:
            user.topics[topic] = None
            user = self.by_number.get(user.parent)

    def _sealed(self, fact: b.JobBatchSealed) -> None:
        batch = self.by_number[fact.number]
        batch.sealed = True
        self._schedule(batch)

    def _cancelled(self, fact: b.JobBatchCancelled) -> None:
        batch = self.by_number[fact.number]
        batch.sealed, batch.cancelled_ms = True, fact.at_ms
        self._schedule(batch)

    def _members_ended(self, fact: b.JobBatchMembersEnded) -> None:
        batch = self.by_number[fact.number]
        for first, end in fact.indexes:
            for index in range(first, end):
                self._end_member(batch, index, fact)
        self._schedule(batch)

    def _end_member(self, batch: JobBatch, index: int, fact: b.JobBatchMembersEnded) -> None:
        batch.turn(index, fact.state)
        member = batch.members[index]
        if member.log_id < 0:
            return
        jobs = self.jobs.get(member.log_id)
        if jobs is not None and jobs.pop(member.offset, None) is not None and not jobs:
            del self.jobs[member.log_id]
        stored = self._results.of(fact.group_id, member.log_id, member.offset)
        if stored is not None:
            batch.keep(b.JobBatchResult(index, stored.result, fact.error, stored.traceback))
        elif fact.error:
            batch.keep(b.JobBatchResult(index, b"", fact.error))

    def _step_started(self, fact: b.JobBatchStepStarted) -> None:
        batch = self.by_number[fact.number]
        step = batch.members[fact.index]
        assert step.step is not None, "a step is started once"
        self.waiting_bytes -= template_bytes(step.step)
        batch.members[fact.index] = b.BatchMember(fact.log_id, fact.offset, step.job_id)
        batch.turn(fact.index, b.RUNNING)
        batch.next_step = fact.index + 1
        if fact.log_id >= 0:
            self._follow(batch, fact.index, fact.log_id, fact.offset)
        self._schedule(batch)

    def _ended(self, fact: b.JobBatchEnded) -> None:
        batch = self.by_number[fact.number]
        batch.ended = fact
        self.unended -= 1
        self.waiting_bytes -= _waiting_bytes(batch)
        if fact.expires_ms:
            self._expire_at(batch, fact.expires_ms)

    def _expire_at(self, batch: JobBatch, at_ms: int) -> None:
        heapq.heappush(self._expiries, (at_ms, batch.number))
        self._deadlines.push(("job_batches", 0, 0), self.next_ms())

    def _forgotten(self, fact: b.JobBatchesForgotten) -> None:
        self.next_number = max(self.next_number, fact.next_number)
        numbers = list(fact.numbers)
        while numbers:
            batch = self.by_number.pop(numbers.pop())
            del self.by_id[batch.batch_id]
            numbers.extend(batch.children())
        while self._expiries and self._expiries[0][1] not in self.by_number:
            heapq.heappop(self._expiries)
        self._deadlines.push(("job_batches", 0, 0), self.next_ms())

    def _schedule(self, batch: JobBatch) -> None:
        """A sweep does what one frame had no room for: the rest of a cancellation, or the end."""
        at_ms = self.sweep_ms(batch.number)
        if at_ms is not None:
            self._deadlines.push(("job_batch", batch.number, 0), at_ms)

    def sweep_ms(self, number: int) -> int | None:
        """When a sweep should look at a batch; None if its members end by themselves."""
        batch = self.by_number.get(number)
        if batch is None or batch.ended is not None:
            return None
        return 1 if batch.is_due or batch.cancelled_ms else None

    # --- snapshot ---

    def snapshot(self) -> Iterator[Fact]:
        for batch in self.by_number.values():
            yield b.JobBatchState(
                batch.created, batch.sealed, batch.cancelled_ms, batch.ended, tuple(batch.topics), batch.results_lost
            )
            yield from _members_states(batch)
        if self.next_number > 1:
            yield b.JobBatchesForgotten((), self.next_number)

    def _restored(self, fact: b.JobBatchState) -> None:
        created = fact.created
        batch = self.by_number[created.number] = self.by_id[created.created.batch_id] = JobBatch(created)
        batch.sealed, batch.cancelled_ms, batch.ended = fact.sealed, fact.cancelled_ms, fact.ended
        batch.topics, batch.results_lost = dict.fromkeys(fact.topics), fact.results_lost
        if fact.ended is None:
            self.unended += 1
            self.waiting_bytes += _waiting_bytes(batch)
        elif fact.ended.expires_ms:
            self._expire_at(batch, fact.ended.expires_ms)
        self._schedule(batch)

    def _members_restored(self, fact: b.JobBatchMembersState) -> None:
        batch = self.by_number[fact.number]
        for member, state in zip(fact.members, fact.states, strict=True):
            index = len(batch.members)
            batch.add(member)
            batch.turn(index, state)
            if member.step is None:
                batch.next_step = index + 1
            elif batch.ended is None:
                self.waiting_bytes += template_bytes(member.step)
            if state == b.RUNNING and member.log_id >= 0:
                self.jobs.setdefault(member.log_id, {})[member.offset] = batch, index
        for result in fact.results:
            batch.keep(result)
        self._schedule(batch)


def _waiting_bytes(batch: JobBatch) -> int:
    """The size of what it may produce later: callbacks, and steps that were not started."""
    callbacks = sum(template_bytes(template) for _, template in callbacks_of(batch.created.created))
    return callbacks + sum(template_bytes(member.step) for member in batch.members if member.step is not None)


def _members_states(batch: JobBatch) -> Iterator[b.JobBatchMembersState]:
    """The members in several facts, none of which is very large."""
    first = size = 0
    for index, member in enumerate(batch.members):
        kept = batch.results.get(index)
        size += template_bytes(member.step) if member.step is not None else 0
        size += len(kept.result) + len(kept.traceback) if kept is not None else 0
        if index + 1 - first == MEMBERS_AT_ONCE or size >= STEPS_BYTES:
            yield _members_state(batch, first, index + 1)
            first, size = index + 1, 0
    if first < len(batch.members):
        yield _members_state(batch, first, len(batch.members))


def _members_state(batch: JobBatch, first: int, end: int) -> b.JobBatchMembersState:
    results = tuple(batch.results[index] for index in range(first, end) if index in batch.results)
    return b.JobBatchMembersState(
        batch.number, tuple(batch.members[first:end]), bytes(batch.states[first:end]), results
    )


# --- templates ---


def callbacks_of(template: b.JobBatchTemplate) -> list[tuple[str, b.JobTemplate]]:
    """What is produced at the end of a batch, by its role."""
    roles = (
        ("on_complete", template.on_complete),
        ("on_success", template.on_success),
        ("on_failure", template.on_failure),
    )
    return [(role, callback) for role, callback in roles if callback is not None]


def template_bytes(template: b.JobTemplate | b.JobBatchTemplate) -> int:
    """The size of a template, about."""
    if isinstance(template, b.JobTemplate):
        return MEMBER_BYTES + len(template.value) + len(template.key) + len(template.head)
    callbacks = sum(template_bytes(callback) for _, callback in callbacks_of(template))
    return MEMBER_BYTES + callbacks + sum(map(template_bytes, template.members))


def topics_of(template: b.JobTemplate | b.JobBatchTemplate) -> dict[str, None]:
    """The topics that a template produces to."""
    return dict.fromkeys(job.target_topic for job in jobs_in(template))


def count_of(template: b.JobTemplate | b.JobBatchTemplate) -> int:
    """How many members a template has, with all that is nested in it."""
    return 1 + sum(map(count_of, template.members)) if isinstance(template, b.JobBatchTemplate) else 1


def depth_of(template: b.JobTemplate | b.JobBatchTemplate) -> int:
    """How deep batches are nested in it; 0 for a job."""
    if isinstance(template, b.JobTemplate):
        return 0
    return 1 + max(map(depth_of, template.members), default=0)


def batches_in(template: b.JobTemplate | b.JobBatchTemplate) -> Iterator[b.JobBatchTemplate]:
    """All batches of a template, the outermost first."""
    if isinstance(template, b.JobBatchTemplate):
        yield template
        for member in template.members:
            yield from batches_in(member)


def jobs_in(template: b.JobTemplate | b.JobBatchTemplate) -> Iterator[b.JobTemplate]:
    """All jobs of a template, callbacks included."""
    if isinstance(template, b.JobTemplate):
        yield template
        return
    for _, callback in callbacks_of(template):
        yield callback
    for member in template.members:
        yield from jobs_in(member)
