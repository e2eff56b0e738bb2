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
    """A stream exists at a path. A fork shares the offsets of its source below `start_offset`."""

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
    """A stream ended without a last record."""

    log_id: int
    at_ms: int
    producer: ProducerSequence | None = None
    stream_seq: str = ""


class StreamDeleted(Fact, tag=22, frozen=True):
    """A stream is gone; softly, if forks still read its records."""

    log_id: int
    soft: bool


class StreamTouched(Fact, tag=23, frozen=True):
    """A read renewed a sliding lifetime."""

    log_id: int
    at_ms: int


# --- subscriptions ---------------------------------------------------------------------------------------------------


class SubscriptionConfig(Struct, frozen=True, array_like=True, gc=False):
    """What a subscription was created as. `origin` is the address its creator reached us under."""

    kind: str
    pattern: str = ""
    streams: tuple[str, ...] = ()
    url: str = ""
    wake_stream: str = ""
    lease_ms: int = 30_000
    description: str = ""


class SubscriptionLink(Struct, frozen=True, array_like=True, gc=False):
    """A stream that a subscription follows, by name or because of its pattern, and how far it has acked."""

    path: str
    acked: int
    by_name: bool
    by_pattern: bool


class SubscriptionCreated(Fact, tag=60, frozen=True):
    """A subscription follows these streams."""

    subscription: str
    number: int
    at_ms: int
    config: SubscriptionConfig
    origin: str
    links: tuple[SubscriptionLink, ...]


class SubscriptionDeleted(Fact, tag=61, frozen=True):
    """A subscription is gone, and with it what it had acked."""

    number: int


class SubscriptionLinked(Fact, tag=62, frozen=True):
    """A subscription follows these streams now, as told."""

    number: int
    links: tuple[SubscriptionLink, ...]


class SubscriptionUnlinked(Fact, tag=63, frozen=True):
    """A subscription does not follow a stream any more."""

    number: int
    path: str


class WakeMade(Fact, tag=64, frozen=True):
    """Streams have grown: a subscription is to be worked on, up to these ends. Webhooks are leased from here on."""

    number: int
    generation: int
    wake_id: str
    at_ms: int
    until_ms: int
    tails: tuple[StreamPosition, ...]


class WakeHeld(Fact, tag=65, frozen=True):
    """Somebody works on a wake until then, and has acked this."""

    number: int
    holder: str
    until_ms: int
    acks: tuple[StreamPosition, ...] = ()


class WakeEnded(Fact, tag=66, frozen=True):
    """A wake is over: done, given back, or its lease ran out."""

    number: int


class SigningKeyMade(Fact, tag=67, frozen=True):
    """The secret that webhooks are signed with and callback tokens are made from."""

    seed: bytes


class SubscriptionState(Fact, tag=68, frozen=True):
    """Image of a subscription."""

    created: SubscriptionCreated
    links: tuple[SubscriptionLink, ...]
    generation: int
    wake_id: str
    holder: str
    until_ms: int
    tails: tuple[StreamPosition, ...]
