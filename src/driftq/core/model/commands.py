"""Commands: everything a caller can ask the broker to do. Queries are in `core.model.queries`.

A command is a value that was parsed and bounded, but not yet decided. Payloads arrive packed (`wire.records`): the core
does not look into a record unless its message fails.
"""

from __future__ import annotations

from msgspec import Struct

from driftq.core.model.facts import ProducerSequence, RecordSchedule, TopicConfig
from driftq.wire.audit import AuditRecord

# What a sweep looks at: ("group", group_id, log_id), ("stream", log_id, 0), ("wake", subscription, 0), ("keys", 0, 0),
# ("outcomes", 0, 0), ("results", 0, 0), ("stages", 0, 0), ("job_batch", number, 0), ("job_batches", 0, 0).
Subject = tuple[str, int, int]


class Command(Struct, frozen=True, gc=False, kw_only=True):
    """Base of all commands. `audit` says who asks, for commands that are recorded in the audit."""

    audit: AuditRecord | None = None


class Held(Struct, frozen=True, gc=False):
    """A range of messages that the caller claims to hold: offsets [first, end) of a partition, under a token or,
    without one, under the owner's name. A range of one message may have a result or a progress, as JSON."""

    partition: int
    first: int
    end: int
    token: str = ""
    result: bytes = b""  # of an ack
    progress: bytes = b""  # of an extension


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
    """Drop the records of a partition below an offset."""

    topic: str
    partition: int
    offset: int


class CreateGroup(Command, frozen=True):
    """Create a group. `start` is "earliest", "latest", or a time in milliseconds."""

    topic: str
    group: str
    start: str | int = "earliest"


class SeekGroup(Command, frozen=True):
    """Move a group: to an offset of one partition, or in all partitions to "earliest", "latest" or a time."""

    topic: str
    group: str
    to: str | int
    partition: int | None = None


class CommitOffsets(Command, frozen=True):
    """A reader that keeps its own offsets reports how far it has read: (topic, partition, offset after the last one).
    Creates the group in topics that do not have it."""

    group: str
    offsets: tuple[tuple[str, int, int], ...]


class PauseGroup(Command, frozen=True):
    topic: str
    group: str
    paused: bool = True


class DeleteGroup(Command, frozen=True):
    topic: str
    group: str


# --- producing ------------------------------------------------------------------------------------------------------


class ProduceKey(Struct, frozen=True, gc=False):
    """The idempotency key of a produce, scoped by tenant and requested topic. `digest` is a fingerprint of the message;
    journals of older versions hold a checksum of the value (`value_crc`) instead."""

    tenant: str
    topic: str
    key: str
    digest: int = 0
    ttl_ms: int = 0
    strict: bool = False
    value_crc: int = 0


class Produce(Command, frozen=True):
    """Append a packed batch to one partition: the named one, or the one that the key hashes to."""

    topic: str
    batch: bytes
    count: int
    payload_bytes: int
    key: bytes = b""
    partition: int | None = None
    producer: ProducerSequence | None = None
    once: ProduceKey | None = None
    marks: tuple[RecordSchedule, ...] = ()
    job: ProduceKey | None = None  # the job id


class AdmittedProduce(Produce, frozen=True):
    """A produce by the broker itself, as a part of another command: no limit refuses it. A type of its own, so that the
    others cost nothing more."""


# --- consuming ------------------------------------------------------------------------------------------------------


class Claim(Command, frozen=True):
    """Claim up to `max_messages` for an owner, after acking what it has done (`acks`), in one frame. Creates the group
    if it does not exist. `max_bytes` limits their size, about; at least one message is claimed. 0: no limit."""

    topic: str
    group: str
    owner: str
    max_messages: int
    lease_ms: int | None = None
    start: str | int = "earliest"
    task: str | None = None
    label: str | None = None
    acks: tuple[Held, ...] = ()
    max_bytes: int = 0


class Ack(Command, frozen=True):
    """Settle messages as done. `fenced`: the caller must hold every one of them, or nothing is acked."""

    topic: str
    group: str
    owner: str
    held: tuple[Held, ...]
    fenced: bool = False


class AckThrough(Command, frozen=True):
    """Ack everything of a partition up to and including `offset`; the caller must hold all of it."""

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
    traceback: str = ""  # kept as the result if the message becomes a dead letter


class ReleaseMessages(Command, frozen=True):
    """Give messages back without counting the attempt. `sent` is False if no client has seen them."""

    topic: str
    group: str
    owner: str
    held: tuple[Held, ...]
    sent: bool = True
    delay_ms: int = 0


class RejectMessages(Command, frozen=True):
    """Move messages to the dead letters now."""

    topic: str
    group: str
    owner: str
    held: tuple[Held, ...]
    reason: str = ""
    traceback: str = ""  # kept as the result


class Extend(Command, frozen=True):
    topic: str
    group: str
    owner: str
    held: tuple[Held, ...]
    lease_ms: int | None = None


class Keep(Command, frozen=True):
    """Extend the leases of a connection that still settles, on behalf of the server. A lease is never shortened, and
    one that ran out is not renewed."""

    topic: str
    group: str
    held: tuple[Held, ...]
    until_ms: int


class Cancel(Command, frozen=True):
    """Cancel a message: settle it for every group that has not finished it."""

    topic: str
    partition: int
    offset: int


# --- idempotent effects ---------------------------------------------------------------------------------------------


class EffectKey(Struct, frozen=True, gc=False):
    """What identifies an effect."""

    tenant: str
    topic: str
    group: str
    key: str


class BeginEffect(Command, frozen=True):
    """Begin an effect. If it names its message, the effect is remembered until that message is settled. The lease token
    of the message, or the fence of an earlier begin, proves that the caller began it before."""

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
    """Create a stream, or check that the existing one has the same configuration. A fork names its source."""

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
    """Store a batch durably and invisibly under a handle, for a partition of a topic or a stream. With `chunk`, its
    number under the handle from 0, the command is idempotent."""

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
    """Publish the batches of these handles, in this order, once per (writer, batch number)."""

    writer: str
    batch_number: int
    handles: tuple[str, ...]
    content: str = ""  # identifies the content; empty if the writer does not know


class ForgetStages(Command, frozen=True):
    writer: str
    handles: tuple[str, ...]


# --- outcomes, time -------------------------------------------------------------------------------------------------


class CommitOutcome(Command, frozen=True):
    """Everything that one piece of work did, all or nothing: acks, produced messages, stream appends, effects."""

    acks: tuple[Ack, ...] = ()
    produces: tuple[Produce, ...] = ()
    appends: tuple[AppendStream, ...] = ()
    commits: tuple[CommitEffect, ...] = ()
    key: str = ""  # an idempotency key, for outcomes without tokens, fences or producers
    digest: bytes = b""  # of the request body


class SetClock(Command, frozen=True):
    """Correct the broker's time to `at_ms`, the time of the machine's clock."""

    at_ms: int


class Sweep(Command, frozen=True):
    """End what has expired of these subjects: leases, streams, stages, keys, records past their retention."""

    subjects: tuple[Subject, ...] = ()
