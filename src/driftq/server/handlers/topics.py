"""Topics: create, list, describe, change, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from driftq.core.model import commands as c
from driftq.core.model.facts import TopicConfig
from driftq.core.model.replies import Rejected, TopicReady
from driftq.core.state.groups import DEAD_PREFIX
from driftq.core.transitions.lookups import no_such_topic
from driftq.server.dead_letter_scan import waiting_count
from driftq.server.handlers.backlog import backlog_in, backlog_info
from driftq.server.handlers.request_body import PAGE_LIMIT_MAX, page_limit, read, read_json
from driftq.server.handlers.responses import json_response, no_content, refusal
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.wire.fields import to_rfc3339
from driftq.wire.topics import PartitionInfo, TopicChange, TopicInfo, TopicReply, TopicRequest, TopicsReply

if TYPE_CHECKING:
    from driftq.core.state.groups import Topic
    from driftq.engine.queries import StateView
    from driftq.server.handlers.context import Context

_NUMBERS = frozenset(TopicRequest.__struct_fields__) - {"name", "retry", "history", "fair"}


class TopicsHandlers:
    """Handlers of `/v1/topics`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    def list(self, request: Request) -> Answer:
        """All names, or with `limit` or `after` a page of them."""
        paged = "limit" in request.query or "after" in request.query
        limit, after = page_limit(request, PAGE_LIMIT_MAX), request.query.get("after", "")

        def look(view: StateView) -> Response:
            names = sorted(name for name in view.state.topics if not name.startswith(DEAD_PREFIX) and name > after)
            more = paged and len(names) > limit
            return json_response(TopicsReply(names[:limit], names[limit - 1]) if more else TopicsReply(names))

        return self._context.query(look)

    def create(self, request: Request) -> Answer:
        body = read(request, TopicRequest, _NUMBERS, flags=frozenset({"history"}))
        name = body.name.strip()
        if not name:
            raise BadRequest("name is required")
        config = TopicConfig(
            body.retention_ms,
            body.retention_bytes,
            body.lease_ms,
            body.in_flight_max,
            body.backlog_messages_max,
            body.backlog_bytes_max,
            body.retry,
            body.history,
            body.fair,
        )

        def respond(reply: TopicReady) -> Response:
            status = "created" if reply.created else "exists"
            return json_response(TopicReply(status, reply.topic, reply.partitions), 201 if reply.created else 200)

        return self._context.ask(c.CreateTopic(name, body.partitions or 1, config), respond)

    def describe(self, request: Request, name: str) -> Answer:
        return self._context.query(lambda view: _describe(view, name))

    async def change(self, request: Request, name: str) -> Response:
        change = read_json(request.body, TopicChange)
        topic = self._engine.latest_state.topics.get(name)
        if topic is not None:
            fields = {
                field: getattr(change, field) for field in msgspec.json.decode(request.body, type=dict[str, object])
            }
            if any(value is None for field, value in fields.items() if field != "retry"):
                raise BadRequest("only retry can be null; 0 goes back to the server's setting")
            config = msgspec.structs.replace(topic.config, **fields)
            reply = await self._engine.submit(c.ConfigureTopic(name, config))
            if isinstance(reply, Rejected):
                return refusal(reply)
        return await self._engine.queries.result(lambda view: _describe(view, name))

    def delete(self, request: Request, name: str) -> Answer:
        return self._context.ask(c.DeleteTopic(name), no_content)


def _describe(view: StateView, name: str) -> Response:
    topic = view.state.topics.get(name)
    return json_response(_topic_info(view, topic)) if topic is not None else refusal(no_such_topic(name))


def _topic_info(view: StateView, topic: Topic) -> TopicInfo:
    logs = [view.state.logs[log_id] for log_id in topic.log_ids]
    return TopicInfo(
        name=topic.name,
        partitions=[
            PartitionInfo(
                log.partition,
                log.start,
                log.end,
                log.end - log.start,
                log.bytes_from(log.start),
                backlog_info(backlog_in(view, log)),
            )
            for log in logs
        ],
        groups=sorted(topic.groups),
        created_at=to_rfc3339(topic.created_ms),
        config=_config(topic.config),
        dead_letters=waiting_count(view.state, topic),
    )


def _config(config: TopicConfig) -> dict[str, object]:
    """Every setting. `fair` only while it is on: clients of earlier versions do not know it."""
    fields = {field: getattr(config, field) for field in TopicConfig.__struct_fields__}
    return fields if config.fair else {field: value for field, value in fields.items() if field != "fair"}
