"""Staged appends: invisible until published, then visible together, once for each batch number, in the order of the
handles. A repeat gets the first result; other content under a published number is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from driftq.core.model import facts as f
from driftq.core.model.effect_facts import Published, Staged, StagesForgotten
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import PublishedReply, Rejected
from driftq.wire.errors import Code
from driftq.wire.records import stamp
from tests.simulation.checks.ledger import Ledger
from tests.simulation.checks.violation import Violation, demand
from tests.simulation.operation import Operation


class StagedBatch(NamedTuple):
    log_id: int
    offset: int
    count: int
    batch: bytes


class Stage:
    __slots__ = ("batches", "expires_ms", "writer")

    def __init__(self, writer: str) -> None:
        self.writer = writer
        self.expires_ms = 0
        self.batches: list[StagedBatch] = []


class StagingCheck:
    """What is staged and what each writer published last."""

    def __init__(self, ledger: Ledger, limits: BrokerLimits) -> None:
        self._ledger = ledger
        self._limits = limits
        self._stages: dict[str, Stage] = {}
        self._last: dict[str, tuple[int, tuple[tuple[int, int, int], ...]]] = {}
        self._contents: dict[str, str] = {}  # the identity of what each writer published last
        self.published = 0

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        return {Staged: self._staged, Published: self._published, StagesForgotten: self._forgotten}

    def _staged(self, fact: Staged, op: Operation) -> None:
        stage = self._stages.setdefault(fact.handle, Stage(fact.writer))
        demand(stage.writer == fact.writer, "staging", f"{op}: a handle of {stage.writer} was taken by {fact.writer}")
        stage.expires_ms = fact.expires_ms
        stage.batches.append(StagedBatch(fact.target_log_id, fact.first_offset, fact.count, fact.batch))

    def _published(self, fact: Published, op: Operation) -> None:
        number, _ = self._last.get(fact.writer, (-1 << 60, ()))
        if fact.batch_number <= number:
            raise Violation("staging", f"{op}: batch {fact.batch_number} was published after {number}")
        expected: list[StagedBatch] = []
        for handle in dict.fromkeys(op.command.handles):  # type: ignore[attr-defined]
            stage = self._stages.get(handle)
            if stage is None or stage.writer != fact.writer or stage.expires_ms <= op.at_ms:
                raise Violation("staging", f"{op}: {handle} was published, but it is not staged any more")
            expected += stage.batches
        reported = [(part.log_id, part.staged_offset, part.count) for part in fact.parts]
        if reported != [batch[:3] for batch in expected]:
            raise Violation("staging", f"{op}: published {reported}; staged in order were {[b[:3] for b in expected]}")
        for part, batch in zip(fact.parts, expected, strict=True):
            shown = stamp(batch.batch, part.first_offset, fact.at_ms)
            self._ledger.show(part.log_id, part.first_offset, part.count, shown, op.lsn)
        self._last[fact.writer] = (
            fact.batch_number, tuple((part.log_id, part.first_offset, part.count) for part in fact.parts)
        )  # fmt: skip
        self._contents[fact.writer] = op.command.content  # type: ignore[attr-defined]
        self._stages = {handle: stage for handle, stage in self._stages.items() if stage.writer != fact.writer}
        self._keeps(fact.staging_start, op)
        self._ledger.trim(f.STAGING_LOG, fact.staging_start)
        self.published += 1

    def _forgotten(self, fact: StagesForgotten, op: Operation) -> None:
        for handle in fact.handles:
            stage = self._stages.pop(handle, None)
            given_up = handle in getattr(op.command, "handles", ())
            if stage is None or not (given_up or stage.expires_ms <= op.at_ms):
                raise Violation("staging", f"{op}: {handle} was dropped before its TTL")
        self._keeps(fact.staging_start, op)

    def _keeps(self, start: int, op: Operation) -> None:
        """A batch that is still staged must not be truncated."""
        lowest = min((stage.batches[0].offset for stage in self._stages.values()), default=start)
        demand(start <= lowest, "staging", f"{op}: the staging log begins at {start}; {lowest} is still staged")

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {PublishedReply: self._publish_reply, Rejected: self._refusal}

    def _publish_reply(self, op: Operation, reply: PublishedReply) -> None:
        number, parts = self._last[op.command.writer]  # type: ignore[attr-defined]
        reported = tuple((part.log_id, part.first_offset, part.count) for part in reply.parts)
        if (reply.batch_number, reported) != (number, parts):
            raise Violation(
                "staging", f"{op}: the reply has {reply.batch_number} {reported}; published was {number} {parts}"
            )
        demand(reply.duplicate != op.own, "staging", f"{op}: duplicate is {reply.duplicate}")
        demand(not self._differs(op), "staging", f"{op}: other content was answered as a repeat")

    def _differs(self, op: Operation) -> bool:
        content = op.command.content  # type: ignore[attr-defined]
        return "" != content != self._contents[op.command.writer] != ""  # type: ignore[attr-defined]

    def _refusal(self, op: Operation, reply: Rejected) -> None:
        if op.command.__class__.__name__ == "Publish" and reply.code is Code.CONFLICT:
            number, _ = self._last[op.command.writer]  # type: ignore[attr-defined]
            demand(op.command.batch_number < number, "staging", f"{op} was called too late")  # type: ignore[attr-defined]
        if reply.code is Code.CONTENT_MISMATCH:
            number, _ = self._last[op.command.writer]  # type: ignore[attr-defined]
            is_same = op.command.batch_number == number  # type: ignore[attr-defined]
            demand(is_same and self._differs(op), "staging", f"{op}: a repeat was refused as other content")
