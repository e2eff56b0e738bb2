"""Topics and groups beyond the specification: describe, change, delete, lag, start over, pause."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from driftq.core.model import commands as c
from driftq.core.model.facts import TopicConfig
from driftq.core.model.replies import Rejected
from driftq.core.state.backlog import lag_of
from driftq.core.transitions.lookups import no_such_group, no_such_topic
from driftq.server.handlers.base import (
    Context,
    backlog_in,
    backlog_info,
    json_response,
    no_content,
    number,
    page_limit,
    read_json,
    refusal,
)
from driftq.server.handlers.dead_letters import waiting_count
from driftq.server.handlers.queue import start_of
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.wire.admin import GroupInfo, GroupPartition, PartitionInfo, SeekRequest, TopicChange, TopicInfo
from driftq.wire.message import to_rfc3339

if TYPE_CHECKING:
    from driftq.core.state.groups import Group, Topic
    from driftq.core.state.state import State
    from driftq.engine.queries import StateView

GROUPS_MAX = 1_000


class TopicsHandlers:
    """Handlers of topics and groups."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    # --- topics ---

    def describe(self, request: Request, name: str) -> Answer:
        return self._context.query(lambda view: _topic_response(view, name))

    async def change(self, request: Request, name: str) -> Response:
        change = read_json(request.body, TopicChange)
        topic = self._engine.latest_state.topics.get(name)
        if topic is not None:
            given = msgspec.json.decode(request.body, type=dict[str, object])
            fields = {field: getattr(change, field) for field in given}
            if any(value is None for field, value in fields.items() if field != "retry"):
                raise BadRequest("only retry can be null; 0 goes back to the server's setting")
            config = msgspec.structs.replace(topic.config, **fields)
            reply = await self._engine.submit(c.ConfigureTopic(name, config))
            if isinstance(reply, Rejected):
                return refusal(reply)
        return await self._engine.queries.result(lambda view: _topic_response(view, name))

    def delete(self, request: Request, name: str) -> Answer:
        return self._context.ask(c.DeleteTopic(name), no_content)

    # --- groups ---

    def list_groups(self, request: Request) -> Answer:
        """All groups, or those of `?topic=`, a page at a time."""
        wanted = request.query.get("topic")
        limit, after = page_limit(request, GROUPS_MAX), number("after", request.query.get("after", "0"))

        def look(view: StateView) -> Response:
            groups = (group for group in view.state.groups.values() if wanted in (None, group.topic))
            return _groups_response(view, groups, limit, after)

        return self._context.query(look)

    def list_topic_groups(self, request: Request, topic_name: str) -> Answer:
        limit, after = page_limit(request, GROUPS_MAX), number("after", request.query.get("after", "0"))

        def look(view: StateView) -> Response:
            topic = view.state.topics.get(topic_name)
            if topic is None:
                return refusal(no_such_topic(topic_name))
            return _groups_response(view, topic.groups.values(), limit, after)

        return self._context.query(look)

    def describe_group(self, request: Request, topic_name: str, name: str) -> Answer:
        def look(view: StateView) -> Response:
            group = _find_group(view.state, topic_name, name)
            return refusal(group) if isinstance(group, Rejected) else json_response(_group_info(view, group))

        return self._context.query(look)

    def seek(self, request: Request, topic_name: str, name: str) -> Answer:
        body = read_json(request.body, SeekRequest)
        if isinstance(body.to, int) and body.partition is None:
            raise BadRequest("an offset belongs to a partition: name it, or seek to earliest, latest or a time")
        to = body.to if isinstance(body.to, int) else start_of(body.to)
        if isinstance(body.to, str) and isinstance(to, int) and body.partition is not None:
            topic = self._engine.latest_state.topics.get(topic_name)
            if topic is None or body.partition >= len(topic.log_ids):
                return self._context.hold(refusal(no_such_topic(topic_name)))
            to = self._engine.queries.offset_at(topic.log_ids[body.partition], to)
        return self._context.ask(c.SeekGroup(topic_name, name, to, body.partition), no_content)

    def pause(self, request: Request, topic_name: str, name: str) -> Answer:
        return self._context.ask(c.PauseGroup(topic_name, name, True), no_content)

    def resume(self, request: Request, topic_name: str, name: str) -> Answer:
        return self._context.ask(c.PauseGroup(topic_name, name, False), no_content)

    def delete_group(self, request: Request, topic_name: str, name: str) -> Answer:
        return self._context.ask(c.DeleteGroup(topic_name, name), no_content)


def _topic_response(view: StateView, name: str) -> Response:
    topic = view.state.topics.get(name)
    return json_response(_topic_info(view, topic)) if topic is not None else refusal(no_such_topic(name))


def _topic_info(view: StateView, topic: Topic) -> TopicInfo:
    state = view.state
    logs = [state.logs[log_id] for log_id in topic.log_ids]
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
        config=_shown(topic.config),
        dead_letters=waiting_count(state, topic),
    )


def _find_group(state: State, topic_name: str, name: str) -> Group | Rejected:
    topic = state.topics.get(topic_name)
    if topic is None:
        return no_such_topic(topic_name)
    return topic.groups.get(name) or no_such_group(topic_name, name)


def _groups_response(view: StateView, groups: Iterable[Group], limit: int, after: int) -> Response:
    """In the order in which they came to be; `after` is the number of the last group shown."""
    found = list(islice((group for group in groups if group.group_id > after), limit + 1))
    shown: dict[str, object] = {"groups": [_group_info(view, group) for group in found[:limit]]}
    if len(found) > limit:
        shown["after"] = str(found[limit - 1].group_id)
    return json_response(shown)


def _group_info(view: StateView, group: Group) -> GroupInfo:
    partitions = [_partition_info(view, group, number) for number in range(len(group.progress))]
    return GroupInfo(
        topic=group.topic,
        group=group.name,
        created_at=to_rfc3339(group.created_ms),
        paused=group.paused,
        lag=sum(part.lag for part in partitions),
        lag_ms=max(part.lag_ms for part in partitions),
        in_flight=sum(part.in_flight for part in partitions),
        resting=sum(part.resting for part in partitions),
        partitions=partitions,
        unclaimed=sum(part.unclaimed for part in partitions),
        active_at=to_rfc3339(group.active_ms),
        idle=group.idle,
    )


def _partition_info(view: StateView, group: Group, number: int) -> GroupPartition:
    progress = group.progress[number]
    log = view.state.logs[progress.log_id]
    lag = lag_of(group, log)
    age_ms = 0
    if lag.messages and lag.oldest < view.reader.end(log.log_id):  # what is not stored yet has no age to speak of
        age_ms = max(0, view.now_ms - view.reader.time_of(log.log_id, lag.oldest))
    return GroupPartition(
        number, progress.floor, progress.cursor, log.end, lag.messages, age_ms, progress.in_flight, progress.resting,
        progress.settled.count, lag.unclaimed, len(progress.settled),
    )  # fmt: skip


def _shown(config: TopicConfig) -> dict[str, object]:
    """Every setting; `fair` only while it is on, as clients of earlier versions know the others."""
    found = {field: getattr(config, field) for field in TopicConfig.__struct_fields__}
    return found if config.fair else {field: value for field, value in found.items() if field != "fair"}
