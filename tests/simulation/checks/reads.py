"""L10 for everything that is not a record: an answer from the state shows what is durable, no more and no less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.checks.restarts import RestartsCheck
from tests.simulation.checks.violation import Violation
from tests.simulation.op import Op
from tests.simulation.queries import Question, Shown, shown


class ReadsCheck:
    """Asks the fold of all durable facts what the broker was asked."""

    def __init__(self, restarts: RestartsCheck) -> None:
        self._restarts = restarts
        self.waited = 0

    def folds(self) -> dict[type, Callable[[Any, Op], None]]:
        return {}

    def judges(self) -> dict[type, Callable[[Op, Any], None]]:
        return {Shown: self._shown}

    def _shown(self, op: Op, reply: Shown) -> None:
        assert isinstance(op.command, Question)
        self.waited += op.lsn > op.seen_lsn
        durable = shown(op.command, self._restarts.shadow.state)
        if reply != durable:
            raise Violation("L10", f"{op} was shown {reply.value}, and {durable.value} is durable")
