"""The vocabulary of subscriptions on one page: facts (tags 60 to 69), commands and replies.

A subscription follows streams, by name or by pattern, and is *woken* when one of them grows: a webhook is called, or an
event is written to a stream that workers share. A wake has a generation, which fences whoever is late, and a lease.
The facts evolve as `core.model.facts` says.
"""

from __future__ import annotations

from msgspec import Struct

from driftq.core.model.commands import Command
from driftq.core.model.facts import Fact
from driftq.core.model.replies import Reply

WEBHOOK = "webhook"
PULL_WAKE = "pull-wake"

StreamPosition = tuple[str, int]  # a stream's path and an offset of it


class SubscriptionConfig(Struct, frozen=True, array_like=True, gc=False):
    """What a subscription was created as. `origin` is the address its creator reached us under."""

    kind: str
    pattern: str = ""
    streams: tuple[str, ...] = ()
    url: str = ""
    wake_stream: str = ""
    lease_ms: int = 30_000
    description: str = ""


class Link(Struct, frozen=True, array_like=True, gc=False):
    """A stream that a subscription follows, by name or because of its pattern, and how far it has acked."""

    path: str
    acked: int
    by_name: bool
    by_pattern: bool


# --- facts ------------------------------------------------------------------------------------------------------------


class SubscriptionCreated(Fact, tag=60, frozen=True):
    """A subscription follows these streams."""

    subscription: str
    number: int
    at_ms: int
    config: SubscriptionConfig
    origin: str
    links: tuple[Link, ...]


class SubscriptionDeleted(Fact, tag=61, frozen=True):
    """A subscription is gone, and with it what it had acked."""

    number: int


class SubscriptionLinked(Fact, tag=62, frozen=True):
    """A subscription follows these streams now, as told."""

    number: int
    links: tuple[Link, ...]


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
    links: tuple[Link, ...]
    generation: int
    wake_id: str
    holder: str
    until_ms: int
    tails: tuple[StreamPosition, ...]


# --- commands ---------------------------------------------------------------------------------------------------------


class MakeSigningKey(Command, frozen=True):
    """Keep a secret, unless there is one already."""

    seed: bytes


class CreateSubscription(Command, frozen=True):
    subscription: str
    config: SubscriptionConfig
    origin: str


class ReadSubscription(Command, frozen=True):
    subscription: str


class DeleteSubscription(Command, frozen=True):
    subscription: str


class LinkStreams(Command, frozen=True):
    subscription: str
    paths: tuple[str, ...]


class UnlinkStream(Command, frozen=True):
    subscription: str
    path: str


class ClaimWake(Command, frozen=True):
    """Take the work of a pull-wake subscription."""

    subscription: str
    worker: str


class AckWake(Command, frozen=True):
    """Ack streams of a wake and keep its lease, or end it: done, or given back."""

    subscription: str
    generation: int
    wake_id: str
    acks: tuple[StreamPosition, ...] = ()
    done: bool = False
    release: bool = False


class FinishWake(Command, frozen=True):
    """A webhook answered that it is done: everything the wake showed is acked."""

    subscription: str
    generation: int


# --- replies ----------------------------------------------------------------------------------------------------------


class FollowedStream(Struct, frozen=True, gc=False):
    path: str
    by_name: bool
    acked: int
    end_offset: int


class SubscriptionView(Reply, frozen=True):
    subscription: str
    config: SubscriptionConfig
    origin: str
    at_ms: int
    streams: tuple[FollowedStream, ...]
    created: bool = False


class WakeView(Reply, frozen=True):
    """A wake in somebody's hands: the streams that have something new."""

    subscription: str
    generation: int
    wake_id: str
    lease_ms: int
    streams: tuple[FollowedStream, ...]


class WakeAcked(Reply, frozen=True):
    next_wake: bool
