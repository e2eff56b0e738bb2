"""All checkers together: they see every frame and every reply in the one order in which they were decided.

Frames are what became durable; replies are what clients received. A reply is checked in the state in which it
was decided: later frames wait until then. After a restart everything on disk is
compared with what the frames say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driftq.core.model.facts import Fact
from driftq.core.model.replies import OutcomeReply, Rejected, Reply
from driftq.core.state.state import State
from driftq.engine.folder_storage import Opened
from tests.simulation.checks.access import AccessCheck
from tests.simulation.checks.backlogs import BacklogsCheck
from tests.simulation.checks.claims import ClaimsCheck
from tests.simulation.checks.dead_letters import DeadLettersCheck
from tests.simulation.checks.effects import EffectsCheck
from tests.simulation.checks.history import HistoryCheck
from tests.simulation.checks.interventions import InterventionsCheck
from tests.simulation.checks.job_batches import JobBatchesCheck
from tests.simulation.checks.jobs import JobsCheck
from tests.simulation.checks.ledger import Ledger
from tests.simulation.checks.outcomes import OutcomesCheck
from tests.simulation.checks.producers import ProducersCheck
from tests.simulation.checks.queues import QueuesCheck
from tests.simulation.checks.reads import ReadsCheck
from tests.simulation.checks.restarts import RestartsCheck
from tests.simulation.checks.results import ResultsCheck
from tests.simulation.checks.retention import RetentionCheck
from tests.simulation.checks.schedules import SchedulesCheck
from tests.simulation.checks.stages import StagingCheck
from tests.simulation.checks.streams import StreamsCheck
from tests.simulation.checks.tenants import TenantsCheck
from tests.simulation.checks.trail import TrailCheck
from tests.simulation.checks.violation import Violation
from tests.simulation.checks.wakes import WakesCheck
from tests.simulation.operation import Operation
from tests.simulation.swarm import Swarm

Fold = Callable[[Any, Operation], None]


class Audit:
    """Passes frames and replies to the checkers."""

    def __init__(self, swarm: Swarm) -> None:
        self.lsn = 0
        self.watermark_lsn = 0
        self.ledger = Ledger()
        self.producers = ProducersCheck(swarm.limits)
        self.queues = QueuesCheck(self.ledger, swarm.limits)
        self.jobs = JobsCheck(self.ledger, self.queues)
        self.interventions = InterventionsCheck(self.ledger, self.queues)
        self.claims = ClaimsCheck(self.ledger, self.queues, swarm.limits)
        self.letters = DeadLettersCheck(self.ledger, self.queues)
        self.streams = StreamsCheck(self.ledger)
        self.staging = StagingCheck(self.ledger, swarm.limits)
        self.backlogs = BacklogsCheck(self.ledger, self.queues, swarm.limits)
        self.retention = RetentionCheck(self.ledger, self.queues, self.backlogs, swarm.limits)
        self.effects = EffectsCheck(self.queues)
        self.outcomes = OutcomesCheck(self.ledger, self.queues, swarm.limits)
        self.results = ResultsCheck(self.ledger, self.queues, swarm.limits)
        self.job_batches = JobBatchesCheck(self.ledger, self.queues, swarm.limits)
        self.wakes = WakesCheck()
        self.access = AccessCheck()
        self.tenants = TenantsCheck()
        self.trail = TrailCheck()
        self.schedules = SchedulesCheck(self.ledger)
        self.history = HistoryCheck(self.ledger, self.queues)
        self.restarts = RestartsCheck(swarm, self.ledger)
        self.reads = ReadsCheck(self.restarts)
        # Dead letters, history, claims and retention need the positions before the queues change them. The ledger is
        # last, so that the others see the old ends.
        self._checks: tuple[Any, ...] = (
            self.restarts, self.letters, self.history, self.interventions, self.claims, self.retention, self.producers,
            self.streams, self.staging, self.queues, self.jobs, self.backlogs, self.effects, self.outcomes,
            self.results, self.job_batches, self.wakes, self.access, self.tenants, self.schedules, self.trail,
            self.reads,
            self.ledger,
        )  # fmt: skip
        self._folds: dict[type, list[Fold]] = {}
        self._replies: dict[type, list[Callable[[Operation, Any], None]]] = {}
        for check in self._checks:
            for kind, fold in check.folds().items():
                self._folds.setdefault(kind, []).append(fold)
            for kind, judge in check.judges().items():
                self._replies.setdefault(kind, []).append(judge)

    def frame(self, lsn: int, facts: list[Fact], op: Operation) -> None:
        if lsn != self.lsn + 1:
            raise Violation("order", f"frame {lsn} became durable after {self.lsn}")
        self.lsn = lsn
        self.letters.begin(op)
        self.claims.begin()
        self.interventions.begin()
        self.ledger.begin(op)
        self.outcomes.begin(op)
        for fact in facts:
            for fold in self._folds[type(fact)]:
                fold(fact, op)
        self.letters.finish(op)
        self.interventions.finish(op)
        self.history.finish(op)
        self.queues.finish(op)
        self.jobs.finish(op)
        self.results.finish(op)
        self.job_batches.finish(op)
        self.trail.frame(facts, op)
        self.schedules.finish()

    def reply(self, op: Operation, reply: Reply) -> None:
        if type(reply) is Rejected and op.own:
            raise Violation("all or nothing", f"{op} was refused ({reply.code}) and wrote a frame")
        if op.own and op.lsn <= op.seen_lsn:
            raise Violation("L4", f"{op} came before what was durable when it was asked")
        self.trail.reply(op, reply)
        if type(reply) is OutcomeReply and reply.duplicate:
            self.outcomes.repeated(op, reply)  # the state of the first time; it may have changed since
            return
        for judge in self._replies.get(type(reply), ()):
            judge(op, reply)

    def unknown(self, op: Operation) -> None:
        """The client got no answer; the frames show how it ended."""
        self.streams.unknown(op)

    def restarted(self, opened: Opened, frames: list[bytes], now_ms: int, *, reads: bool) -> None:
        self.restarts.restarted(opened, frames)
        if reads:
            self.restarts.logs(opened)
        self.compare(opened.broker.state, now_ms)

    def folded(self, opened: Opened, lsn: int, frames: list[bytes]) -> None:
        self.restarts.folded(opened, lsn, frames)

    def compare(self, state: State, now_ms: int) -> None:
        """When nothing is in flight, the broker and the naive models must agree."""
        self.queues.compare(state, now_ms)
        self.streams.compare(state, now_ms)
        self.wakes.compare(state, now_ms)
        self.results.compare(state, now_ms)
        self.job_batches.compare(state, now_ms)
        self.access.compare(state, now_ms)
        self.tenants.compare(state)
        self.schedules.compare(state)
