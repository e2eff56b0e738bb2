"""Topics: create, list, describe, change, delete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from driftq.core.model import commands as c
from driftq.core.model.facts import TopicConfig
from driftq.core.model.replies import Rejected, TopicReady
from driftq.core.state.backlog import limiting_backlog
from driftq.core.state.groups import DEAD_PREFIX
from driftq.core.transitions.lookups import no_such_topic
from driftq.server.access.identity import require_topic, sees_topic
from driftq.server.dead_letter_scan import waiting_count
from driftq.server.handlers.codec import (
    PAGE_LIMIT_MAX,
    flag,
    json_response,
    no_content,
    number,
    page_limit,
    read,
    read_json,
    refusal,
)
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.server.observation.sorted_lists import Order, sorted_topics, topic_figures
from driftq.server.slices import collected
from driftq.server.topic_end import end_most_members
from driftq.wire.fields import to_rfc3339
from driftq.wire.grants import MANAGE
from driftq.wire.topics import (
    TOPIC_ORDERS,
    BacklogInfo,
    PartitionInfo,
    TopicChange,
    TopicFigures,
    TopicInfo,
    TopicReply,
    TopicRequest,
    TopicsReply,
)

if TYPE_CHECKING:
    from driftq.core.state.backlog import Backlog
    from driftq.engine.queries import StateView
    from driftq.server.handlers.context import Context

NEARLY_FULL = 0.8  # of a backlog: from here on an operator should be warned

_LATER = frozenset({"fair", "keep_unread"})
_NUMBERS = frozenset(TopicRequest.__struct_fields__) - {"name", "retry", "history", "fair", "keep_unread"}


class TopicsHandlers:
    """Handlers of `/v1/topics`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    def list(self, request: Request) -> Answer:
        """All names, or with `limit` or `after` a page of them; with `details=true` a page with figures."""
        order = Order.of(request, TOPIC_ORDERS)
        if flag(request, "details"):
            return self._detailed(request, order)
        paged = "limit" in request.query or "after" in request.query
        limit, after = page_limit(request, PAGE_LIMIT_MAX), request.query.get("after", "")

        def look(view: StateView) -> Response:
            names = sorted(
                name
                for name in view.state.topics
                if not name.startswith(DEAD_PREFIX) and name > after and sees_topic(request.identity, name)
            )
            more = paged and len(names) > limit
            return json_response(TopicsReply(names[:limit], names[limit - 1]) if more else TopicsReply(names))

        return self._context.query(look)

    async def _detailed(self, request: Request, order: Order) -> Response:
        limit = page_limit(request)
        passed = number("after", request.query.get("after", "0"))
        sample = await self._context.observers.sampler.fresh()
        names = await sorted_topics(self._engine, request, order, sample)
        page = names[passed : passed + limit]

        def rows(view: StateView) -> Iterator[TopicFigures | None]:
            return (row for name in page for row in topic_figures(view, sample, name))

        figures = await collected(self._engine.queries, rows)
        after = str(passed + limit) if passed + limit < len(names) else None
        return json_response(TopicsReply([row.name for row in figures], after, figures, len(names)))

    def create(self, request: Request) -> Answer:
        body = read(request, TopicRequest, _NUMBERS, flags=frozenset({"history"}))
        name = body.name.strip()
        if not name:
            raise BadRequest("name is required")
        require_topic(request, MANAGE, name)
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
            body.keep_unread,
        )

        def respond(reply: TopicReady) -> Response:
            status = "created" if reply.created else "exists"
            return json_response(TopicReply(status, reply.topic, reply.partitions), 201 if reply.created else 200)

        command = c.CreateTopic(name, body.partitions, config)
        command = self._context.audited(request, command, name, partitions=body.partitions)
        return self._context.ask(command, respond)

    async def describe(self, request: Request, name: str) -> Response:
        return await self._describe(name)

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
            command = self._context.audited(request, c.ConfigureTopic(name, config), name, **fields)
            reply = await self._engine.submit(command)
            if isinstance(reply, Rejected):
                return refusal(reply)
        return await self._describe(name)

    async def _describe(self, name: str) -> Response:
        for info in await collected(self._engine.queries, lambda view: _topic_rows(view, name)):
            return json_response(info)
        return refusal(no_such_topic(name))

    async def delete(self, request: Request, name: str) -> Response:
        await end_most_members(self._engine, name)
        reply = await self._engine.submit(self._context.audited(request, c.DeleteTopic(name), name))
        return refusal(reply) if isinstance(reply, Rejected) else no_content(reply)


def _topic_rows(view: StateView, name: str) -> Iterator[TopicInfo | None]:
    """The description of a topic, after a None for each of its partitions; nothing if there is no such topic."""
    topic = view.state.topics.get(name)
    partitions: list[PartitionInfo] = []
    for log_id in topic.log_ids if topic is not None else ():
        if view.state.topics.get(name) is not topic:
            return  # deleted in the meantime
        log = view.state.logs[log_id]
        backlog = backlog_info(limiting_backlog(view.state, view.limits, log))
        size_bytes = log.bytes_from(log.start)
        partitions.append(
            PartitionInfo(log.partition, log.start, log.end, log.end - log.start, size_bytes, backlog),
        )
        yield None
    if topic is not None and view.state.topics.get(name) is topic:
        yield TopicInfo(
            name=topic.name,
            partitions=partitions,
            groups=sorted(topic.groups),
            created_at=to_rfc3339(topic.created_ms),
            config=_config(topic.config),
            dead_letters=waiting_count(view.state, topic),
        )


def backlog_info(backlog: Backlog | None) -> BacklogInfo | None:
    """A partition's backlog as the API shows it."""
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


def _config(config: TopicConfig) -> dict[str, object]:
    """Every setting. Later ones only if they are set: clients of earlier versions do not know them."""
    fields = {field: getattr(config, field) for field in TopicConfig.__struct_fields__}
    return {field: value for field, value in fields.items() if value or field not in _LATER}
