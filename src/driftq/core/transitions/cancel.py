"""Cancels one message: it is settled for every group that has not finished it, and no later group gets it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core.model.facts import CANCELLED, Cancelled, Settled

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.state.groups import Topic
    from driftq.core.state.logs import Log


def cancel_message(ctx: DecisionContext, topic: Topic, log: Log, offset: int) -> None:
    for group in topic.groups.values():
        if not group.progress[log.partition].is_settled(offset):
            run = ((offset, offset + 1),)
            ctx.facts.append(Settled(group.group_id, log.log_id, run, CANCELLED, ctx.now_ms))
    ctx.facts.append(Cancelled(log.log_id, offset, ctx.now_ms))
