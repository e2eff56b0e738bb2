"""The state of a group's messages as a table: one page of columns for a range of a partition."""

from __future__ import annotations

from driftq.core import commands as c
from driftq.core.replies import PendingView, StatesView
from driftq.server.bodies import number
from driftq.server.context import Context, json_response
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.wire.admin import PendingColumns, StatesInfo
from driftq.wire.times import to_rfc3339

LIMIT = 1_000
LIMIT_MAX = 10_000


class StatesFace:
    """Handler of states."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def read(self, request: Request, topic: str, group: str) -> Answer:
        query = request.query
        partition = number("partition", query.get("partition", "0"))
        offset = number("offset", query["offset"]) if "offset" in query else None
        end = number("end", query["end"]) if "end" in query else None
        limit = number("limit", query["limit"]) if "limit" in query else LIMIT
        if not 1 <= limit <= LIMIT_MAX:
            raise BadRequest(f"limit must be 1 to {LIMIT_MAX}")

        def respond(view: StatesView) -> Response:
            shown = StatesInfo(
                topic, group, partition, view.floor, view.offset, view.next_offset, view.end, list(view.settled),
                _columns(view.pending),
            )  # fmt: skip
            return json_response(shown)

        return self._context.ask(c.ReadStates(topic, group, partition, offset, end, limit), respond)


def _columns(pending: tuple[PendingView, ...]) -> PendingColumns:
    times: dict[int, str | None] = {0: None}  # a claim's messages share their lease
    for each in pending:
        for at_ms in (each.until_ms, each.retry_at_ms):
            if at_ms not in times:
                times[at_ms] = to_rfc3339(at_ms)
    return PendingColumns(
        [each.offset for each in pending],
        [each.state for each in pending],
        [each.attempts for each in pending],
        [each.owner or None for each in pending],
        [times[each.until_ms] for each in pending],
        [times[each.retry_at_ms] for each in pending],
        [each.error for each in pending],
    )
