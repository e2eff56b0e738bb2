"""Facts of streams (tags 20 to 23) and of subscriptions to streams (tags 60 to 68).

A subscription follows streams, by name or by pattern, and is *woken* when one of them grows: the broker calls a
webhook, or writes an event to a stream that workers share. A wake has a generation, which fences late workers, and a
lease.
Facts evolve as described in `core.model.facts`.
"""

from __future__ import annotations

from msgspec import Struct

from driftq.core.model.facts import Fact, ProducerSequence

WEBHOOK = "webhook"
PULL_WAKE = "pull-wake"

StreamPosition = tuple[str, int]  # a stream's path and an offset of it


class StreamCreated(Fact, tag=20, frozen=True):
    """A stream was created at a path. A fork shares the offsets of its source below `start_offset`."""

    path: str
    log_id: int
    at_ms: int
    content_type: str
    ttl_s: int | None = None
    expires_at_ms: int | None = None
    expires_text: str = ""
    closed: bool = False
    source_log_id: int | None = None
    start_offset: int = 0
    fork_offset: int | None = None
    fork_sub_offset: int = 0
    gaps_allowed: bool = False
    retention_ms: int = 0
    retention_bytes: int = 0


class StreamClosed(Fact, tag=21, frozen=True):
    """A stream was closed without a last record."""

    log_id: int
    at_ms: int
    producer: ProducerSequence | None = None
    stream_seq: str = ""


class StreamDeleted(Fact, tag=22, frozen=True):
    """A stream was deleted; softly, if forks still read its records."""

    log_id: int
    soft: bool


class StreamTouched(Fact, tag=23, frozen=True):
    """A read extended a sliding lifetime."""

    log_id: int
    at_ms: int


# --- subscriptions ---------------------------------------------------------------------------------------------------


class SubscriptionConfig(Struct, frozen=True, array_like=True, gc=False):
    """The configuration that a subscription was created with."""

    kind: str
    pattern: str = ""
    streams: tuple[str, ...] = ()
    url: str = ""
    wake_stream: str = ""
    lease_ms: int = 30_000
    description: str = ""


class SubscriptionLink(Struct, frozen=True, array_like=True, gc=False):
    """A stream that a subscription follows, by name or by its pattern, and the offset up to which it has acked."""

    path: str
    acked: int
    by_name: bool
    by_pattern: bool


class SubscriptionCreated(Fact, tag=60, frozen=True):
    """A subscription was created. `origin` is the address under which its creator reached the server."""

    subscription: str
    number: int
    at_ms: int
    config: SubscriptionConfig
    origin: str
    links: tuple[SubscriptionLink, ...]


class SubscriptionDeleted(Fact, tag=61, frozen=True):
    """A subscription was deleted, with what it had acked."""

    number: int


class SubscriptionLinked(Fact, tag=62, frozen=True):
    """A subscription follows these streams now."""

    number: int
    links: tuple[SubscriptionLink, ...]


class SubscriptionUnlinked(Fact, tag=63, frozen=True):
    """A subscription no longer follows a stream."""

    number: int
    path: str


class WakeMade(Fact, tag=64, frozen=True):
    """A wake started: streams have grown up to these ends. The lease of a webhook runs from here on."""

    number: int
    generation: int
    wake_id: str
    at_ms: int
    until_ms: int
    tails: tuple[StreamPosition, ...]


class WakeHeld(Fact, tag=65, frozen=True):
    """A worker holds a wake until a time, and has acked these offsets."""

    number: int
    holder: str
    until_ms: int
    acks: tuple[StreamPosition, ...] = ()


class WakeEnded(Fact, tag=66, frozen=True):
    """A wake ended: done, given back, or its lease ran out."""

    number: int


class SigningKeyMade(Fact, tag=67, frozen=True):
    """The secret that signs webhooks and callback tokens was created."""

    seed: bytes


class SubscriptionState(Fact, tag=68, frozen=True):
    """State of a subscription, in a snapshot."""

    created: SubscriptionCreated
    links: tuple[SubscriptionLink, ...]
    generation: int
    wake_id: str
    holder: str
    until_ms: int
    tails: tuple[StreamPosition, ...]
