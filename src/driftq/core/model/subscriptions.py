"""Commands of subscriptions and their replies. The facts are in `core.model.stream_facts`, which also explains what a
subscription is."""

from __future__ import annotations

from msgspec import Struct

from driftq.core.model.commands import Command
from driftq.core.model.replies import Reply
from driftq.core.model.stream_facts import StreamPosition, SubscriptionConfig

# --- commands ---------------------------------------------------------------------------------------------------------


class MakeSigningKey(Command, frozen=True):
    """Store the signing secret, unless there is one."""

    seed: bytes


class CreateSubscription(Command, frozen=True):
    subscription: str
    config: SubscriptionConfig
    origin: str


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
    """Ack streams of a wake and extend its lease, or end the wake: done, or given back."""

    subscription: str
    generation: int
    wake_id: str
    acks: tuple[StreamPosition, ...] = ()
    done: bool = False
    release: bool = False


class FinishWake(Command, frozen=True):
    """A webhook answered that it is done: ack everything that the wake listed."""

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
    """A wake that a worker has claimed: the streams with pending records."""

    subscription: str
    generation: int
    wake_id: str
    lease_ms: int
    streams: tuple[FollowedStream, ...]


class WakeAckReply(Reply, frozen=True):
    next_wake: bool
