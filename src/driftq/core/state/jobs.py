"""Jobs: the attempts of tracked messages, and whether a job is finished.

Only messages with a job id or a task are tracked (`RecordSchedule.tracked`); nothing is stored for a plain message
after it is settled. The table is bounded: the job that changed longest ago is forgotten first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from driftq.core.model import facts as f
from driftq.core.model.snapshot_facts import HistoryState

if TYPE_CHECKING:
    from driftq.core.model.ranges import Range
    from driftq.core.state.groups import Group
    from driftq.core.state.logs import Log

JOBS_MAX = 100_000
ATTEMPTS_MAX = 32

RUNNING = ""
_ENDS = {f.ACKED: "succeeded", f.DEAD: "dead", f.CANCELLED: "cancelled", f.SKIPPED: "skipped"}


class Attempt(NamedTuple):
    """One delivery of a job to an owner. `end` is empty while it runs."""

    group_id: int
    number: int
    owner: str
    began_ms: int
    ended_ms: int = 0
    end: str = RUNNING
    error: str = ""


class JobAttempts:
    """Attempts by (log, offset), the most recently changed job last."""

    __slots__ = ("_jobs",)

    def __init__(self) -> None:
        self._jobs: dict[tuple[int, int], list[Attempt]] = {}

    def of(self, log_id: int, offset: int) -> list[Attempt]:
        return self._jobs.get((log_id, offset), [])

    def lease(self, log: Log, fact: f.Leased) -> None:
        for offset in _tracked(log, fact.ranges):
            attempts = self._changed(log.log_id, offset)
            number = 1 + max((attempt.number for attempt in attempts if attempt.group_id == fact.group_id), default=0)
            attempts.append(Attempt(fact.group_id, number, fact.owner, fact.at_ms))
            del attempts[:-ATTEMPTS_MAX]

    def fail(self, log: Log, fact: f.Failed) -> None:
        for offset in _tracked(log, ((fact.offset, fact.offset + 1),)):
            self._end(log, offset, fact.group_id, fact.at_ms, "lost" if fact.lease_lost else "failed", fact.error)

    def explain(self, log: Log, fact: f.FailureExplained) -> None:
        for offset in _tracked(log, ((fact.offset, fact.offset + 1),)):
            self._end(log, offset, fact.group_id, fact.at_ms, "failed", fact.error)

    def release(self, log: Log, fact: f.Released) -> None:
        for offset in _tracked(log, fact.ranges):
            attempts = self._changed(log.log_id, offset)
            if not fact.sent and attempts and attempts[-1].group_id == fact.group_id:
                attempts.pop()  # no client saw it
            else:
                self._end(log, offset, fact.group_id, fact.retry_at_ms, "released", "")

    def settle(self, log: Log, fact: f.Settled) -> None:
        for offset in _tracked(log, fact.ranges):
            self._end(log, offset, fact.group_id, fact.at_ms, _ENDS[fact.how], fact.error)

    def _end(self, log: Log, offset: int, group_id: int, at_ms: int, end: str, error: str) -> None:
        attempts = self._changed(log.log_id, offset)
        for index in range(len(attempts) - 1, -1, -1):
            attempt = attempts[index]
            if attempt.group_id == group_id:
                # A later end replaces an earlier one: a failed attempt may become a dead letter or be cancelled.
                attempts[index] = attempt._replace(ended_ms=at_ms, end=end, error=error or attempt.error)
                return
        attempts.append(Attempt(group_id, 0, "", 0, at_ms, end, error))

    def _changed(self, log_id: int, offset: int) -> list[Attempt]:
        attempts = self._jobs.pop((log_id, offset), None)
        if attempts is None:
            attempts = []
            if len(self._jobs) >= JOBS_MAX:
                del self._jobs[next(iter(self._jobs))]
        self._jobs[log_id, offset] = attempts
        return attempts

    def snapshot(self) -> Iterator[HistoryState]:
        for (log_id, offset), attempts in self._jobs.items():
            saved = tuple((a.group_id, a.number, a.owner, a.began_ms, a.ended_ms, a.end, a.error) for a in attempts)
            yield HistoryState(log_id, offset, saved)

    def restore(self, fact: HistoryState) -> None:
        self._jobs[fact.log_id, fact.offset] = [Attempt(*attempt) for attempt in fact.attempts]


def _tracked(log: Log, ranges: Iterable[Range]) -> Iterator[int]:
    for first, end in ranges:
        yield from log.tracked.within(first, end)


# --- whether a job is finished, which decides how long its id is in use ---


class JobTenure:
    """Whether the messages of job ids are finished, for `core.state.idempotency_keys`."""

    __slots__ = ("_groups", "_logs")

    def __init__(self, logs: dict[int, Log], groups: dict[int, Group]) -> None:
        self._logs = logs
        self._groups = groups

    def topic_of(self, log_id: int) -> str:
        log = self._logs.get(log_id)
        return log.topic if log is not None else ""

    def ended_ms(self, log_id: int) -> int:
        log = self._logs.get(log_id)
        return log.ended_ms if log is not None else 0

    def is_unfinished(self, log_id: int, offset: int) -> bool:
        log = self._logs.get(log_id)
        if log is None or offset < log.start or offset in log.cancelled:
            return False
        claimed = False
        for group_id in log.readers:
            group = self._groups[group_id]
            progress = group.progress[log.partition]
            if progress.is_pending(offset):
                return True  # whatever the group asks for now
            if claims(group, log, offset):
                claimed = True
                if not progress.is_settled(offset):
                    return True
        return not claimed


def claims(group: Group, log: Log, offset: int) -> bool:
    """Whether a group asks for the lane of a message, judging by its claims so far."""
    if not group.filters:
        return True
    lane = log.lanes.key_of(offset)
    return group.claims(lane.task, lane.label) if lane is not None else group.claims("", "")
