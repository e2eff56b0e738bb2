"""Dead letters: Q7. Each is written in the frame that settles its message, once, with the original bytes, the attempts
and the last error; and nothing is settled as dead without one. A redrive sends back as many messages as it settles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driftq.core.model import facts as f
from driftq.core.model import interventions as v
from driftq.core.state.groups import HISTORY_SUFFIX
from driftq.core.transitions.retry import is_exhausted
from driftq.wire.message import DeadLetter, decode_head
from driftq.wire.records import unpack
from tests.simulation.checks.ledger import Ledger
from tests.simulation.checks.queues import QueuesCheck
from tests.simulation.checks.violation import Violation, demand
from tests.simulation.operation import Operation

Identity = tuple[int, int, str, int]  # log, offset, group, number of seeks of that group


class DeadLettersCheck:
    """Compares messages that died with their dead letters."""

    def __init__(self, ledger: Ledger, queues: QueuesCheck) -> None:
        self._ledger = ledger
        self._queues = queues
        self._written: dict[Identity, None] = {}
        self._letters: list[tuple[int, f.Appended]] = []
        self._dead: list[tuple[int, int, int]] = []
        self._again = 0  # messages that this frame appended to topics
        self._redriven = 0  # letters that it settled
        self.count = 0

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        return {f.Appended: self._appended, f.Settled: self._settled}

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {}

    def begin(self, op: Operation) -> None:
        self._letters.clear()
        self._dead.clear()
        self._again = self._redriven = 0

    def _appended(self, fact: f.Appended, op: Operation) -> None:
        if self._ledger.logs[fact.log_id].dead_of:
            self._letters.append((fact.log_id, fact))
            self._judge(fact, op)
        elif not self._ledger.logs[fact.log_id].topic.endswith(HISTORY_SUFFIX):
            self._again += fact.count

    def _settled(self, fact: f.Settled, op: Operation) -> None:
        if self._ledger.logs[fact.log_id].dead_of and fact.how == f.ACKED:
            self._redriven += sum(end - first for first, end in fact.ranges)
        if fact.how == f.DEAD and not self._ledger.logs[fact.log_id].dead_of:
            self._dead.extend((fact.group_id, fact.log_id, n) for first, end in fact.ranges for n in range(first, end))

    def _judge(self, fact: f.Appended, op: Operation) -> None:
        """Before the message itself is settled, so its history is still known."""
        log = self._ledger.logs[fact.log_id]
        record = unpack(fact.batch)[0]
        letter = decode_head(record.head).dlq
        if letter is None:
            raise Violation("Q7", f"{op}: a dead letter has no origin")
        origin = self._ledger.logs[self._ledger.topics[letter.topic][letter.partition]]
        demand(log.dead_of == letter.topic and log.partition == letter.partition, "Q7", f"{op}: a letter went astray")
        original = origin.record(letter.offset)
        same = (record.value, record.key) == (original.value, original.key)
        demand(same, "Q7", f"{op}: the dead letter of offset {letter.offset} is not the original message")
        self._judge_history(op, letter, origin.log_id)

    def _judge_history(self, op: Operation, letter: DeadLetter, log_id: int) -> None:
        group = next(
            group for group in self._queues.groups.values() if (group.topic, group.name) == (letter.topic, letter.group)
        )
        places = group.places[log_id]
        identity = (log_id, letter.offset, f"{group.group_id}", places.seeks)
        demand(identity not in self._written, "Q7", f"{op}: a second dead letter of {identity}")
        self._written[identity] = None
        self.count += 1
        attempts = places.attempts.get(letter.offset, 0)
        demand(letter.attempts == attempts, "Q7", f"{op}: the letter counts {letter.attempts} attempts, not {attempts}")
        if letter.reason == "max_attempts":
            policy = self._queues.policy_of(group, log_id, letter.offset)
            demand(is_exhausted(policy, attempts), "Q6", f"{op}: dead after {attempts} of {policy.max_attempts}")
        elif letter.reason == "deadline_exceeded":
            mark = self._queues.marks.get(log_id, {}).get(letter.offset)
            overdue = mark is not None and 0 < mark.deadline_ms <= op.at_ms
            demand(overdue, "deadline", f"{op}: offset {letter.offset} died before its deadline")

    def finish(self, op: Operation) -> None:
        """All or nothing: as many letters as deaths in one frame, for the same messages."""
        if isinstance(op.command, v.Redrive):
            demand(self._again == self._redriven, "Q7", f"{op}: {self._again} sent back, {self._redriven} settled")
        if not self._letters and not self._dead:
            return
        letters = []
        for _, fact in self._letters:
            letter = decode_head(unpack(fact.batch)[0].head).dlq
            assert letter is not None
            letters.append((self._ledger.topics[letter.topic][letter.partition], letter.offset))
        died = [(log_id, offset) for _, log_id, offset in self._dead]
        demand(sorted(letters) == sorted(died), "Q7", f"{op}: letters of {letters}, deaths of {died} in one frame")
