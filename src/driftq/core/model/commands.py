"""Everything one can ask of the broker. A command is a value: it has been parsed and bounded, not yet judged.

Payloads arrive packed (`wire.records`), so the core never looks into a record unless a message fails.
"""

from __future__ import annotations

from msgspec import Struct

from driftq.core.model.deadlines import Subject
from driftq.core.model.facts import ProducerSequence, RecordSchedule, TopicConfig


class Command(Struct, frozen=True, gc=False):
    """Base of all commands."""


class Held(Struct, frozen=True, gc=False):
    """A run of messages somebody says they hold: offsets [first, end) of a partition, under a token or the owner's
    name."""

    partition: int
    first: int
    end: int
    token: str = ""


# --- topics and groups ----------------------------------------------------------------------------------------------


class CreateTopic(Command, frozen=True):
    topic: str
    partitions: int = 1
    config: TopicConfig = TopicConfig()


class ConfigureTopic(Command, frozen=True):
    topic: str
    config: TopicConfig


class DeleteTopic(Command, frozen=True):
    topic: str


class TrimTopic(Command, frozen=True):
    """Forget the records of a partition below an offset."""

    topic: str
    partition: int
    offset: int


class CreateGroup(Command, frozen=True):
    """Register a group. `start` is "earliest", "latest", or a time in milliseconds."""

    topic: str
    group: str
    start: str | int = "earliest"


class SeekGroup(Command, frozen=True):
    """Start over: at an offset of one partition, or everywhere at "earliest", "latest" or a time."""

    topic: str
    group: str
    to: str | int
    partition: int | None = None


class PauseGroup(Command, frozen=True):
    topic: str
    group: str
    paused: bool = True


class DeleteGroup(Command, frozen=True):
    topic: str
    group: str


# --- producing ------------------------------------------------------------------------------------------------------


class ProduceKey(Struct, frozen=True, gc=False):
    """Idempotency of a produce: scope (tenant, requested topic, key). `digest` is a fingerprint of the message; the
    journals of older versions hold a checksum of the value (`value_crc`) in its place."""

    tenant: str
    topic: str
    key: str
    digest: int = 0
    ttl_ms: int = 0
    strict: bool = False
    value_crc: int = 0


class Produce(Command, frozen=True):
    """Append a packed batch to one partition: the one named, or the one its key hashes to."""

    topic: str
    batch: bytes
    count: int
    payload_bytes: int
    key: bytes = b""
    partition: int | None = None
    producer: ProducerSequence | None = None
    once: ProduceKey | None = None
    marks: tuple[RecordSchedule, ...] = ()
    job: ProduceKey | None = None  # the id of a job


# --- consuming ------------------------------------------------------------------------------------------------------


class Claim(Command, frozen=True):
    """Take up to `max_messages` for an owner. Registers the group if it is new."""

    topic: str
    group: str
    owner: str
    max_messages: int
    lease_ms: int | None = None
    start: str | int = "earliest"
    task: str | None = None
    label: str | None = None


class Ack(Command, frozen=True):
    topic: str
    group: str
    owner: str
    held: tuple[Held, ...]


class AckThrough(Command, frozen=True):
    """Ack everything a group holds in a partition up to and with `offset`; all of it must be the caller's."""

    topic: str
    group: str
    owner: str
    partition: int
    offset: int
    token: str = ""


class Nack(Command, frozen=True):
    topic: str
    group: str
    owner: str
    held: tuple[Held, ...]
    reason: str = ""
    delay_ms: int | None = None


class Release(Command, frozen=True):
    """Give messages back without counting the attempt; `sent` is False if nobody ever saw them."""

    topic: str
    group: str
    owner: str
    held: tuple[Held, ...]
    sent: bool = True
    delay_ms: int = 0


class Reject(Command, frozen=True):
    """Straight to the dead letters."""

    topic: str
    group: str
    owner: str
    held: tuple[Held, ...]
    reason: str = ""


class Extend(Command, frozen=True):
    topic: str
    group: str
    owner: str
    held: tuple[Held, ...]
    lease_ms: int | None = None


class Keep(Command, frozen=True):
    """The broker extends leases of a connection that still settles. A lease is never shortened, and one that has ended
    stays so."""

    topic: str
    group: str
    held: tuple[Held, ...]
    until_ms: int


class Cancel(Command, frozen=True):
    """Settle a message for every group that has not finished it."""

    topic: str
    partition: int
    offset: int


class Redrive(Command, frozen=True):
    """Produce a dead letter again and settle it for the group that redrives, together; nothing if that was done
    before."""

    topic: str
    group: str
    partition: int
    offset: int
    produce: Produce


# --- idempotent effects ---------------------------------------------------------------------------------------------


class EffectKey(Struct, frozen=True, gc=False):
    """Identity of an effect: scope (tenant, topic, group, key)."""

    tenant: str
    topic: str
    group: str
    key: str


class BeginEffect(Command, frozen=True):
    """Ask to work on a key. With the message it belongs to, it is remembered until that message is settled. The lease
    token of that message, or the fence of an earlier begin, proves that the caller is the one that began before."""

    key: EffectKey
    owner: str
    lease_ms: int | None = None
    partition: int | None = None
    offset: int | None = None
    token: str = ""
    fence: int | None = None


class CommitEffect(Command, frozen=True):
    key: EffectKey
    fence: int
    result: bytes = b""
    ttl_ms: int = 0


class FailEffect(Command, frozen=True):
    key: EffectKey
    fence: int
    error: str = ""


# --- streams --------------------------------------------------------------------------------------------------------


class CreateStream(Command, frozen=True):
    """Create a stream, or match the one that is there. Forks name their source."""

    path: str
    content_type: str = ""
    ttl_s: int | None = None
    expires_at_ms: int | None = None
    expires_text: str = ""
    closed: bool = False
    source: str | None = None
    fork_offset: int | None = None
    fork_sub_offset: int | None = None
    batch: bytes = b""
    count: int = 0
    payload_bytes: int = 0
    gaps_allowed: bool = False
    retention_ms: int = 0
    retention_bytes: int = 0


class AppendStream(Command, frozen=True):
    """Append to a stream, close it, or both. `producer.epoch` -1 means that the server manages epochs."""

    path: str
    content_type: str = ""
    batch: bytes = b""
    count: int = 0
    payload_bytes: int = 0
    producer: ProducerSequence | None = None
    stream_seq: str = ""
    if_match: int | None = None
    close: bool = False
    gaps_allowed: bool = False


class DeleteStream(Command, frozen=True):
    path: str


class ReadStream(Command, frozen=True):
    """Where a stream begins and ends, and whether it can grow. Reading renews a sliding lifetime; looking does not."""

    path: str
    renews: bool = True


class ReadPartition(Command, frozen=True):
    """The same question about a partition of a topic."""

    topic: str
    partition: int


class ReadStates(Command, frozen=True):
    """Where a group stands in a range of a partition: what is settled, what is pending. About `limit` of them."""

    topic: str
    group: str
    partition: int
    offset: int | None = None  # the group's floor
    end: int | None = None
    limit: int = 1_000


class ReadProducer(Command, frozen=True):
    """What a stream remembers of a producer: for a writer that resumes."""

    path: str
    producer: str


class ListStreams(Command, frozen=True):
    """Paths that begin with `prefix` and come behind `after`, in order."""

    prefix: str = ""
    after: str = ""
    limit: int = 100


class TrimStream(Command, frozen=True):
    path: str
    offset: int


# --- staged appends -------------------------------------------------------------------------------------------------


class Stage(Command, frozen=True):
    """Keep a batch durable and invisible under a handle, for a partition of a topic or a stream. With its number under
    the handle (`chunk`, from 0) a repeat is harmless."""

    writer: str
    handle: str
    batch: bytes
    count: int
    payload_bytes: int
    topic: str = ""
    key: bytes = b""
    partition: int | None = None
    path: str = ""
    ttl_ms: int = 0
    chunk: int | None = None


class Publish(Command, frozen=True):
    """Make the named handles visible, in this order, once for (writer, batch number)."""

    writer: str
    batch_number: int
    handles: tuple[str, ...]


class ForgetStages(Command, frozen=True):
    writer: str
    handles: tuple[str, ...]


# --- together -------------------------------------------------------------------------------------------------------


class Outcome(Command, frozen=True):
    """What one piece of work did, all or nothing: acks, produced messages, stream appends, committed effects."""

    acks: tuple[Ack, ...] = ()
    produces: tuple[Produce, ...] = ()
    appends: tuple[AppendStream, ...] = ()
    commits: tuple[CommitEffect, ...] = ()
    key: str = ""  # an idempotency key, for outcomes that have nothing else to be recognised by
    digest: bytes = b""  # of what the caller asked for, as it was sent


class SetClock(Command, frozen=True):
    """The machine's clock is right and the broker's time is not: it is `at_ms` now."""

    at_ms: int


class Sweep(Command, frozen=True):
    """Time has passed: end what has run out (leases, streams, stages; with `retention`, old records too)."""

    subjects: tuple[Subject, ...] = ()
    retention: bool = False
