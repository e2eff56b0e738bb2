"""Replies to commands. A refusal is a reply like any other; its code shows the client how to react."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from driftq.core.model.ranges import Range
from driftq.wire.errors import Code

if TYPE_CHECKING:
    from driftq.core.model.facts import Fact


class Reply(Struct, frozen=True, gc=False):
    """Base of all replies."""


class Done(Reply, frozen=True):
    """Done. `changed` is False if it was done before."""

    changed: bool = True


class Rejected(Reply, frozen=True):
    """Refused, and why. `details` is sent to the client as it is."""

    code: Code
    message: str
    details: dict[str, Any] = {}


class Touched(Reply, frozen=True):
    """How many messages a command changed."""

    count: int


class PurgeResult(Reply, frozen=True):
    """What a purge dropped: messages, and how many of them were under a lease or waited for a time, in all groups."""

    messages: int
    in_flight: int
    waiting: int


class TopicReady(Reply, frozen=True):
    topic: str
    partitions: int
    created: bool


class Produced(Reply, frozen=True):
    topic: str
    partition: int
    first_offset: int
    count: int
    duplicate: bool = False


class RedriveResult(Reply, frozen=True):
    """What became of each part of a redrive or a move: `Produced`, `Done` without a change if one of its messages was
    taken in the meantime, or a refusal."""

    parts: tuple[Reply, ...]


class Delivery(Struct, frozen=True, gc=False):
    """A run of messages that are delivered together, with the same lease and number of attempts."""

    partition: int
    log_id: int
    first: int
    end: int
    attempts: int
    version: int
    error: str = ""
    until_ms: int = 0  # when an execution timeout ends the lease early; 0: at the end of the claim's lease


class Refusal(Struct, frozen=True, gc=False):
    """One message of a settling call that was refused."""

    partition: int
    offset: int
    code: Code
    message: str


class Claimed(Reply, frozen=True):
    """What was claimed, and which of its acks were refused. `next_ms` is the time at which the next message may become
    due."""

    group_id: int
    deliveries: tuple[Delivery, ...]
    token: str
    until_ms: int
    next_ms: int | None = None
    refused: tuple[Refusal, ...] = ()


class Settlement(Reply, frozen=True):
    """Which messages of a settling call were refused; all others took effect. `dead` are those of a nack that became
    dead letters, as (partition, offset)."""

    refused: tuple[Refusal, ...] = ()
    until_ms: int = 0
    dead: tuple[tuple[int, int], ...] = ()


class EffectBegun(Reply, frozen=True):
    """The effect was begun; the caller commits it under this fence."""

    fence: int
    until_ms: int


class AlreadyDone(Reply, frozen=True):
    """The effect was committed before, with this result."""

    result: bytes
    at_ms: int


class StreamReady(Reply, frozen=True):
    log_id: int
    created: bool
    end_offset: int
    closed: bool
    content_type: str


class StreamAppended(Reply, frozen=True):
    first_offset: int
    end_offset: int
    closed: bool
    duplicate: bool = False
    epoch: int = 0
    seq: int = 0


class StreamView(Reply, frozen=True):
    """A log as clients may read it. `inherited` lists where the offsets of a fork below its own are stored, in order,
    as (log, first, end)."""

    log_id: int
    start_offset: int
    end_offset: int
    closed: bool
    content_type: str
    ttl_s: int | None = None
    expires_text: str = ""
    inherited: tuple[tuple[int, int, int], ...] = ()


class ProducerView(Reply, frozen=True):
    """The last accepted batch of a producer, and its offsets (-1: not remembered)."""

    producer: str
    epoch: int
    seq: int
    first_offset: int
    end_offset: int
    at_ms: int


class PendingView(Struct, frozen=True, gc=False):
    """A message that is neither fresh nor settled. `until_ms` is 0 without a lease, `retry_at_ms` is 0 with one."""

    offset: int
    state: str
    attempts: int
    owner: str
    until_ms: int
    retry_at_ms: int
    error: str


class StatesView(Reply, frozen=True):
    """The states of a group's messages in [offset, next_offset): settled below `floor` and in `settled`, pending as
    listed, all others fresh. There is more to read if `next_offset` is below `end`."""

    floor: int
    offset: int
    next_offset: int
    end: int
    settled: tuple[Range, ...]
    pending: tuple[PendingView, ...]


class StreamEntry(Struct, frozen=True, gc=False):
    path: str
    content_type: str
    end_offset: int
    closed: bool
    created_ms: int


class StreamsListed(Reply, frozen=True):
    streams: tuple[StreamEntry, ...]
    more: bool


class StagedReply(Reply, frozen=True):
    handle: str
    count: int
    expires_ms: int
    duplicate: bool = False


class PublishedPart(Struct, frozen=True, gc=False):
    log_id: int
    first_offset: int
    count: int


class PublishedReply(Reply, frozen=True):
    batch_number: int
    parts: tuple[PublishedPart, ...]
    duplicate: bool = False


class OutcomeReply(Reply, frozen=True):
    """The replies of an outcome's parts, in order."""

    produced: tuple[Reply, ...] = ()
    appended: tuple[Reply, ...] = ()
    duplicate: bool = False


class Swept(Reply, frozen=True):
    """The groups that may have something to claim now."""

    group_ids: tuple[int, ...] = ()
    facts: int = 0


class Decision(NamedTuple):
    """What `decide` returns: the facts, and the reply, which waits until they are durable."""

    facts: list[Fact]
    reply: Reply
