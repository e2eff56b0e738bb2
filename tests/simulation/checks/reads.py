"""L10 for everything that is not a record: a query shows exactly what is durable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.checks.restarts import RestartsCheck
from tests.simulation.checks.violation import Violation
from tests.simulation.operation import Operation
from tests.simulation.queries import Question, Shown, shown


class ReadsCheck:
    """Compares each query with the fold of all durable facts."""

    def __init__(self, restarts: RestartsCheck) -> None:
        self._restarts = restarts
        self.waited = 0

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        return {}

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {Shown: self._shown}

    def _shown(self, op: Operation, reply: Shown) -> None:
        assert isinstance(op.command, Question)
        self.waited += op.lsn > op.seen_lsn
        durable = shown(op.command, self._restarts.shadow.state)
        if reply != durable:
            raise Violation("L10", f"{op} was shown {reply.value}, and {durable.value} is durable")
