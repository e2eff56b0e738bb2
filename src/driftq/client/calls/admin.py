"""Calls around the queue as pure functions: the server, topics, groups, dead letters, explain, fetch."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, Unpack

from driftq.client.calls.filters import LetterFilterOptions, query_of, time_text
from driftq.client.calls.queue import (
    Value,
    bodyless_call,
    encode,
    get,
    item,
    json_reader,
    no_body,
    post,
    refusal,
    segment,
    to_topic,
)
from driftq.client.endpoint import Page, Pages
from driftq.client.errors import InvalidCall
from driftq.client.transport.http import HttpReply
from driftq.client.transport.sansio import Call, Flow, Open, ReadMore, Yield
from driftq.wire.dead_letters import LettersReply
from driftq.wire.groups import CommitOffsetsRequest, GroupInfo, GroupsReply, SeekRequest
from driftq.wire.message import Envelope, StoredMessage, read_head
from driftq.wire.server_info import ClockInfo
from driftq.wire.topics import (
    MessagesReply,
    OffsetsReply,
    OffsetsRequest,
    TopicChange,
    TopicInfo,
    TopicOffsetsReply,
    TopicReply,
    TopicsReply,
)

if TYPE_CHECKING:
    from driftq.wire.records import Record


R = TypeVar("R")
T = TypeVar("T")


def pages(
    path: str, body_type: type[R], page: Callable[[R], Page[T]], query: dict[str, Any], limit: int | None = None
) -> Pages[T]:
    def call(after: str, size: int) -> Call[Page[T]]:
        page_call = get(path, body_type, {**query, "after": after, "limit": size})
        return Call("GET", page_call.path, lambda reply: page(page_call.read(reply)), refusal=refusal, idempotent=True)

    return Pages(call, limit)


# --- the server -------------------------------------------------------------------------------------------------------


def version() -> Call[dict[str, Any]]:
    """The version of the broker, and whether it writes to disk."""
    return get("/v1/version", dict[str, Any])


def backup(timeout_s: float) -> Flow[None]:
    """Yields the pieces of a tar archive: the data of the broker."""
    call = Call("GET", "/v1/backup", lambda reply: reply, refusal=refusal, idempotent=True)
    reply = yield Open(call, timeout_s)
    if isinstance(reply, HttpReply):
        raise refusal(reply)
    while data := (yield ReadMore(reply, timeout_s)):
        yield Yield(data)


def healthy() -> Call[dict[str, Any]]:
    """Whether the broker is alive."""
    return get("/v1/healthz", dict[str, Any])


def ready() -> Call[dict[str, Any]]:
    """Whether the broker serves requests: recovered, and its disk keeps up."""
    return get("/v1/readyz", dict[str, Any])


def read_clock() -> Call[ClockInfo]:
    """The broker's time and its machine's."""
    return get("/v1/clock", ClockInfo)


def accept_clock() -> Call[ClockInfo]:
    """Accept the machine's clock as the broker's time."""
    return Call("POST", "/v1/clock/accept", json_reader(ClockInfo), refusal=refusal, idempotent=True)


# --- topics -----------------------------------------------------------------------------------------------------------


def create_topic(name: str, partitions: int = 1, **settings: Any) -> Call[TopicReply]:
    """Create a topic. Creating it again with the same number of partitions changes nothing.

    Parameters:
        name: Up to 249 letters, digits, `.`, `_`, `-` and `:`.
        partitions: How many logs it has. Messages of one key are in one of them, in order.
        settings: As in `change`: `retention_ms`, `retry`, `history`, …
    """
    body = {"name": name, "partitions": partitions, **settings}
    return post("/v1/topics", body, json_reader(TopicReply), idempotent=True)


def list_topics() -> Pages[str]:
    """The names of all topics."""
    return pages("/v1/topics", TopicsReply, lambda reply: Page(reply.topics, reply.after), {})


def describe_topic(name: str) -> Call[TopicInfo]:
    """Partitions, groups, settings, dead letters."""
    return get(f"/v1/topics/{segment(name)}", TopicInfo)


def change_topic(name: str, **settings: Any) -> Call[TopicInfo]:
    """Change `retention_ms`, `retention_bytes`, `lease_ms`, `in_flight_max`, `backlog_messages_max`,
    `backlog_bytes_max`, `retry`, `history`, `fair`, `keep_unread`. 0 (None for `retry`) returns to the broker's
    setting. With `fair="tenant"` the messages of tenants are delivered in turns, with `""` in offset order. Retention
    waits for groups that commit offsets (`keep_unread=""`), for all groups (`"all"`), or for none (`"none"`)."""
    unknown = settings.keys() - set(TopicChange.__struct_fields__)
    if unknown:
        raise InvalidCall(f"a topic has no setting {', '.join(sorted(unknown))}")
    path = f"/v1/topics/{segment(name)}"
    return Call("PATCH", path, json_reader(TopicInfo), refusal=refusal, body=encode(settings), idempotent=True)


def delete_topic(name: str) -> Call[None]:
    """Delete a topic with its messages, dead letters and groups."""
    return bodyless_call("DELETE", f"/v1/topics/{segment(name)}")


def offsets(topic: str, *, at: datetime | str | None = None, last: bool = False) -> Call[OffsetsReply]:
    """The start and the end of each partition; with a time also the first offset at or after it, with `last` also what
    identifies the last batch."""
    query = {"at": time_text(at), "last": "true" if last else None}
    return get(f"/v1/topics/{segment(topic)}/offsets", OffsetsReply, query)


def offsets_of_topics(topics: Sequence[str], *, last: bool = False) -> Call[TopicOffsetsReply]:
    """The start, the end and the size of each partition of up to 1,000 topics. Those that do not exist are left out. A
    reply that does not cover all names says how many it covers (`answered`)."""
    return post("/v1/offsets", OffsetsRequest(list(topics), last), json_reader(TopicOffsetsReply), idempotent=True)


def peek(topic: str, partition: int = 0, *, offset: int | None = None, limit: int = 10) -> Call[list[StoredMessage]]:
    """Messages of a partition, without claiming them; by default the last ones."""
    call = get(
        f"/v1/topics/{segment(topic)}/partitions/{partition}/messages",
        MessagesReply,
        {"offset": offset, "limit": limit},
    )
    return Call("GET", call.path, lambda reply: call.read(reply).messages, refusal=refusal, idempotent=True)


# --- groups -----------------------------------------------------------------------------------------------------------


def _group(topic: str, group: str) -> str:
    return f"/v1/topics/{segment(topic)}/groups/{segment(group)}"


def list_groups(topic: str = "") -> Pages[GroupInfo]:
    """Every group, or those of a topic, with lag."""
    return pages("/v1/groups", GroupsReply, lambda reply: Page(reply.groups, reply.after), {"topic": topic})


def describe_group(topic: str, group: str) -> Call[GroupInfo]:
    """Where a group is in each partition: lag, in flight, waiting."""
    return get(_group(topic, group), GroupInfo)


def delete_group(topic: str, group: str) -> Call[None]:
    """Delete a group and its progress. Messages stay."""
    return bodyless_call("DELETE", _group(topic, group))


def pause_group(topic: str, group: str) -> Call[None]:
    """Deliver nothing to a group until it is resumed."""
    return bodyless_call("POST", f"{_group(topic, group)}/pause")


def resume_group(topic: str, group: str) -> Call[None]:
    """Resume a paused group."""
    return bodyless_call("POST", f"{_group(topic, group)}/resume")


def seek_group(topic: str, group: str, to: str | int | datetime, *, partition: int | None = None) -> Call[None]:
    """To "earliest", "latest", a time, or with `partition` to an offset."""
    body = SeekRequest(to if isinstance(to, int) else time_text(to), partition)
    return post(f"{_group(topic, group)}/seek", body, no_body, idempotent=True)


def commit_offsets(group: str, offsets: Mapping[str, Mapping[int, int]]) -> Call[None]:
    """Report how far a reader that keeps its own offsets has read: `{"orders": {0: 1200}}`, up to 2,000 partitions."""
    body = CommitOffsetsRequest(group, {topic: dict(partitions) for topic, partitions in offsets.items()})
    return post("/v1/groups/offsets", body, no_body, idempotent=True)


# --- dead letters -----------------------------------------------------------------------------------------------------


def list_letters(
    topic: str, *, limit: int | None = 100, **letters: Unpack[LetterFilterOptions]
) -> Pages[StoredMessage]:
    """Dead letters of a topic that were not redriven; all of them with `limit=None`.

    Parameters:
        topic: The topic in which they died.
        limit: How many at most.
        letters: `group`, `error` (a part of it), `kind` (of error, as `letter_errors` names it), `reason`, `since` and
            `until`; all of them must fit.
    """
    path = f"/v1/dlq/{segment(topic)}"
    return pages(path, LettersReply, lambda reply: Page(reply.messages, reply.after), query_of(letters), limit)


def letter_errors(topic: str) -> Call[dict[str, Any]]:
    """How many letters there are of each kind of error, for the thousand most frequent kinds."""
    return get(f"/v1/dlq/{segment(topic)}/errors", dict[str, Any])


def each_error(topic: str) -> Pages[dict[str, Any]]:
    """How many letters there are of each kind of error, the most frequent first."""
    path = f"/v1/dlq/{segment(topic)}/errors"
    return pages(path, dict[str, Any], lambda reply: Page(reply["errors"], reply.get("after")), {})


# --- reading without a claim: explain, route, fetch -------------------------------------------------------------------

READ_BYTES = 1 << 20


class Fetched(NamedTuple):
    """Messages of a partition from an offset on, and the offset to continue at."""

    messages: list[StoredMessage]
    next_offset: int
    start_offset: int
    end_offset: int


def explain(
    topic: str, partition: int, offset: int, *, group: str = "", task: str = "", label: str = ""
) -> Call[dict[str, Any]]:
    """Every gate that keeps a message from being delivered, and when it opens; for one group or for all."""
    query = {"topic": topic, "partition": partition, "offset": offset, "group": group, "task": task, "label": label}
    return get("/v1/explain", dict[str, Any], query)


def route(
    topic: str, value: Value, *, key: str = "", envelope: Envelope | None = None, task: str = "", **options: Any
) -> Call[dict[str, Any]]:
    """Where a message would go, and why, without producing it. Takes the arguments of `send`."""
    message = item(value, key=key, envelope=envelope, task=task, **options)
    return post("/v1/route", to_topic(topic, message), json_reader(dict[str, Any]), idempotent=True)


def fetch(topic: str, partition: int, offset: int, *, wait_ms: int = 0, max_bytes: int = READ_BYTES) -> Call[Fetched]:
    """Read a partition without a group. Waits up to `wait_ms` for a message at `offset`."""
    path = f"/v1/topics/{segment(topic)}/partitions/{partition}/records"
    path += f"?offset={offset}&wait_ms={wait_ms}&max_bytes={max_bytes}"

    def read(reply: HttpReply) -> Fetched:
        offsets = [int(reply.headers[f"driftq-{name}-offset"]) for name in ("next", "start", "end")]
        return Fetched(_messages(bytes(reply.body), partition, offset), *offsets)

    return Call("GET", path, read, refusal=refusal, idempotent=True, wait_ms=wait_ms)


def _messages(data: bytes, partition: int, offset: int) -> list[StoredMessage]:
    """The messages from an offset on. The first batch may begin before it."""
    from driftq.wire import records  # noqa: PLC0415  # slow to import, and only `fetch` needs it

    messages: list[StoredMessage] = []
    for batch in records.split(data):
        header = records.read_header(batch)
        skipped = max(0, offset - header.first_offset)
        for index, record in enumerate(records.unpack(batch, header, first=skipped), header.first_offset + skipped):
            messages.append(_stored(record, partition, index, header.at_ms))
    return messages


def _stored(record: Record, partition: int, offset: int, at_ms: int) -> StoredMessage:
    head = read_head(record.head)
    try:
        value, packed = record.value.decode(), None
    except UnicodeDecodeError:
        value, packed = "", base64.b64encode(record.value).decode("ascii")
    return StoredMessage(
        partition,
        offset,
        timestamp_ms=at_ms,
        key=record.key.decode("utf-8", "replace"),
        value=value,
        value_base64=packed,
        envelope=head.envelope,
        routing=head.routing,
        job=head.job,
        dlq=head.dlq,
    )
