"""What operators do by hand. A move is one frame: as many messages appear in other topics as are settled, each for
every group, and none that a worker holds. What is retried does not wait any more. A purge leaves nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driftq.core.model import facts as f
from driftq.core.model import interventions as v
from driftq.core.model.job_facts import MadeDue
from driftq.core.model.replies import Produced, PurgeResult, RedriveResult, Touched
from driftq.core.state.groups import HISTORY_SUFFIX
from tests.simulation.checks.ledger import Ledger
from tests.simulation.checks.queues import QueuesCheck
from tests.simulation.checks.violation import demand
from tests.simulation.operation import Operation

if TYPE_CHECKING:
    from collections.abc import Callable


class InterventionsCheck:
    """Sees each fact before the queues change their places."""

    def __init__(self, ledger: Ledger, queues: QueuesCheck) -> None:
        self._ledger = ledger
        self._queues = queues
        self._appended = 0  # messages that this frame appended to topics
        self._withdrawn = 0  # messages that it withdrew from every group
        self.made_due = self.moved = self.deleted = self.purged = 0

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        return {f.Appended: self._append, f.Settled: self._settle, f.Cancelled: self._cancel, MadeDue: self._made_due}

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {Touched: self._touched, PurgeResult: self._purge_result, RedriveResult: self._move_result}

    def begin(self) -> None:
        self._appended = self._withdrawn = 0

    def _append(self, fact: f.Appended, op: Operation) -> None:
        if not self._ledger.logs[fact.log_id].topic.endswith(HISTORY_SUFFIX):
            self._appended += fact.count

    def _settle(self, fact: f.Settled, op: Operation) -> None:
        if not isinstance(op.command, v.MoveMessages):
            return
        places = self._queues.groups[fact.group_id].places[fact.log_id]
        for first, end in fact.ranges:
            for offset in range(first, end):
                held = offset in places.held
                demand(not held, "move", f"{op}: offset {offset} was moved while a worker held it")

    def _cancel(self, fact: f.Cancelled, op: Operation) -> None:
        if not isinstance(op.command, v.MoveMessages):
            return
        self._withdrawn += 1
        log_id, offset = fact.log_id, fact.offset
        demand(offset not in self._queues.cancelled.get(log_id, ()), "move", f"{op}: offset {offset} was moved twice")
        self.moved += 1

    def _made_due(self, fact: MadeDue, op: Operation) -> None:
        self.made_due += sum(end - first for first, end in fact.ranges)

    def finish(self, op: Operation) -> None:
        if isinstance(op.command, v.MoveMessages):
            same = self._appended == self._withdrawn
            demand(same, "move", f"{op}: {self._appended} were sent, {self._withdrawn} were withdrawn")

    # --- replies, in the state in which they were decided ---

    def _touched(self, op: Operation, reply: Touched) -> None:
        command = op.command
        if isinstance(command, v.DeleteDeadLetters):
            self.deleted += reply.count
            self._letters_are_gone(op, command)
        else:
            assert isinstance(command, v.RetryMessages)
            self._nothing_waits(op, command)

    def _letters_are_gone(self, op: Operation, command: v.DeleteDeadLetters) -> None:
        group = self._queues.group(command.topic, command.group)
        log_ids = self._ledger.topics.get(command.topic, ())
        for letters in command.letters:
            log_id = log_ids[letters.partition]
            for offset in range(max(letters.first, self._ledger.logs[log_id].start), self._seen_end(op, log_id)):
                is_gone = group is not None and group.places[log_id].is_settled(offset)
                demand(is_gone or offset >= letters.end, "delete", f"{op}: letter {offset} still waits")

    def _seen_end(self, op: Operation, log_id: int) -> int:
        """What was durable when the command was decided."""
        log = self._ledger.logs[log_id]
        end: int = log.end
        while end > log.start and log.lsn_of(end - 1) > op.seen_lsn:
            end -= 1
        return end

    def _nothing_waits(self, op: Operation, command: v.RetryMessages) -> None:
        log_id = self._ledger.topics[command.topic][command.partition]
        for group in self._queues.groups.values():
            places = group.places.get(log_id)
            for offset in command.offsets if places is not None else ():
                assert places is not None
                waits = places.resting.get(offset, 0) > op.at_ms
                demand(not waits, "retry", f"{op}: offset {offset} waits until {places.resting.get(offset)}")
        log = self._ledger.logs[log_id]
        for offset in command.offsets:
            if log.start <= offset < log.end and not self._is_over(log_id, offset):
                delayed = self._queues.is_delayed(log_id, offset, op.at_ms)
                demand(not delayed, "retry", f"{op}: a new group would wait for offset {offset}")

    def _is_over(self, log_id: int, offset: int) -> bool:
        """Whether some group has finished it, or none ever gets it."""
        readers = [group.places[log_id] for group in self._queues.groups.values() if log_id in group.places]
        is_cancelled = offset in self._queues.cancelled.get(log_id, ())
        return is_cancelled or any(places.is_settled(offset) for places in readers)

    def _purge_result(self, op: Operation, reply: PurgeResult) -> None:
        command = op.command
        assert isinstance(command, v.PurgeTopic)
        self.purged += reply.messages
        for log_id in self._ledger.topics.get(command.topic, ()):
            log = self._ledger.logs[log_id]
            demand(log.start == log.end, "purge", f"{op}: log {log_id} still holds {log.start} to {log.end}")
        for group in self._queues.groups.values():
            if group.topic == command.topic:
                pending = [places for places in group.places.values() if places.held or places.resting]
                demand(not pending, "purge", f"{op}: group {group.name} still has pending messages")

    def _move_result(self, op: Operation, reply: RedriveResult) -> None:
        command = op.command
        if not isinstance(command, v.MoveMessages):
            return
        for part, result in zip(command.parts, reply.parts, strict=True):
            if not isinstance(result, Produced):
                continue
            log_id = self._ledger.topics[command.topic][part.partition]
            for group in self._queues.groups.values():
                places = group.places.get(log_id)
                for offset in part.offsets if places is not None else ():
                    assert places is not None
                    demand(places.is_settled(offset), "move", f"{op}: {group.name} still has offset {offset}")
