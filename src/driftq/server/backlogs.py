"""A partition's backlog as the API shows it."""

from __future__ import annotations

from driftq.core.backlog import Backlog, backlog_of
from driftq.core.logs import Log
from driftq.engine.queries import StateView
from driftq.wire.admin import BacklogInfo

NEARLY_FULL = 0.8  # from here on an operator should know


def backlog_in(view: StateView, log: Log) -> Backlog | None:
    """None if nothing holds producers up: no group counts, or only the broker writes here."""
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
