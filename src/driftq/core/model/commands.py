"""Everything one can ask of the broker. A command is a value: it has been parsed and bounded, not yet judged.

Payloads arrive packed (`wire.records`), so the core never looks into a record unless a message fails.
"""

from __future__ import annotations

from msgspec import Struct

from driftq.core.model.facts import ProducerSequence, RecordSchedule, TopicConfig

# What a sweep looks at: ("group", group_id, log_id), ("stream", log_id, 0), ("wake", subscription, 0), ("keys", 0, 0),
# ("outcomes", 0, 0), ("stages", 0, 0).
Subject = tuple[str, int, int]


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
    """Settle messages as done. `fenced`: the caller must hold every one of them, or nothing is acked."""

    topic: str
    group: str
    owner: str
    held: tuple[Held, ...]
    fenced: bool = False


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


class ReleaseMessages(Command, frozen=True):
    """Give messages back without counting the attempt; `sent` is False if nobody ever saw them."""

    topic: str
    group: str
    owner: str
    held: tuple[Held, ...]
    sent: bool = True
    delay_ms: int = 0


class RejectMessages(Command, frozen=True):
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
    """Append to a stream, close it, or both. `producer.epoch` -1 means that the server manages epochs. Without
    `keeps_producer` a producer that the stream does not know is not remembered: an outcome remembers its appends
    itself, and they must not push other producers out of the table."""

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
    keeps_producer: bool = True


class DeleteStream(Command, frozen=True):
    path: str


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


class CommitOutcome(Command, frozen=True):
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
