"""How streams and stages end, on request or because their time is over. A softly deleted stream keeps its records for
the forks that read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core.model.effect_facts import StagesForgotten
from driftq.core.model.facts import STAGING_LOG
from driftq.core.model.stream_facts import StreamDeleted

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.state.streams import StreamRecord


def delete_stream(ctx: DecisionContext, stream: StreamRecord) -> None:
    """Delete a stream; softly while forks read it. Deleting the last fork of a softly deleted source deletes the source
    too. One command may delete several streams, so the context counts the forks it has deleted so far."""
    if stream.forks > ctx.deleted_forks.get(stream.log_id, 0):
        ctx.facts.append(StreamDeleted(stream.log_id, soft=True))
        ctx.softly_deleted.add(stream.log_id)
        return
    while True:
        ctx.facts.append(StreamDeleted(stream.log_id, soft=False))
        source_id = stream.created.source_log_id
        if source_id is None:
            return
        ctx.deleted_forks[source_id] = ctx.deleted_forks.get(source_id, 0) + 1
        source = ctx.state.streams.by_log[source_id]
        is_soft = source.soft_deleted or source_id in ctx.softly_deleted
        if not is_soft or source.forks > ctx.deleted_forks[source_id]:
            return
        stream = source


def forget_stages(ctx: DecisionContext, handles: tuple[str, ...]) -> None:
    """Drop staged batches, and trim the staging log up to the first batch that is still needed."""
    forgotten = frozenset(handles)
    end = ctx.state.logs[STAGING_LOG].end
    start = ctx.state.stages.lowest_offset(lambda entry: entry.handle in forgotten, end)
    ctx.facts.append(StagesForgotten(handles, start))
