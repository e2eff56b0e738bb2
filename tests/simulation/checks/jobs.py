"""Job ids: Q13. An id is in use while its job is unfinished, and for its ttl after the end: the job runs once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model import interventions as v
from driftq.core.model.replies import Produced
from tests.simulation.checks.ledger import Ledger
from tests.simulation.checks.queues import GroupModel, QueuesCheck
from tests.simulation.checks.violation import Violation
from tests.simulation.operation import Operation


class Job:
    """The message of an id. `ended_ms` is None while some group has not finished it."""

    __slots__ = ("ended_ms", "log_id", "offset", "ttl_ms")

    def __init__(self, log_id: int, offset: int, ttl_ms: int) -> None:
        self.log_id = log_id
        self.offset = offset
        self.ttl_ms = ttl_ms
        self.ended_ms: int | None = None

    def is_taken(self, now_ms: int) -> bool:
        return self.ended_ms is None or now_ms < self.ended_ms + self.ttl_ms


class JobsCheck:
    """All ids that are taken, and when their jobs ended."""

    def __init__(self, ledger: Ledger, queues: QueuesCheck) -> None:
        self._ledger = ledger
        self._queues = queues
        self._jobs: dict[str, Job] = {}
        self._moved = False

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        moves = (
            f.Settled, f.Cancelled, f.Trimmed, f.FilterNoted, f.GroupCreated, f.GroupSought, f.GroupDeleted,
        )  # fmt: skip
        return {f.Appended: self._appended, f.TopicDeleted: self._topic_deleted, **dict.fromkeys(moves, self._move)}

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {Produced: self._produced}

    def _appended(self, fact: f.Appended, op: Operation) -> None:
        scope = fact.along.job if fact.along is not None else ""
        asked = getattr(op.command, "job", None)
        if asked is not None and scope != _scope(asked):
            raise Violation("Q13", f"{op}: the id {asked.key!r} is not stored with its job")
        if not scope or fact.along is None:
            return
        known = self._jobs.get(scope)
        again = isinstance(op.command, v.Redrive) and known is not None and known.ended_ms is not None
        if known is not None and known.is_taken(op.at_ms) and not again:
            raise Violation("Q13", f"{op}: {scope!r} runs twice; the first is at {known.offset}, {known.ended_ms}")
        self._jobs[scope] = Job(fact.log_id, fact.first_offset, fact.along.job_ttl_ms)
        self._moved = True

    def _topic_deleted(self, fact: f.TopicDeleted, op: Operation) -> None:
        self._jobs = {scope: job for scope, job in self._jobs.items() if job.log_id not in fact.log_ids}

    def _move(self, fact: f.Fact, op: Operation) -> None:
        self._moved = True

    def finish(self, op: Operation) -> None:
        """After a change: which jobs have ended, and which are unfinished again?"""
        if self._moved:
            self._moved = False
            for job in self._jobs.values():
                if not job.is_taken(op.at_ms):
                    continue  # a later seek may run it again, but its id may be dropped
                if self._is_unfinished(job):
                    if job.is_taken(op.at_ms):  # a free id stays free, even after a seek
                        job.ended_ms = None
                elif job.ended_ms is None:
                    job.ended_ms = op.at_ms

    def _is_unfinished(self, job: Job) -> bool:
        log = self._ledger.logs[job.log_id]
        if job.offset < log.start or job.offset in self._queues.cancelled.get(job.log_id, ()):
            return False
        groups = [
            group for group in self._queues.groups.values() if job.log_id in group.places and self._claims(group, job)
        ]
        return not groups or not all(group.places[job.log_id].is_settled(job.offset) for group in groups)

    def _claims(self, group: GroupModel, job: Job) -> bool:
        mark = self._queues.marks.get(job.log_id, {}).get(job.offset) or f.RecordSchedule(0)
        return not group.filters or any(
            task in (None, mark.task) and label in (None, mark.label) for task, label in group.filters
        )

    def _produced(self, op: Operation, reply: Produced) -> None:
        asked = getattr(op.command, "job", None)
        if asked is not None and reply.duplicate:
            known = self._jobs.get(_scope(asked))
            if known is None or known.offset != reply.first_offset:
                raise Violation("Q13", f"{op}: reported as a repeat of {reply.first_offset}; the id is not in use")


def _scope(key: c.ProduceKey) -> str:
    return "\x1f".join((key.tenant, key.topic, key.key))
