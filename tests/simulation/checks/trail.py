"""The audit: every command that says who asks has exactly one record, in its own frame and with what became of it; and
nothing else is in the audit, nor removed from it by a caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import json

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.access import NoteAudit, OpenAudit
from driftq.core.model.replies import Rejected, Reply
from driftq.wire.audit import AUDIT_TOPIC, CHANGED, UNCHANGED
from driftq.wire.records import unpack
from tests.simulation.checks.violation import Violation, demand
from tests.simulation.operation import Operation

Recorded = tuple[str, str, str, str, int]  # action, who, request, result, count


class TrailCheck:
    """The log of the audit."""

    def __init__(self) -> None:
        self._log_id: int | None = None
        self.count = 0

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        return {f.TopicCreated: self._topic_created, f.TopicDeleted: self._kept, f.TopicConfigured: self._kept,
                f.Trimmed: self._trimmed, f.Cancelled: self._trimmed}  # fmt: skip

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {}

    def _topic_created(self, fact: f.TopicCreated, op: Operation) -> None:
        if fact.topic == AUDIT_TOPIC:
            demand(isinstance(op.command, OpenAudit) and self._log_id is None, "audit", f"{op} made the audit")
            self._log_id = fact.first_log_id

    def _kept(self, fact: f.TopicDeleted | f.TopicConfigured, op: Operation) -> None:
        if fact.topic == AUDIT_TOPIC:
            demand(isinstance(op.command, OpenAudit), "audit", f"{op} changed the audit: {fact}")

    def _trimmed(self, fact: f.Trimmed | f.Cancelled, op: Operation) -> None:
        if fact.log_id == self._log_id:
            demand(isinstance(op.command, c.Sweep), "audit", f"{op} removed records of the audit: {fact}")

    def frame(self, facts: list[f.Fact], op: Operation) -> None:
        """Look at a whole frame, after its facts."""
        appended = [fact for fact in facts if type(fact) is f.Appended and fact.log_id == self._log_id]
        recorded = [_recorded(record.value) for fact in appended for record in unpack(fact.batch)]
        result = CHANGED if len(facts) > len(appended) else UNCHANGED
        expected = self._expected(op.command, result) if self._log_id is not None else []
        if recorded != expected:
            raise Violation("audit", f"{op}: the audit has {recorded}, not {expected}")
        self.count += len(recorded)

    def _expected(self, command: c.Command, result: str) -> list[Recorded]:
        notes = command.notes if isinstance(command, NoteAudit) else ()
        expected = [(note.action, note.who, note.request_id, note.result, note.count) for note in notes]
        if command.audit is not None:
            expected.append((command.audit.action, command.audit.who, command.audit.request_id, result, 1))
        return expected

    def reply(self, op: Operation, reply: Reply) -> None:
        """What was done, and what was done already, has a record; so it has a frame."""
        if op.command.audit is not None and self._log_id is not None and not isinstance(reply, Rejected):
            demand(op.own, "audit", f"{op} was answered with {reply} and has no record")


def _recorded(value: bytes) -> Recorded:
    record = json.decode(value)
    return record["action"], record["who"], record["request_id"], record["result"], record["count"]
