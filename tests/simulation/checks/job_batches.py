"""Job batches: a member ends once, in the frame that ends its job, and with the job's end. A sealed batch ends in the
frame in which the last of its members ends, and its messages are produced there, once. A chain continues in the frame
of the ack, with its result. A repeated creation or addition changes nothing.

The model looks at the places of messages in the model of the queues, and at nothing of the product but its facts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from driftq.core.model import facts as f
from driftq.core.model import job_batch_facts as b
from driftq.core.model import job_batches as j
from driftq.core.model.job_facts import ResultStored
from driftq.core.model.limits import BrokerLimits
from driftq.core.state.state import State
from driftq.wire.message import read_head
from driftq.wire.records import Record, unpack
from tests.simulation.checks.ledger import Ledger
from tests.simulation.checks.queues import QueuesCheck
from tests.simulation.checks.violation import demand
from tests.simulation.operation import JOB_OF_A_BATCH, Operation

_HOW = {f.ACKED: b.SUCCEEDED, f.SKIPPED: b.SUCCEEDED, f.DEAD: b.FAILED, f.CANCELLED: b.CANCELLED}
PLACE = tuple[int, int]  # log and offset


class Batch:
    """What the model knows of a batch."""

    def __init__(self, fact: b.JobBatchCreated) -> None:
        self.fact = fact
        self.template = fact.created
        self.members: list[b.BatchMember] = []
        self.ends: dict[int, int] = {}  # by member
        self.results: dict[int, bytes] = {}  # by member
        self.sealed = self.cancelled = False
        self.deferred = False  # a full frame left it to a sweep
        self.values: list[bytes] = []  # of the jobs that were produced for it
        self.ended: b.JobBatchEnded | None = None

    @property
    def name(self) -> str:
        return f"batch {self.template.batch_id}"

    def live(self) -> Iterator[tuple[int, b.BatchMember]]:
        for index, member in enumerate(self.members):
            if index not in self.ends and member.log_id >= 0:
                yield index, member

    def is_over(self) -> bool:
        return self.sealed and len(self.ends) == len(self.members)

    def expected_end(self) -> int:
        if self.cancelled:
            return b.CANCELLED
        return b.SUCCEEDED if all(end == b.SUCCEEDED for end in self.ends.values()) else b.FAILED


class JobBatchesCheck:
    """Every batch that was made."""

    def __init__(self, ledger: Ledger, queues: QueuesCheck, limits: BrokerLimits) -> None:
        self._ledger = ledger
        self._queues = queues
        self._limits = limits
        self._batches: dict[int, Batch] = {}
        self._topics: dict[int, str] = {}  # by log
        self._values: Counter[bytes] = Counter()
        self._settled: dict[tuple[str, int, int], int] = {}  # in this frame: how, by group, log and offset
        self._results: dict[tuple[str, int, int], bytes] = {}  # in this frame
        self._appended: dict[PLACE, Record] = {}  # in this frame
        self._touched = self._heavy = False
        self.ended = self.steps = 0

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        moves = (f.Cancelled, f.Trimmed, f.TopicDeleted, f.GroupSought, f.GroupCreated)
        return {
            f.TopicCreated: self._topic_created,
            f.Appended: self._append,
            f.Settled: self._settle,
            f.Failed: self._fail,
            ResultStored: self._store,
            b.JobBatchCreated: self._create,
            b.JobBatchAdded: self._add,
            b.JobBatchSealed: self._seal,
            b.JobBatchCancelled: self._cancel,
            b.JobBatchMembersEnded: self._end_members,
            b.JobBatchStepStarted: self._start_step,
            b.JobBatchEnded: self._end,
            b.JobBatchesForgotten: self._forget,
            **dict.fromkeys(moves, self._touch),
        }

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {j.JobBatchChanged: self._changed}

    # --- what happens to jobs ---

    def _topic_created(self, fact: f.TopicCreated, op: Operation) -> None:
        for log_id in range(fact.first_log_id, fact.first_log_id + fact.partitions):
            self._topics[log_id] = fact.topic

    def _append(self, fact: f.Appended, op: Operation) -> None:
        if JOB_OF_A_BATCH not in fact.batch or fact.log_id not in self._topics:
            self._heavy = True
            return
        (record,) = unpack(fact.batch)
        self._appended[fact.log_id, fact.first_offset] = record
        is_again = getattr(op.command, "parts", None) is not None  # a redriven one
        self._values[record.value] += not is_again
        demand(self._values[record.value] <= 1, "batch", f"{op} produced {record.value!r} twice")

    def _fail(self, fact: f.Failed, op: Operation) -> None:
        self._heavy = True

    def _touch(self, fact: Any, op: Operation) -> None:
        self._touched = True

    def _settle(self, fact: f.Settled, op: Operation) -> None:
        self._touched = True
        group = self._queues.groups.get(fact.group_id)
        for first, end in fact.ranges if group is not None else ():
            for offset in range(first, end):
                assert group is not None
                self._settled.setdefault((group.name, fact.log_id, offset), _HOW[fact.how])

    def _store(self, fact: ResultStored, op: Operation) -> None:
        group = self._queues.groups.get(fact.group_id)
        if group is not None:
            self._results[group.name, fact.log_id, fact.offset] = fact.result

    # --- what happens to batches ---

    def _create(self, fact: b.JobBatchCreated, op: Operation) -> None:
        demand(fact.number not in self._batches, "batch", f"{op} gave number {fact.number} out twice")
        self._batches[fact.number] = Batch(fact)

    def _add(self, fact: b.JobBatchAdded, op: Operation) -> None:
        batch = self._batches[fact.number]
        demand(not batch.sealed, "batch", f"{op} added to {batch.name}, which is sealed")
        for member in fact.members:
            if member.log_id >= 0:
                record = self._appended.get((member.log_id, member.offset))
                demand(record is not None, "batch", f"{op} added a job that it did not make")
                assert record is not None
                batch.values.append(record.value)
            batch.members.append(member)

    def _seal(self, fact: b.JobBatchSealed, op: Operation) -> None:
        self._batches[fact.number].sealed = True

    def _cancel(self, fact: b.JobBatchCancelled, op: Operation) -> None:
        batch = self._batches[fact.number]
        batch.sealed = batch.cancelled = True

    def _end_members(self, fact: b.JobBatchMembersEnded, op: Operation) -> None:
        batch = self._batches[fact.number]
        for first, end in fact.indexes:
            for index in range(first, end):
                demand(index not in batch.ends, "batch", f"{op} ended member {index} of {batch.name} twice")
                batch.ends[index] = fact.state
                member = batch.members[index]
                if member.log_id >= 0:
                    self._judge_end(op, batch, index, member, fact.state)

    def _judge_end(self, op: Operation, batch: Batch, index: int, member: b.BatchMember, how: int) -> None:
        causes = self._causes(batch, member)
        demand(how in causes, "batch", f"{op} ended member {index} of {batch.name} as {how}, its job as {causes}")
        result = self._results.get((batch.template.group, member.log_id, member.offset))
        if result:
            batch.results[index] = result

    def _causes(self, batch: Batch, member: b.BatchMember) -> set[int]:
        """How this job has ended; empty if it has not."""
        log = self._ledger.logs.get(member.log_id)
        key = (batch.template.group, member.log_id, member.offset)
        causes = {self._settled[key]} if key in self._settled else set()
        if log is None or member.offset < log.start:
            causes.add(b.DROPPED)
            return causes
        if member.offset in self._queues.cancelled.get(member.log_id, ()):
            causes.add(b.CANCELLED)
        group = self._queues.group(self._topics[member.log_id], batch.template.group)
        if not causes and group is not None and group.places[member.log_id].is_settled(member.offset):
            causes.add(b.DROPPED)
        return causes

    def _start_step(self, fact: b.JobBatchStepStarted, op: Operation) -> None:
        batch = self._batches[fact.number]
        before = batch.members[fact.index]
        demand(before.log_id == b.WAITING_STEP, "batch", f"{op} started step {fact.index} of {batch.name} twice")
        ready = set(range(fact.index)) == {index for index, end in batch.ends.items() if end == b.SUCCEEDED}
        demand(ready, "batch", f"{op} started step {fact.index} of {batch.name} after {batch.ends}")
        batch.members[fact.index] = b.BatchMember(fact.log_id, fact.offset, before.job_id)
        batch.deferred = False
        self.steps += 1
        if fact.log_id >= 0:
            batch.values.append(self._appended[fact.log_id, fact.offset].value)
        if fact.log_id >= 0 and fact.index and batch.members[fact.index - 1].log_id >= 0:
            record = self._appended[fact.log_id, fact.offset]
            part = read_head(record.head).job_batch
            expected = batch.results.get(fact.index - 1, b"null")
            demand(
                part is not None and bytes(part.previous) == expected,  # type: ignore[arg-type]
                "batch",
                f"{op}: step {fact.index} of {batch.name} got {part}, not {expected!r}",
            )

    def _end(self, fact: b.JobBatchEnded, op: Operation) -> None:
        batch = self._batches[fact.number]
        demand(batch.ended is None, "batch", f"{op} ended {batch.name} twice")
        demand(batch.is_over(), "batch", f"{op} ended {batch.name} before its members: {batch.ends}")
        demand(fact.state == batch.expected_end(), "batch", f"{op} ended {batch.name} as {fact.state}: {batch.ends}")
        batch.ended = fact
        self.ended += 1
        template = batch.template
        second = (
            ("on_success", template.on_success) if fact.state == b.SUCCEEDED else ("on_failure", template.on_failure)
        )
        expected = {
            role: callback for role, callback in (("on_complete", template.on_complete), second) if callback is not None
        }
        demand(
            [callback.role for callback in fact.callbacks] == list(expected), "batch", f"{op} of {batch.name}: {fact}"
        )
        for callback in fact.callbacks:
            if callback.log_id != b.GONE:
                record = self._appended.get((callback.log_id, callback.offset))
                is_there = record is not None and record.value == expected[callback.role].value
                demand(is_there, "batch", f"{op} ended {batch.name} without its {callback.role} in the frame")
                batch.values.append(expected[callback.role].value)

    def _forget(self, fact: b.JobBatchesForgotten, op: Operation) -> None:
        for number in fact.numbers:
            ended = self._batches[number].ended
            demand(ended is not None and 0 < ended.expires_ms <= op.at_ms, "batch", f"{op} forgot {number} too early")
            self._drop(number)

    def _drop(self, number: int) -> None:
        """Its id can be used again, so a repeat of its creation creates it again."""
        batch = self._batches.pop(number)
        for value in batch.values:
            del self._values[value]
        for member in batch.members:
            if member.log_id == b.CHILD:
                self._drop(member.offset)

    # --- when a frame is complete ---

    def finish(self, op: Operation) -> None:
        if self._touched or self._appended:
            heavy = self._heavy or sum(record.size_bytes + 300 for record in self._appended.values()) >= min(
                self._limits.batch_bytes, self._limits.slice_bytes
            )
            for batch in self._batches.values():
                self._judge(op, batch, heavy)
        self._settled.clear()
        self._results.clear()
        self._appended.clear()
        self._touched = self._heavy = False

    def _judge(self, op: Operation, batch: Batch, heavy: bool) -> None:
        if batch.ended is not None:
            return
        for index, member in batch.live():
            causes = self._causes(batch, member)
            demand(not causes, "batch", f"{op} ended the job of member {index} of {batch.name}, not the member")
        if self._is_due(batch):
            demand(heavy or batch.deferred, "batch", f"{op} left {batch.name} as it is: {batch.ends}")
            batch.deferred = True

    def _is_due(self, batch: Batch) -> bool:
        """Whether it must end, or start its next step."""
        running = any(
            index not in batch.ends and member.log_id != b.WAITING_STEP for index, member in enumerate(batch.members)
        )
        return batch.ended is None and batch.sealed and not running

    # --- replies and states ---

    def _changed(self, op: Operation, reply: j.JobBatchChanged) -> None:
        if isinstance(op.command, j.CreateJobBatch | j.AddToJobBatch):
            demand(reply.changed == op.own, "batch", f"{op}: changed={reply.changed}, but wrote a frame: {op.own}")

    def compare(self, state: State, now_ms: int) -> None:
        table = state.job_batches
        demand(set(table.by_number) == set(self._batches), "batch", f"there are {list(table.by_number)}")
        jobs: set[PLACE] = set()
        for number, batch in self._batches.items():
            known = table.by_number[number]
            ends = {index: state for index, state in enumerate(known.states) if state not in (b.RUNNING, b.WAITING)}
            demand(ends == batch.ends, "batch", f"{batch.name} has {ends}, not {batch.ends}")
            results = {index: kept.result for index, kept in known.results.items() if kept.result}
            demand(results == batch.results, "batch", f"{batch.name} keeps {results}, not {batch.results}")
            demand(known.ended == batch.ended, "batch", f"{batch.name} ended as {known.ended}, not {batch.ended}")
            jobs |= {(member.log_id, member.offset) for _, member in batch.live()}
        indexed = {(log_id, offset) for log_id, offsets in table.jobs.items() for offset in offsets}
        demand(indexed == jobs, "batch", f"the index of jobs has {sorted(indexed ^ jobs)[:5]} too much or too little")
        demand(
            table.unended == sum(batch.ended is None for batch in self._batches.values()), "batch", "unended is wrong"
        )

    def has_any(self) -> bool:
        return bool(self._batches)

    def finished(self) -> None:
        """Everything is quiet: nothing is due that no sweep does."""
        batches = self._batches.values()
        due = [batch.name for batch in batches if self._is_due(batch) or (batch.cancelled and any(batch.live()))]
        demand(not due, "liveness", f"these should have ended: {due}")
