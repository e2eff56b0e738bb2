"""Calls that change all messages of a topic: purge it, move its messages to another topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core.model import interventions as v
from driftq.core.model.replies import PurgeResult, Rejected, Reply
from driftq.core.state.groups import DEAD_PREFIX
from driftq.core.transitions.lookups import bad_partition, no_such_topic, purge_of
from driftq.server.access.identity import require_topic
from driftq.server.dead_letter_scan import BEFORE_ALL
from driftq.server.handlers.codec import json_response, read_json, refusal, refused
from driftq.server.handlers.dead_letters import damaged, place_of
from driftq.server.http import BadRequest
from driftq.server.move_run import MoveFilter, MoveRun, MoveTarget
from driftq.server.topic_end import end_most_members
from driftq.storage.corruption import CorruptLog
from driftq.wire.errors import Code
from driftq.wire.fields import from_rfc3339
from driftq.wire.grants import PRODUCE
from driftq.wire.topics import MoveReply, MoveRequest, PurgeReply, PurgeRequest

if TYPE_CHECKING:
    from driftq.engine.queries import StateView
    from driftq.server.handlers.context import Context
    from driftq.server.http import Request, Response


FROM_THE_START = "start"  # the cursor of a move that could not move the first message


class TopicChangeHandlers:
    """Handlers of `/v1/topics/{topic}/purge` and `/v1/topics/{topic}/move`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    async def purge(self, request: Request, name: str) -> Response:
        body = read_json(request.body or b"{}", PurgeRequest)
        command = v.PurgeTopic(name)
        result: Reply = await self._engine.queries.result(lambda view: purge_of(view.state, name))
        if not body.dry_run and not isinstance(result, Rejected):
            dropped = await end_most_members(self._engine, name)
            purged = await self._engine.submit(self._context.audited(request, command, name))
            if isinstance(purged, Rejected) or not dropped:
                result = purged
        if isinstance(result, Rejected):
            return refusal(result)
        assert isinstance(result, PurgeResult)
        status = "dry run" if body.dry_run else "purged"
        return json_response(PurgeReply(status, name, result.messages, result.in_flight, result.waiting))

    async def move(self, request: Request, name: str) -> Response:
        body = read_json(request.body, MoveRequest)
        require_topic(request, PRODUCE, body.to)
        after = BEFORE_ALL if body.after == FROM_THE_START else place_of(body.after)
        chosen = MoveFilter(body.partition, body.task, _time("since", body.since), _time("until", body.until))
        if name.startswith(DEAD_PREFIX):
            message = f"{name} holds dead letters: redrive them with `to_topic`"
            return refused(Code.INVALID_ARGUMENT, message)
        if name == body.to:
            return refused(Code.INVALID_ARGUMENT, "messages are moved to another topic, not to their own")
        target = await self._engine.queries.result(lambda view: _target(view, name, body))
        if isinstance(target, Rejected):
            return refusal(target)

        def audited(frame: v.MoveMessages) -> v.MoveMessages:
            messages = sum(len(part.offsets) for part in frame.parts)
            return self._context.audited(request, frame, name, to=body.to, messages=messages)

        run = MoveRun(self._engine, name, target, audited)
        try:
            await run.run(chosen, after, body.limit, dry_run=body.dry_run)
        except CorruptLog as error:
            return damaged(error)
        next_place = None
        if run.last is not None:
            next_place = f"{run.last[0]}:{run.last[1]}" if run.last != BEFORE_ALL else FROM_THE_START
        status = "dry run" if body.dry_run else "moved"
        reply = MoveReply(status, run.matched, run.moved, run.failed, next_place)
        # What was read above may not be durable yet: answer when it is.
        return await self._engine.queries.result(lambda _: json_response(reply))


def _target(view: StateView, name: str, body: MoveRequest) -> MoveTarget | Rejected:
    topic, target = view.state.topics.get(name), view.state.topics.get(body.to)
    if topic is None or target is None:
        return no_such_topic(name if topic is None else body.to)
    if body.partition is not None and body.partition >= len(topic.log_ids):
        return bad_partition(body.partition, topic)
    return MoveTarget(topic.log_ids, body.to, len(target.log_ids), len(topic.groups))


def _time(name: str, text: str) -> int | None:
    try:
        return from_rfc3339(text) if text else None
    except ValueError as error:
        raise BadRequest(f"invalid {name}: {error}") from None
