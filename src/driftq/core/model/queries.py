"""Queries: what a caller can ask of the broker.

Queries are decided like commands, so that a reply waits until everything it shows is durable: no caller sees a record,
a stream or an end that a crash could take back.
"""

from __future__ import annotations

from driftq.core.model.commands import Command


class ReadStream(Command, frozen=True):
    """Where a stream starts and ends, and whether it is closed. `renews`: this read extends a sliding lifetime."""

    path: str
    renews: bool = True


class ReadPartition(Command, frozen=True):
    """Where a partition of a topic starts and ends."""

    topic: str
    partition: int


class ReadStates(Command, frozen=True):
    """A group's settled ranges and pending messages in a range of a partition, about `limit` of them."""

    topic: str
    group: str
    partition: int
    offset: int | None = None  # None: from the group's floor
    end: int | None = None  # None: to the end of the log
    limit: int = 1_000


class ReadProducer(Command, frozen=True):
    """The last batch that a stream accepted from a producer, for a writer that resumes."""

    path: str
    producer: str


class ListStreams(Command, frozen=True):
    """Streams whose path starts with `prefix` and sorts after `after`, in order."""

    prefix: str = ""
    after: str = ""
    limit: int = 100


class ReadSubscription(Command, frozen=True):
    """A subscription, with the streams it follows."""

    subscription: str
