"""What the end of a job means to the batches that it belongs to, decided in the frame that ends it.

Whatever a command does, its facts show which members of batches end (`_Collector`): acks, dead letters, cancellations,
trims, deleted topics, moved groups. Then, in the same frame (`_Ends`):

1. The members are recorded as ended.
2. A chain whose step succeeded produces the next one, with the result of the step; after a failure its other steps are
   cancelled.
3. A sealed batch all of whose members have ended ends, and its messages are produced: `on_complete` always, then
   `on_success` or `on_failure`. Its end is the end of a member of the batch around it: continue at 1.

A frame that is full leaves 2 and 3 to a sweep: the state shows that they are due. The messages are admitted like dead
letters, whatever the backlog is.

    facts of the command ──▶ _Collector ──▶ members that end ──▶ _Ends ──▶ steps, callbacks, batches that end
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Raw, UnsetType
from msgspec.structs import replace

from driftq.core.model import facts as f
from driftq.core.model import job_batch_facts as b
from driftq.core.model.commands import Sweep
from driftq.core.model.job_facts import ResultStored
from driftq.core.model.ranges import runs
from driftq.core.state.job_batches import callbacks_of
from driftq.core.transitions.job_batch_members import Nesting, next_number, place, produce_admitted, record_batch
from driftq.wire.message import JobBatchPart
from driftq.wire.namespaces import own_name

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.model.commands import Command
    from driftq.core.model.replies import Produced
    from driftq.core.state.job_batches import JobBatch

_HOW = {f.ACKED: b.SUCCEEDED, f.SKIPPED: b.SUCCEEDED, f.DEAD: b.FAILED, f.CANCELLED: b.CANCELLED}
_EVERY_OFFSET = 1 << 62


def end_members(ctx: DecisionContext, command: Command) -> None:
    """Add what a command's facts mean to batches."""
    collector = _Collector(ctx)
    for fact in list(ctx.facts):
        collector.take(fact)
    ends = _Ends(ctx, collector.results)
    for fact in list(ctx.facts):
        ends.note(fact)
    for (number, end), indexes in collector.ended.items():
        ends.end_members(number, end, indexes)
    if isinstance(command, Sweep):
        ends.unchecked.extend(number for kind, number, _ in command.subjects if kind == "job_batch")
    ends.run()


# --- which members end ---


class _End(NamedTuple):
    """How a member ended."""

    how: int
    group_id: int = 0
    error: str = ""


class _Collector:
    """The members that the facts of a frame end, and their results."""

    def __init__(self, ctx: DecisionContext) -> None:
        self._ctx = ctx
        self._jobs = ctx.state.job_batches
        self._new_groups: dict[int, str] = {}
        self._seen: set[tuple[int, int]] = set()
        self.ended: dict[tuple[int, _End], list[int]] = {}  # by number of the batch: indexes
        self.results: dict[tuple[int, int], bytes] = {}  # of members, by number and index

    def take(self, fact: f.Fact) -> None:
        match fact:
            case f.Settled():
                if fact.log_id in self._jobs.jobs:
                    end = _End(_HOW[fact.how], fact.group_id, fact.error)
                    for first, stop in fact.ranges:
                        self._end(fact.log_id, first, stop, end, self._group_name(fact.group_id))
            case ResultStored():
                self._take_result(fact)
            case f.Cancelled():
                self._end(fact.log_id, fact.offset, fact.offset + 1, _End(b.CANCELLED))
            case f.Trimmed():
                self._end(fact.log_id, 0, fact.start_offset, _End(b.DROPPED))
            case f.TopicDeleted():
                for log_id in fact.log_ids:
                    self._end(log_id, 0, _EVERY_OFFSET, _End(b.DROPPED))
            case f.GroupSought():
                self._end(fact.log_id, 0, fact.offset, _End(b.DROPPED), self._group_name(fact.group_id))
            case f.GroupCreated():
                self._new_groups[fact.group_id] = fact.group
                log_ids = self._ctx.state.topics[fact.topic].log_ids
                for log_id, start in zip(log_ids, fact.starts, strict=True):
                    self._end(log_id, 0, start, _End(b.DROPPED), fact.group)
            case _:
                pass

    def _group_name(self, group_id: int) -> str:
        group = self._ctx.state.groups.get(group_id)
        return group.name if group is not None else self._new_groups.get(group_id, "")

    def _end(self, log_id: int, first: int, stop: int, end: _End, group: str | None = None) -> None:
        """End the members of a range; with a group only those for which it counts."""
        for batch, index in self._jobs.within(log_id, first, stop):
            key = (batch.number, index)
            if key not in self._seen and group in (None, batch.created.created.group):
                self._seen.add(key)
                self.ended.setdefault((batch.number, end), []).append(index)

    def _take_result(self, fact: ResultStored) -> None:
        for batch, index in self._jobs.within(fact.log_id, fact.offset, fact.offset + 1):
            if batch.created.created.group == self._group_name(fact.group_id):
                self.results[batch.number, index] = fact.result


# --- what follows from it ---


class _BatchView:
    """A batch as it will be after the facts of this frame."""

    __slots__ = ("cancelled", "counts", "created", "ended", "members", "next_step", "sealed")

    def __init__(self, created: b.JobBatchCreated, batch: JobBatch | None = None) -> None:
        self.created = created
        self.sealed = batch is not None and batch.sealed
        self.cancelled = batch is not None and batch.cancelled_ms > 0
        self.ended = batch is not None and batch.ended is not None
        self.counts = list(batch.counts) if batch is not None else [0] * 6
        self.next_step = batch.next_step if batch is not None else 0
        self.members: list[b.BatchMember] = batch.members if batch is not None else []  # not of this frame

    def has_failed(self) -> bool:
        return bool(self.counts[b.FAILED] or self.counts[b.CANCELLED] or self.counts[b.DROPPED])

    def how(self) -> int:
        if self.cancelled:
            return b.CANCELLED
        return b.FAILED if self.has_failed() else b.SUCCEEDED


class _Ends:
    """Decides, batch by batch, what follows from the members that ended."""

    def __init__(self, ctx: DecisionContext, results: dict[tuple[int, int], bytes]) -> None:
        self._ctx = ctx
        self._results = results
        self._views: dict[int, _BatchView] = {}
        self._deleted: set[str] = set()  # topics that this frame deletes
        self.unchecked: list[int] = []  # numbers of batches that may end, or start a step

    def note(self, fact: f.Fact) -> None:
        """A fact that was decided in this frame."""
        match fact:
            case f.TopicDeleted():
                self._deleted.add(fact.topic)
            case b.JobBatchCreated():
                self._views[fact.number] = _BatchView(fact)
            case b.JobBatchAdded():
                self._note_added(fact)
            case b.JobBatchSealed() | b.JobBatchCancelled():
                view = self._view(fact.number)
                if view is not None:
                    view.sealed = True
                    view.cancelled |= isinstance(fact, b.JobBatchCancelled)
                    self.unchecked.append(fact.number)
            case _:
                pass

    def _note_added(self, fact: b.JobBatchAdded) -> None:
        view = self._view(fact.number)
        if view is None:
            return
        first = len(view.members)
        view.members = [*view.members, *fact.members]
        for index, member in enumerate(fact.members, first):
            view.counts[b.WAITING if member.log_id == b.WAITING_STEP else b.RUNNING] += 1
            if member.log_id == b.GONE:
                self.end_members(fact.number, _End(b.DROPPED), [index])

    def _view(self, number: int) -> _BatchView | None:
        view = self._views.get(number)
        batch = self._ctx.state.job_batches.by_number.get(number)
        if view is None and batch is not None:
            view = self._views[number] = _BatchView(batch.created, batch)
        return view

    def end_members(self, number: int, end: _End, indexes: list[int], before: int = b.RUNNING) -> None:
        view = self._view(number)
        if view is None:
            return
        view.counts[before] -= len(indexes)
        view.counts[end.how] += len(indexes)
        ranges = tuple(runs(sorted(indexes)))
        self._ctx.facts.append(
            b.JobBatchMembersEnded(number, end.how, ranges, self._ctx.now_ms, end.group_id, end.error)
        )
        self.unchecked.append(number)

    def run(self) -> None:
        """Until nothing more follows. A batch ends once, so this ends."""
        while self.unchecked:
            number = self.unchecked.pop()
            view = self._view(number)
            if view is not None and not view.ended:
                self._check(number, view)

    def _check(self, number: int, view: _BatchView) -> None:
        counts = view.counts
        if counts[b.WAITING] and (view.cancelled or view.has_failed()):
            self.end_members(
                number, _End(b.CANCELLED), list(range(view.next_step, len(view.members))), before=b.WAITING
            )
        if counts[b.RUNNING] or not view.sealed or self._ctx.is_full():
            return
        if counts[b.WAITING]:
            self._start_step(number, view)
        else:
            self._end(number, view)

    def _start_step(self, number: int, view: _BatchView) -> None:
        index = view.next_step
        step = view.members[index].step
        assert step is not None, "a step that waits has a template"
        if isinstance(step, b.JobTemplate):
            log_id, offset = place(self._ctx, self._produce(step, self._part(number, view)))
        else:
            log_id, offset = b.CHILD, next_number(self._ctx)
        self._ctx.facts.append(b.JobBatchStepStarted(number, index, log_id, offset, self._ctx.now_ms))
        view.members = [*view.members]
        view.members[index] = b.BatchMember(log_id, offset)
        view.next_step += 1
        view.counts[b.WAITING] -= 1
        view.counts[b.RUNNING] += 1
        if log_id == b.GONE:
            self.end_members(number, _End(b.DROPPED), [index])
        elif isinstance(step, b.JobBatchTemplate):
            self._start_batch(number, view, index, step)

    def _start_batch(self, number: int, view: _BatchView, index: int, template: b.JobBatchTemplate) -> None:
        """A step that is a batch: it and its members get the result of the step before it."""
        before = len(self._ctx.facts)
        part = self._part(number, view, index)
        record_batch(
            self._ctx,
            template,
            Nesting(number, index, view.created.depth + 1),
            lambda job, batch_id: self._produce(job, replace(part, id=own_name(batch_id))),
        )
        for fact in self._ctx.facts[before:]:
            self.note(fact)

    def _produce(self, template: b.JobTemplate, part: JobBatchPart) -> Produced | None:
        return None if template.target_topic in self._deleted else produce_admitted(self._ctx, template, part)

    def _part(self, number: int, view: _BatchView, index: int | None = None) -> JobBatchPart:
        """The part of the next step of a chain: what the step before it left."""
        index = view.next_step if index is None else index
        part = JobBatchPart(own_name(view.created.created.batch_id))
        if not index:
            return self._input(view, part)
        before = view.members[index - 1]
        if before.log_id == b.CHILD:
            child = self._view(before.offset)
            assert child is not None, "what is nested is forgotten with the outermost batch"
            return replace(part, previous_batch=own_name(child.created.created.batch_id))
        return replace(part, previous=self._result(number, index - 1))

    def _input(self, view: _BatchView, part: JobBatchPart) -> JobBatchPart:
        """What the first step of a nested chain gets: the same as the nested batch."""
        parent = self._view(view.created.parent) if view.created.parent else None
        if parent is None:
            return part
        if parent.created.created.kind == b.CHAIN:
            outer = self._part(view.created.parent, parent, view.created.index)
        else:
            outer = self._input(parent, part)
        return replace(outer, id=part.id)

    def _result(self, number: int, index: int) -> Raw | UnsetType:
        result = self._results.get((number, index), b"")
        batch = self._ctx.state.job_batches.by_number.get(number)
        if not result and batch is not None and index in batch.results:
            result = batch.results[index].result
        return Raw(result or b"null")

    def _end(self, number: int, view: _BatchView) -> None:
        """The batch ends: produce what it asks for, and end it in the batch around it."""
        ctx, created = self._ctx, view.created
        view.ended, how = True, view.how()
        callbacks: list[b.JobBatchCallback] = []
        part = JobBatchPart(own_name(created.created.batch_id), state=b.STATE_NAMES[how])
        for role, template in callbacks_of(created.created):
            if role == "on_complete" or (role == "on_success") == (how == b.SUCCEEDED):
                produced = self._produce(template, replace(part, role=role))
                callbacks.append(b.JobBatchCallback(role, *place(ctx, produced)))
        expires_ms = 0 if created.parent else ctx.now_ms + (created.created.ttl_ms or ctx.limits.job_batch_ttl_ms)
        ctx.facts.append(b.JobBatchEnded(number, how, ctx.now_ms, expires_ms, tuple(callbacks)))
        if created.parent:
            self.end_members(created.parent, _End(how), [created.index])
