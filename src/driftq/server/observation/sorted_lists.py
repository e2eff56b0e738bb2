"""Topics and groups in lists with figures: sorted by any of them, a page at a time.

    1. keys    the figure to sort by, of every topic or group that fits: cheap reads of the state, in slices
    2. page    the rows of one page, with what costs more: ages are read from stored batches
    3. after   the number of rows on the pages before

The state changes between two pages: a row may then be on both, or on none.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, NamedTuple

from driftq.core.state.backlog import lag_of
from driftq.core.state.groups import DEAD_PREFIX
from driftq.engine.queries import known_time
from driftq.server.access.identity import sees_group, sees_topic
from driftq.server.dead_letter_scan import waiting_count
from driftq.server.http import BadRequest
from driftq.server.slices import slices
from driftq.wire.fields import to_rfc3339
from driftq.wire.topics import TopicFigures

if TYPE_CHECKING:
    from driftq.core.state.groups import Group, Topic
    from driftq.engine.engine import Engine
    from driftq.engine.queries import StateView
    from driftq.server.http import Request
    from driftq.server.observation.sampler import BrokerSample

TopicKey = Callable[["StateView", "BrokerSample", "Topic"], float]
GroupKey = Callable[["StateView", "BrokerSample", "Group"], float]
_NO_RATES = (0.0, 0.0, 0.0)


class Order(NamedTuple):
    """How a list is sorted. `by` is a name of `TOPIC_KEYS` or `GROUP_KEYS`, or "name"."""

    by: str
    descending: bool
    search: str  # only names that contain this

    @classmethod
    def of(cls, request: Request, names: tuple[str, ...]) -> Order:
        query = request.query
        by = query.get("sort", "name")
        if by not in ("name", *names):
            raise BadRequest(f"invalid sort: use name, {', '.join(names)}")
        order = query.get("order", "asc" if by == "name" else "desc")
        if order not in ("asc", "desc"):
            raise BadRequest("invalid order: use asc or desc")
        return cls(by, order == "desc", query.get("search", ""))


async def sorted_topics(engine: Engine, request: Request, order: Order, sample: BrokerSample) -> list[str]:
    """The names of all topics that fit and that the caller may see."""
    key = TOPIC_KEYS.get(order.by)

    def rows(view: StateView) -> Iterator[tuple[float, str] | None]:
        for topic in list(view.state.topics.values()):
            name = topic.name
            if name.startswith(DEAD_PREFIX) or order.search not in name or not sees_topic(request.identity, name):
                yield None
            elif view.state.topics.get(name) is topic:
                figure = key(view, sample, topic) if key is not None else 0.0
                if order.by == "lag":
                    figure = yield from _topic_lag(view, topic)
                yield figure, name

    taken = [row async for part in slices(engine.queries, rows) for row in part]
    return [name for _, name in _in_order(taken, order)]


async def sorted_groups(
    engine: Engine, request: Request, order: Order, sample: BrokerSample, topic: str | None
) -> list[Group]:
    key = GROUP_KEYS.get(order.by)

    def rows(view: StateView) -> Iterator[tuple[float, str, Group] | None]:
        for group in list(view.state.groups.values()):
            name = f"{group.topic}/{group.name}"
            if (
                topic not in (None, group.topic)
                or order.search not in name
                or not sees_group(request.identity, group.topic, group.name)
            ):
                yield None
            elif view.state.groups.get(group.group_id) is group:
                yield (key(view, sample, group) if key is not None else 0.0), name, group

    taken = [row async for part in slices(engine.queries, rows) for row in part]
    groups = {name: group for _, name, group in taken}
    return [groups[name] for _, name in _in_order([row[:2] for row in taken], order)]


def _in_order(rows: list[tuple[float, str]], order: Order) -> list[tuple[float, str]]:
    """By the figure, then by name. Both sorts are stable."""
    rows.sort(key=_name, reverse=order.by == "name" and order.descending)
    if order.by != "name":
        rows.sort(key=_figure, reverse=order.descending)
    return rows


def _name(row: tuple[float, str]) -> str:
    return row[1]


def _figure(row: tuple[float, str]) -> float:
    return row[0]


def topic_figures(view: StateView, sample: BrokerSample, name: str) -> Iterator[TopicFigures | None]:
    """The figures of a topic, after some None; nothing if it was deleted in the meantime."""
    topic = view.state.topics.get(name)
    if topic is None:
        return
    lag = yield from _topic_lag(view, topic)
    oldest_ms = yield from _oldest_ms(view, topic)
    if view.state.topics.get(name) is not topic:
        return
    rate = sample.topic_rates.get((name,), _NO_RATES)
    last_ms = _last_ms(view, sample, topic)
    yield TopicFigures(
        name=name,
        partitions=len(topic.log_ids),
        messages=int(_messages(view, sample, topic)),
        payload_bytes=int(_bytes(view, sample, topic)),
        produced_per_s=rate[0],
        bytes_per_s=rate[1],
        groups=len(topic.groups),
        lag=lag,
        in_flight=sum(progress.in_flight for group in topic.groups.values() for progress in group.progress),
        dead_letters=waiting_count(view.state, topic),
        oldest_ms=oldest_ms,
        last_write=to_rfc3339(int(last_ms)) if last_ms else None,
        created_at=to_rfc3339(topic.created_ms),
    )


def _topic_lag(view: StateView, topic: Topic) -> Generator[None, None, int]:
    """The lag of all groups; a group after the other, because there may be a thousand with a thousand partitions."""
    lag = 0
    for group in list(topic.groups.values()):
        if view.state.groups.get(group.group_id) is group:
            lag += int(_group_lag(view, group))
            yield
    return lag


def _oldest_ms(view: StateView, topic: Topic) -> Generator[None, None, int]:
    oldest_ms = 0
    for log_id in topic.log_ids:
        log = view.state.logs.get(log_id)
        if log is not None and log.start < view.reader.end(log_id):
            oldest_ms = max(oldest_ms, view.now_ms - known_time(view.reader, log_id, log.start))
            yield
    return oldest_ms


def _messages(view: StateView, sample: BrokerSample, topic: Topic) -> float:
    return sum(log.end - log.start for log in map(view.state.logs.__getitem__, topic.log_ids))


def _bytes(view: StateView, sample: BrokerSample, topic: Topic) -> float:
    return sum(log.bytes_from(log.start) for log in map(view.state.logs.__getitem__, topic.log_ids))


def _last_ms(view: StateView, sample: BrokerSample, topic: Topic) -> float:
    return max(view.state.logs[log_id].last_ms for log_id in topic.log_ids)


def _group_lag(view: StateView, group: Group) -> float:
    return sum(lag_of(group, view.state.logs[progress.log_id]).messages for progress in group.progress)


def _group_lag_s(view: StateView, sample: BrokerSample, group: Group) -> float:
    figures = sample.groups.get((group.topic, group.name))
    return figures.lag_s if figures is not None else 0.0


TOPIC_KEYS: dict[str, TopicKey] = {  # without the lag, which takes steps
    "messages": _messages,
    "bytes": _bytes,
    "rate": lambda view, sample, topic: sample.topic_rates.get((topic.name,), _NO_RATES)[0],
    "groups": lambda view, sample, topic: len(topic.groups),
    "dead_letters": lambda view, sample, topic: waiting_count(view.state, topic),
    "last_write": _last_ms,
    "created": lambda view, sample, topic: topic.created_ms,
}
GROUP_KEYS: dict[str, GroupKey] = {
    "lag": lambda view, sample, group: _group_lag(view, group),
    "lag_ms": _group_lag_s,
    "in_flight": lambda view, sample, group: sum(progress.in_flight for progress in group.progress),
    "waiting": lambda view, sample, group: sum(progress.resting for progress in group.progress),
    "rate": lambda view, sample, group: sample.group_rates.get((group.topic, group.name), _NO_RATES)[1],
    "failed": lambda view, sample, group: sample.group_rates.get((group.topic, group.name), _NO_RATES)[2],
    "active": lambda view, sample, group: group.active_ms,
    "created": lambda view, sample, group: group.created_ms,
}
