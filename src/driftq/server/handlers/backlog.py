"""A partition's backlog as the API shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core.state.backlog import Backlog, backlog_of
from driftq.wire.topics import BacklogInfo

if TYPE_CHECKING:
    from driftq.core.state.logs import Log
    from driftq.engine.queries import StateView

NEARLY_FULL = 0.8  # from here on an operator should be warned


def backlog_in(view: StateView, log: Log) -> Backlog | None:
    """None if the backlog limits no producer: no active group reads the partition, or only the broker writes to it."""
    return None if view.state.topics[log.topic].dead_of else backlog_of(view.state, view.limits, log)


def backlog_info(backlog: Backlog | None) -> BacklogInfo | None:
    if backlog is None:
        return None
    return BacklogInfo(
        group=backlog.group.name,
        messages=backlog.messages,
        messages_max=backlog.messages_max,
        payload_bytes=backlog.payload_bytes,
        bytes_max=backlog.bytes_max,
        lag=backlog.lag,
        used=round(backlog.used, 4),
        commands=backlog.remedies() if backlog.used >= NEARLY_FULL else [],
    )
