"""What an answer can be. A refusal is a value like any other reply; it carries a code that says what to do."""

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
    """It is so now (or was before): nothing else to say."""

    changed: bool = True


class Rejected(Reply, frozen=True):
    """No, and why. `details` goes to the caller as it is."""

    code: Code
    message: str
    details: dict[str, Any] = {}


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


class Delivery(Struct, frozen=True, gc=False):
    """A run of messages handed out together; all share token, lease and history."""

    partition: int
    log_id: int
    first: int
    end: int
    attempts: int
    version: int
    error: str = ""
    until_ms: int = 0  # if it ends before the claim's lease: an attempt may not take longer


class Claimed(Reply, frozen=True):
    """What was claimed; `next_ms` is when waiting messages may become due, if nothing else happens."""

    group_id: int
    deliveries: tuple[Delivery, ...]
    token: str
    until_ms: int
    next_ms: int | None = None


class Refusal(Struct, frozen=True, gc=False):
    """One message of a settling call that was refused."""

    partition: int
    offset: int
    code: Code
    message: str


class Settlement(Reply, frozen=True):
    """Which messages of a settling call were refused; all others took effect."""

    refused: tuple[Refusal, ...] = ()
    until_ms: int = 0


class EffectBegun(Reply, frozen=True):
    """Work on the key: yours under this fence."""

    fence: int
    until_ms: int


class AlreadyDone(Reply, frozen=True):
    """The key's effect happened before; here is its result."""

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
    """A log as its readers may see it. `inherited` says where a fork's offsets below its own are kept, in order, each
    (log, first, end)."""

    log_id: int
    start_offset: int
    end_offset: int
    closed: bool
    content_type: str
    ttl_s: int | None = None
    expires_text: str = ""
    inherited: tuple[tuple[int, int, int], ...] = ()


class ProducerView(Reply, frozen=True):
    """The last batch of a producer that was accepted, and where it went (-1: not remembered)."""

    producer: str
    epoch: int
    seq: int
    first_offset: int
    end_offset: int
    at_ms: int


class PendingView(Struct, frozen=True, gc=False):
    """A message that is neither fresh nor settled. Without a lease `until_ms` is 0, without a rest `retry_at_ms`."""

    offset: int
    state: str
    attempts: int
    owner: str
    until_ms: int
    retry_at_ms: int
    error: str


class StatesView(Reply, frozen=True):
    """A group in [offset, next_offset) of a partition: settled below `floor` and in `settled`, pending as listed,
    everything else fresh. There is more if `next_offset` is below `end`."""

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
    """Which groups may have something to claim now."""

    group_ids: tuple[int, ...] = ()
    facts: int = 0


class Decision(NamedTuple):
    """What `decide` returns: the facts that become true and the answer, which waits until they are durable."""

    facts: list[Fact]
    reply: Reply
