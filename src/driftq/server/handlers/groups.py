"""Consumer groups: list, describe, move, pause, delete; and the state of each message of a range."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from driftq.core.model import commands as c
from driftq.core.model.queries import ReadStates
from driftq.core.model.replies import PendingView, Rejected, StatesView
from driftq.core.state.backlog import lag_of
from driftq.core.state.lane_lag import LaneLag, lane_lags
from driftq.core.state.lanes import SHARED_TENANT
from driftq.core.transitions.lookups import no_such_group, no_such_topic
from driftq.engine.queries import known_time
from driftq.server.access.identity import require_group, sees_group
from driftq.server.handlers.codec import (
    PAGE_LIMIT_MAX,
    encoded,
    flag,
    json_response,
    no_content,
    number,
    page_limit,
    read_json,
    refusal,
    start_of,
)
from driftq.server.http import Answer, BadRequest, Request, Response
from driftq.server.observation.sorted_lists import Order, sorted_groups
from driftq.server.slices import collected, slices
from driftq.wire.fields import to_rfc3339
from driftq.wire.groups import (
    GROUP_ORDERS,
    CommitOffsetsRequest,
    GroupInfo,
    GroupPartition,
    GroupRates,
    GroupsReply,
    LaneInfo,
    LanesReply,
    PendingColumns,
    SeekRequest,
    StatesInfo,
)

if TYPE_CHECKING:
    from driftq.core.model.facts import LaneKey
    from driftq.core.state.groups import Group
    from driftq.core.state.state import State
    from driftq.engine.queries import StateView
    from driftq.server.handlers.context import Context

PAGE_PARTITIONS_MAX = 10_000  # of the groups on one page
STATES_LIMIT = 1_000
LANES_MAX = 1_000
STATES_LIMIT_MAX = 10_000


class GroupsHandlers:
    """Handlers of `/v1/groups` and `/v1/topics/{topic}/groups`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    async def list(self, request: Request) -> Response:
        """A page of all groups, or of the groups of `?topic=`; with `details=true` sorted, and with rates."""
        topic_name = request.query.get("topic")
        order = Order.of(request, GROUP_ORDERS)
        if flag(request, "details"):
            return await self._detailed(request, order, topic_name)
        limit, after = _page(request)

        def groups(state: State) -> list[Group]:
            if request.identity is None:
                return list(state.groups.values())
            return [group for group in state.groups.values() if sees_group(request.identity, group.topic, group.name)]

        return await self._pages(lambda view: _page_rows(view, groups(view.state), topic_name, limit, after))

    async def _detailed(self, request: Request, order: Order, topic_name: str | None) -> Response:
        limit, passed = page_limit(request), number("after", request.query.get("after", "0"))
        sample = await self._context.observers.sampler.fresh()
        groups = await sorted_groups(self._engine, request, order, sample, topic_name)
        page: list[Group] = []
        partitions = 0
        for group in groups[passed : passed + limit]:
            page.append(group)
            partitions += len(group.progress)
            if partitions >= PAGE_PARTITIONS_MAX:
                break
        infos = await collected(
            self._engine.queries, lambda view: (row for group in page for row in _group_rows(view, group))
        )
        rates = [GroupRates(*sample.group_rates.get((info.topic, info.group), (0.0, 0.0, 0.0))) for info in infos]
        after = str(passed + len(page)) if passed + len(page) < len(groups) else None
        return json_response(GroupsReply(infos, after, rates, len(groups)))

    async def list_of_topic(self, request: Request, topic_name: str) -> Response:
        limit, after = _page(request)
        groups = await self._engine.queries.result(lambda view: _groups_of(view.state, topic_name))
        if isinstance(groups, Rejected):
            return refusal(groups)
        seen = [group for group in groups if sees_group(request.identity, topic_name, group.name)]
        return await self._pages(lambda view: _page_rows(view, seen, topic_name, limit, after))

    async def describe(self, request: Request, topic_name: str, name: str) -> Response:
        group = await self._engine.queries.result(lambda view: _find(view.state, topic_name, name))
        if isinstance(group, Rejected):
            return refusal(group)
        for info in await collected(self._engine.queries, lambda view: _group_rows(view, group)):
            return json_response(info)
        return refusal(no_such_group(topic_name, name))  # deleted in the meantime

    async def lanes(self, request: Request, topic_name: str, name: str) -> Response:
        """What is left to do, lane by lane, over all partitions."""
        group = await self._engine.queries.result(lambda view: _find(view.state, topic_name, name))
        if isinstance(group, Rejected):
            return refusal(group)
        rows = await collected(self._engine.queries, lambda view: _lane_rows(view, group))
        rows.sort(key=lambda row: -row.lag)
        return json_response(LanesReply(rows[:LANES_MAX], len(rows)))

    async def _pages(self, begin: Callable[[StateView], Iterator[GroupInfo | str | None]]) -> Response:
        """The groups of a page, and the id of the last one if there are more."""
        parts: list[bytes] = []
        after = b""
        async for rows in slices(self._engine.queries, begin):
            for row in rows:
                if isinstance(row, GroupInfo):
                    parts.append(encoded(row))
                else:
                    after = b',"after":%b' % encoded(row)
        return Response(200, b'{"groups":[%b]%b}\n' % (b",".join(parts), after))  # a GroupsReply

    def states(self, request: Request, topic_name: str, name: str) -> Answer:
        """The state of each message in a range of a partition: one page of columns."""
        query = request.query
        partition = number("partition", query.get("partition", "0"))
        offset = number("offset", query["offset"]) if "offset" in query else None
        end = number("end", query["end"]) if "end" in query else None
        limit = page_limit(request, STATES_LIMIT, STATES_LIMIT_MAX)

        def respond(view: StatesView) -> Response:
            info = StatesInfo(
                topic_name, name, partition, view.floor, view.offset, view.next_offset, view.end, list(view.settled),
                _columns(view.pending),
            )  # fmt: skip
            return json_response(info)

        return self._context.ask(ReadStates(topic_name, name, partition, offset, end, limit), respond)

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
        place = {"to": body.to} if body.partition is None else {"to": body.to, "partition": body.partition}
        return self._ask(request, c.SeekGroup(topic_name, name, to, body.partition), **place)

    def commit_offsets(self, request: Request) -> Answer:
        body = read_json(request.body, CommitOffsetsRequest)
        for topic in body.offsets:
            require_group(request, topic, body.group)
        offsets = tuple(
            (topic, partition, offset)
            for topic, partitions in body.offsets.items()
            for partition, offset in partitions.items()
        )
        return self._context.ask(c.CommitOffsets(body.group, offsets), no_content)

    def pause(self, request: Request, topic_name: str, name: str) -> Answer:
        return self._ask(request, c.PauseGroup(topic_name, name, True))

    def resume(self, request: Request, topic_name: str, name: str) -> Answer:
        return self._ask(request, c.PauseGroup(topic_name, name, False))

    def delete(self, request: Request, topic_name: str, name: str) -> Answer:
        return self._ask(request, c.DeleteGroup(topic_name, name))

    def _ask(self, request: Request, command: c.SeekGroup | c.PauseGroup | c.DeleteGroup, **details: object) -> Answer:
        name = f"{command.topic}/{command.group}"
        return self._context.ask(self._context.audited(request, command, name, "", **details), no_content)


def _page(request: Request) -> tuple[int, int]:
    return page_limit(request, PAGE_LIMIT_MAX), number("after", request.query.get("after", "0"))


def _find(state: State, topic_name: str, name: str) -> Group | Rejected:
    topic = state.topics.get(topic_name)
    if topic is None:
        return no_such_topic(topic_name)
    return topic.groups.get(name) or no_such_group(topic_name, name)


def _groups_of(state: State, topic_name: str) -> list[Group] | Rejected:
    topic = state.topics.get(topic_name)
    return list(topic.groups.values()) if topic is not None else no_such_topic(topic_name)


def _page_rows(
    view: StateView, groups: Sequence[Group], topic_name: str | None, limit: int, after: int
) -> Iterator[GroupInfo | str | None]:
    """Groups in the order of creation; then the id of the last one, if there are more. `after` is the id of the last
    group on the page before."""
    shown = partitions = last = 0
    for group in groups:
        if group.group_id <= after or topic_name not in (None, group.topic):
            yield None
            continue
        if view.state.groups.get(group.group_id) is not group:
            continue
        if shown == limit or partitions >= PAGE_PARTITIONS_MAX:
            yield str(last)
            return
        for row in _group_rows(view, group):
            yield row
            shown += row is not None
        partitions += len(group.progress)
        last = group.group_id


def _group_rows(view: StateView, group: Group) -> Iterator[GroupInfo | None]:
    """The description of a group, after a None for each of its partitions; nothing if it is deleted in the meantime."""
    partitions: list[GroupPartition] = []
    for partition in range(len(group.progress)):
        if view.state.groups.get(group.group_id) is not group:
            return
        partitions.append(_group_partition(view, group, partition))
        yield None
    if view.state.groups.get(group.group_id) is group:
        yield _group_info(group, partitions)


def _group_info(group: Group, partitions: list[GroupPartition]) -> GroupInfo:
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
        commits_offsets=group.commits_offsets,
    )


def _group_partition(view: StateView, group: Group, partition: int) -> GroupPartition:
    progress = group.progress[partition]
    log = view.state.logs[progress.log_id]
    lag = lag_of(group, log)
    age_ms = 0
    if lag.messages and lag.oldest < view.reader.end(log.log_id):  # a record that is not stored yet has no age
        age_ms = max(0, view.now_ms - known_time(view.reader, log.log_id, lag.oldest))
    return GroupPartition(
        partition, progress.floor, progress.cursor, log.end, lag.messages, age_ms, progress.in_flight, progress.resting,
        progress.settled.count, lag.unclaimed, len(progress.settled),
    )  # fmt: skip


def _lane_rows(view: StateView, group: Group) -> Iterator[LaneInfo | None]:
    """The lanes of a group, after a None for each step of counting them."""
    sums: dict[LaneKey, LaneLag] = {}
    ages_ms: dict[LaneKey, int] = {}
    for progress in group.progress:
        log = view.state.logs.get(progress.log_id)
        for lags in lane_lags(progress, log) if log is not None else ():
            if lags is None:
                yield None
                continue
            for key, lag in lags.items():
                row = sums.setdefault(key, LaneLag())
                row.messages += lag.messages
                row.in_flight += lag.in_flight
                row.waiting += lag.waiting
                if lag.undelivered and lag.oldest < view.reader.end(progress.log_id):
                    age_ms = max(0, view.now_ms - known_time(view.reader, progress.log_id, lag.oldest))
                    ages_ms[key] = max(age_ms, ages_ms.get(key, 0))
    for key, row in sums.items():
        yield LaneInfo(
            key.priority, key.task, key.label, "" if key.tenant == SHARED_TENANT else key.tenant, row.messages,
            row.undelivered, row.in_flight, row.waiting, ages_ms.get(key, 0), group.claims(key.task, key.label),
        )  # fmt: skip


def _columns(pending: tuple[PendingView, ...]) -> PendingColumns:
    times: dict[int, str | None] = {0: None}  # the messages of one claim have the same lease
    for message in pending:
        for at_ms in (message.until_ms, message.retry_at_ms):
            if at_ms not in times:
                times[at_ms] = to_rfc3339(at_ms)
    return PendingColumns(
        [message.offset for message in pending],
        [message.state for message in pending],
        [message.attempts for message in pending],
        [message.owner or None for message in pending],
        [times[message.until_ms] for message in pending],
        [times[message.retry_at_ms] for message in pending],
        [message.error for message in pending],
    )
