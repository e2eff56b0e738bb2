"""Back-pressure: a refused produce names the slowest group that counts, and idle groups do not.

A group is idle only after a time without a claim, an ack or a seek. The model takes the last use from durable facts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driftq.core.model import facts as f
from driftq.core.model.facts import GroupCaughtUp, GroupIdled
from driftq.core.model.limits import BrokerLimits
from driftq.core.model.replies import Rejected
from tests.simulation.checks.ledger import Ledger
from tests.simulation.checks.queues import QueuesCheck
from tests.simulation.checks.violation import demand
from tests.simulation.operation import Operation


class BacklogsCheck:
    """When groups were used, and which of them count."""

    def __init__(self, ledger: Ledger, queues: QueuesCheck, limits: BrokerLimits) -> None:
        self._ledger = ledger
        self._queues = queues
        self._limits = limits
        self.used_ms: dict[int, int] = {}
        self.idle: set[int] = set()
        self.idled = 0
        self.caught_up = 0
        self.refused = 0

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        return {
            f.GroupCreated: self._used,
            f.GroupSought: self._used,
            f.Leased: self._used,
            f.Settled: lambda fact, op: self._used(fact, op) if fact.how == f.ACKED else None,
            GroupIdled: self._idled,
            GroupCaughtUp: self._caught_up,
        }

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {Rejected: self._rejected}

    def _used(self, fact: Any, op: Operation) -> None:
        self.used_ms[fact.group_id] = max(self.used_ms.get(fact.group_id, 0), fact.at_ms)

    def _idled(self, fact: GroupIdled, op: Operation) -> None:
        unused_ms = fact.at_ms - self.used_ms[fact.group_id]
        demand(unused_ms >= self._limits.groups_idle_ms > 0, "idle", f"{op}: a group is idle after {unused_ms} ms")
        demand(fact.group_id not in self.idle, "idle", f"{op}: a group became idle twice")
        behind = any(
            places.floor < self._ledger.logs[log_id].end
            for log_id, places in self._queues.groups[fact.group_id].places.items()
        )
        demand(behind, "idle", f"{op}: a group that is not behind became idle")
        self.idle.add(fact.group_id)
        self.idled += 1

    def _caught_up(self, fact: GroupCaughtUp, op: Operation) -> None:
        demand(fact.group_id in self.idle, "idle", f"{op}: a group that counts was to count again")
        self.idle.discard(fact.group_id)
        self._used(fact, op)
        self.caught_up += 1

    def _rejected(self, op: Operation, reply: Rejected) -> None:
        if reply.details.get("reason") != "partition_buffer_full":
            return
        log_id = self._ledger.topics[reply.details["topic"]][reply.details["partition"]]
        counted = [
            (group.places[log_id].floor, group.name)
            for group in self._queues.groups.values()
            if log_id in group.places and group.group_id not in self.idle
        ]
        slowest = min((floor for floor, _ in counted), default=-1)
        named = [floor for floor, name in counted if name == reply.details["group"]]
        demand(named == [slowest], "back-pressure", f"{op}: {reply.details}, but of {counted} the slowest counts")
        self.refused += 1
