"""Staged appends: invisible until published, then all of them together, once for each batch number, in the order of the
handles; a repeat gets the first result."""

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
from tests.simulation.op import Op


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
        self.published = 0

    def folds(self) -> dict[type, Callable[[Any, Op], None]]:
        return {Staged: self._staged, Published: self._published, StagesForgotten: self._forgotten}

    def _staged(self, fact: Staged, op: Op) -> None:
        stage = self._stages.setdefault(fact.handle, Stage(fact.writer))
        demand(stage.writer == fact.writer, "staging", f"{op}: a handle of {stage.writer} was taken by {fact.writer}")
        stage.expires_ms = fact.expires_ms
        stage.batches.append(StagedBatch(fact.target_log_id, fact.first_offset, fact.count, fact.batch))

    def _published(self, fact: Published, op: Op) -> None:
        number, _ = self._last.get(fact.writer, (-1 << 60, ()))
        if fact.batch_number <= number:
            raise Violation("staging", f"{op}: batch {fact.batch_number} was published behind {number}")
        expected: list[StagedBatch] = []
        for handle in dict.fromkeys(op.command.handles):  # type: ignore[attr-defined]
            stage = self._stages.get(handle)
            if stage is None or stage.writer != fact.writer or stage.expires_ms <= op.at_ms:
                raise Violation("staging", f"{op}: {handle} was published, but it is not staged (any more)")
            expected += stage.batches
        told = [(part.log_id, part.staged_offset, part.count) for part in fact.parts]
        if told != [batch[:3] for batch in expected]:
            raise Violation("staging", f"{op}: published {told}; staged in order were {[b[:3] for b in expected]}")
        for part, batch in zip(fact.parts, expected, strict=True):
            shown = stamp(batch.batch, part.first_offset, fact.at_ms)
            self._ledger.show(part.log_id, part.first_offset, part.count, shown, op.lsn)
        self._last[fact.writer] = (
            fact.batch_number, tuple((part.log_id, part.first_offset, part.count) for part in fact.parts)
        )  # fmt: skip
        self._stages = {handle: stage for handle, stage in self._stages.items() if stage.writer != fact.writer}
        self._keeps(fact.staging_start, op)
        self._ledger.trim(f.STAGING_LOG, fact.staging_start)
        self.published += 1

    def _forgotten(self, fact: StagesForgotten, op: Op) -> None:
        for handle in fact.handles:
            stage = self._stages.pop(handle, None)
            given_up = handle in getattr(op.command, "handles", ())
            if stage is None or not (given_up or stage.expires_ms <= op.at_ms):
                raise Violation("staging", f"{op}: {handle} was forgotten before its time")
        self._keeps(fact.staging_start, op)

    def _keeps(self, start: int, op: Op) -> None:
        """What is still staged must not be cut off."""
        lowest = min((stage.batches[0].offset for stage in self._stages.values()), default=start)
        demand(start <= lowest, "staging", f"{op}: the staging log begins at {start}; {lowest} is still staged")

    def judges(self) -> dict[type, Callable[[Op, Any], None]]:
        return {PublishedReply: self._told, Rejected: self._told_no}

    def _told(self, op: Op, reply: PublishedReply) -> None:
        number, parts = self._last[op.command.writer]  # type: ignore[attr-defined]
        told = tuple((part.log_id, part.first_offset, part.count) for part in reply.parts)
        if (reply.batch_number, told) != (number, parts):
            raise Violation("staging", f"{op}: told {reply.batch_number} {told}; published was {number} {parts}")
        demand(reply.duplicate != op.own, "staging", f"{op}: duplicate is {reply.duplicate}")

    def _told_no(self, op: Op, reply: Rejected) -> None:
        if op.command.__class__.__name__ == "Publish" and reply.code is Code.CONFLICT:
            number, _ = self._last[op.command.writer]  # type: ignore[attr-defined]
            demand(op.command.batch_number < number, "staging", f"{op} was called too late")  # type: ignore[attr-defined]
