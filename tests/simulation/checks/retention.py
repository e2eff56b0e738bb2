"""Retention: a group in use that commits its offsets, or any group in use if the topic says so, finds what it has not
read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from driftq.core.model import commands as c
from driftq.core.model import facts as f
from driftq.core.model.limits import BrokerLimits
from tests.simulation.checks.backlogs import BacklogsCheck
from tests.simulation.checks.ledger import Ledger, LogHistory
from tests.simulation.checks.queues import GroupModel, QueuesCheck
from tests.simulation.checks.violation import Violation
from tests.simulation.operation import Operation


class RetentionCheck:
    """Compares each trim with where the groups are. It must see a frame before the queues do."""

    def __init__(self, ledger: Ledger, queues: QueuesCheck, backlogs: BacklogsCheck, limits: BrokerLimits) -> None:
        self._ledger = ledger
        self._queues = queues
        self._backlogs = backlogs
        self._limits = limits

    def folds(self) -> dict[type, Callable[[Any, Operation], None]]:
        return {f.Trimmed: self._trimmed}

    def judges(self) -> dict[type, Callable[[Operation, Any], None]]:
        return {}

    def _trimmed(self, fact: f.Trimmed, op: Operation) -> None:
        log = self._ledger.logs[fact.log_id]
        if not isinstance(op.command, c.Sweep) or not log.topic:
            return  # on request, or of a stream
        keep = self._queues.configs[log.topic].keep_unread
        for group in self._queues.groups.values():
            if group.topic != log.topic or keep == f.KEEP_NONE or not (group.commits_offsets or keep == f.KEEP_ALL):
                continue
            first = max(log.start, group.places[log.log_id].floor)
            if first < fact.start_offset and self._is_in_use(group, log, first, fact.at_ms):
                raise Violation(
                    "retention", f"{op} trimmed log {log.log_id} to {fact.start_offset}; {group.name} is at {first}"
                )

    def _is_in_use(self, group: GroupModel, log: LogHistory, first: int, at_ms: int) -> bool:
        since_ms = at_ms - self._limits.keep_unread_ms
        if not self._limits.keep_unread_ms or group.group_id in self._backlogs.idle:
            return False
        return self._backlogs.used_ms[group.group_id] > since_ms or log.time_of(first) > since_ms
