"""Results and reports: a result is stored in the frame that settles its message and in no other, as the worker sent it;
it is there until it expires. A report is the last one, until its message is settled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.job_facts import ProgressReported, ResultsForgotten, ResultStored
from driftq.core.model.limits import BrokerLimits
from driftq.core.state.state import State
from tests.simulation.checks.ledger import Ledger
from tests.simulation.checks.queues import QueuesCheck
from tests.simulation.checks.violation import demand
from tests.simulation.operation import Operation

Key = tuple[int, int, int]  # group, log, offset


class ResultsCheck:
    """What every group should know of the jobs that it ended, and of those that run."""

    def __init__(self, ledger: Ledger, queues: QueuesCheck, limits: BrokerLimits) -> None:
        self._ledger = ledger
        self._queues = queues
        self._limits = limits
        self.results: dict[Key, ResultStored] = {}
        self.reports: dict[Key, bytes] = {}
        self.stored = self.forgotten = self.reported = 0
        self._settled: dict[Key, int] = {}  # in the current frame, and how
        self._new: dict[Key, ResultStored] = {}  # in the current frame

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        return {
            f.Settled: self._settle,
            f.GroupSought: lambda fact, op: self._restart(fact.group_id, fact.log_id, fact.offset),
            f.GroupDeleted: lambda fact, op: self._forget(lambda key: key[0] == fact.group_id),
            f.TopicDeleted: lambda fact, op: self._delete_topic(fact),
            f.Trimmed: self._trim,
            ResultStored: self._store,
            ProgressReported: self._report,
            ResultsForgotten: self._expire,
        }

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {}

    def _settle(self, fact: f.Settled, op: Operation) -> None:
        for first, end in fact.ranges:
            for offset in range(first, end):
                key = (fact.group_id, fact.log_id, offset)
                self._settled[key] = fact.how
                self.reports.pop(key, None)

    def _store(self, fact: ResultStored, op: Operation) -> None:
        key = (fact.group_id, fact.log_id, fact.offset)
        due_ms = op.at_ms + self._limits.job_result_ttl_ms
        demand(fact.expires_ms == due_ms, "result", f"{op} keeps a result until {fact.expires_ms}, not {due_ms}")
        self.results.pop(key, None)  # the newest is last
        self._new[key] = self.results[key] = fact
        self.stored += 1

    def _expire(self, fact: ResultsForgotten, op: Operation) -> None:
        for key in list(self.results)[: fact.count]:
            result = self.results.pop(key)
            demand(
                result.expires_ms <= op.at_ms, "result", f"{op} forgot the result of {key} before its time: {result}"
            )
        self.forgotten += fact.count

    def _report(self, fact: ProgressReported, op: Operation) -> None:
        key = (fact.group_id, fact.log_id, fact.offset)
        sent = isinstance(op.command, c.Extend) and fact.progress in {held.progress for held in op.command.held}
        demand(sent, "progress", f"{op} reported {fact.progress!r}, which no worker sent")
        self.reports[key] = fact.progress
        self.reported += 1

    def _restart(self, group_id: int, log_id: int, offset: int) -> None:
        self._forget(lambda key: key[:2] == (group_id, log_id) and key[2] >= offset)
        self.reports = {key: report for key, report in self.reports.items() if key[:2] != (group_id, log_id)}

    def _delete_topic(self, fact: f.TopicDeleted) -> None:
        self._forget(lambda key: key[1] in fact.log_ids or key[0] not in self._queues.groups)

    def _trim(self, fact: f.Trimmed, op: Operation) -> None:
        trimmed = [key for key in self.reports if key[1] == fact.log_id and key[2] < fact.start_offset]
        for key in trimmed:
            del self.reports[key]

    def _forget(self, is_gone: Callable[[Key], bool]) -> None:
        self.results = {key: result for key, result in self.results.items() if not is_gone(key)}
        self.reports = {key: report for key, report in self.reports.items() if not is_gone(key)}

    def finish(self, op: Operation) -> None:
        """The frame is complete: no result without the end of its message, no end without the result that was sent."""
        for key, result in self._new.items():
            how = f.DEAD if result.traceback else f.ACKED
            demand(self._settled.get(key) == how, "result", f"{op} stored a result without the end of {key}")
        for key, sent in self._sent(op.command).items():
            if self._settled.get(key) == f.ACKED:
                stored = self._new.get(key)
                demand(stored is not None, "result", f"{op} acked {key} and lost its result")
                assert stored is not None
                demand(stored.result == sent, "result", f"{op} stored {stored.result!r} for {key}, not {sent!r}")
        self._settled.clear()
        self._new.clear()

    def _sent(self, command: c.Command) -> dict[Key, bytes]:
        """The results that a command brings."""
        sent: dict[Key, bytes] = {}
        for ack in _acks(command):
            group = self._queues.group(ack.topic, ack.group)
            log_ids = self._ledger.topics.get(ack.topic, ())
            for held in ack.held if group is not None else ():
                if held.result and held.partition < len(log_ids):
                    assert group is not None
                    sent[group.group_id, log_ids[held.partition], held.first] = held.result
        return sent

    def compare(self, state: State, now_ms: int) -> None:
        live = {key: result for key, result in self.results.items() if result.expires_ms > now_ms}
        for key, result in live.items():
            demand(state.results.find(*key, now_ms) == result, "result", f"the result of {key} is gone: {result}")
        known = {
            (fact.group_id, fact.log_id, fact.offset) for fact in state.results.snapshot() if _is_live(fact, now_ms)
        }
        demand(known == set(live), "result", f"there are results of {sorted(known ^ set(live))[:5]} that differ")
        reports = {(fact.group_id, fact.log_id, fact.offset): fact.progress for fact in state.reports.snapshot()}
        demand(reports == self.reports, "progress", f"reports differ: {reports} instead of {self.reports}")


def _is_live(fact: Any, now_ms: int) -> bool:
    return isinstance(fact, ResultStored) and fact.expires_ms > now_ms


def _acks(command: Any) -> tuple[c.Ack, ...]:
    if isinstance(command, c.CommitOutcome):
        return command.acks
    if isinstance(command, c.Claim):
        return (c.Ack(command.topic, command.group, command.owner, command.acks),)
    return (command,) if isinstance(command, c.Ack) else ()
