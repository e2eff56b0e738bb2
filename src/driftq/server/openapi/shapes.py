"""What answers look like, where no type of `wire` says it already: the faces write some of these bodies by hand.

Only documentation: nothing is encoded with these types. The tests hold real answers against the schemas made from them.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from driftq.wire.admin import GroupInfo
from driftq.wire.message import DeadLetter, Envelope, Job, Routing
from driftq.wire.queue import ProduceReply


class Error(Struct, frozen=True):
    """Every refusal: a code for programs, a sentence for people, and details that depend on the code."""

    error: str
    message: str


class Overload(Struct, frozen=True):
    """A refusal that is worth another try: `retry_after_ms` says when, as the Retry-After header does."""

    error: str
    message: str
    reason: str = ""
    retry_after_ms: int = 0


class Status(Struct, frozen=True):
    status: str


class Readiness(Struct, frozen=True, omit_defaults=True):
    """`warnings` are for an operator; the broker serves in spite of them."""

    status: str
    warnings: list[str] = []


class Version(Struct, frozen=True):
    version: str
    commit: str
    wal_enabled: bool
    durability: str


class Message(Struct, frozen=True, omit_defaults=True):
    """A message without a claim on it. Bytes that are not text are in `value_base64`."""

    partition: int
    offset: int
    timestamp_ms: int
    key: str
    value: str
    value_base64: str = ""
    envelope: Envelope | None = None
    routing: Routing | None = None
    job: Job | None = None
    dlq: DeadLetter | None = None
    error: str = ""
    message: str = ""


class DeliveredMessage(Struct, frozen=True, omit_defaults=True):
    """A message under a lease. `token` is its fence: give it back with ack, nack and the like. `error` and `message`
    stand for envelope, routing and job that cannot be read back."""

    partition: int
    offset: int
    attempts: int
    last_error: str
    lease_version: int
    token: str
    lease_until_ms: int
    timestamp_ms: int
    key: str
    value: str
    value_base64: str = ""
    envelope: Envelope | None = None
    routing: Routing | None = None
    job: Job | None = None
    dlq: DeadLetter | None = None
    error: str = ""
    message: str = ""


class ClaimReply(Struct, frozen=True):
    messages: list[DeliveredMessage]
    token: str
    lease_until: str


class BatchResult(Struct, frozen=True, omit_defaults=True):
    """One message of a batch: stored (`status` 200) or refused (`error` and `message`)."""

    status: int
    topic: str = ""
    routed_topic: str = ""
    partition: int = 0
    offset: int = 0
    duplicate: bool = False
    error: str = ""
    message: str = ""


class BatchReply(Struct, frozen=True):
    produced: int
    failed: int
    results: list[BatchResult]


class PackedReply(Struct, frozen=True):
    status: str
    topic: str
    partition: int
    offset: int
    count: int
    duplicate: bool


class PartitionOffsets(Struct, frozen=True, omit_defaults=True):
    partition: int
    start: int
    end: int
    at: int = 0


class OffsetsReply(Struct, frozen=True):
    topic: str
    partitions: list[PartitionOffsets]


class MessagesReply(Struct, frozen=True, omit_defaults=True):
    messages: list[Message]
    start_offset: int = 0
    end_offset: int = 0


class GroupsReply(Struct, frozen=True, omit_defaults=True):
    groups: list[GroupInfo]
    after: str | None = None  # where the next page begins; missing on the last


class EffectReply(Struct, frozen=True):
    status: Literal["PENDING", "COMMITTED", "FAILED"]
    fence: int
    owner: str
    at: str
    until: str
    result: str
    error: str


class BeginReply(Struct, frozen=True, omit_defaults=True):
    """`begun`: work on it, under this fence. `done`: it happened before, with this result."""

    status: Literal["begun", "done"]
    fence: int = 0
    until: str = ""
    result: str = ""
    at: str = ""


class AppendedReply(Struct, frozen=True):
    path: str
    end_offset: int
    closed: bool


class OutcomeDone(Struct, frozen=True, omit_defaults=True):
    """`duplicate`: it was carried out before, and this is the first result."""

    status: str
    produced: list[ProduceReply]
    streams: list[AppendedReply]
    duplicate: bool = False


class ErrorKind(Struct, frozen=True):
    group: str
    reason: str
    error: str
    example: str
    count: int
    last_at: str


class ErrorKinds(Struct, frozen=True, omit_defaults=True):
    errors: list[ErrorKind]
    after: str | None = None  # where the next page begins; missing on the last


class LettersReply(Struct, frozen=True, omit_defaults=True):
    messages: list[Message]
    after: str | None = None  # where the next page begins; missing on the last


class RedriveReply(Struct, frozen=True):
    status: str
    matched: int
    redriven: int
    failed: list[dict[str, Any]]


class JobAccepted(Struct, frozen=True):
    id: str
    topic: str
    partition: int
    offset: int
    duplicate: bool


JobWord = Literal["ready", "running", "scheduled", "retrying", "succeeded", "dead", "cancelled", "finished"]


class JobAttempt(Struct, frozen=True):
    attempt: int
    owner: str
    began_at: str
    ended_at: str | None
    end: Literal["running", "succeeded", "failed", "lost", "released", "dead", "cancelled"]
    error: str


class JobState(Struct, frozen=True, omit_defaults=True):
    """`result` is there when the worker committed an effect under the job's id."""

    group: str
    state: JobWord
    attempts: list[JobAttempt]
    due_at: str = ""
    owner: str = ""
    lease_until: str = ""
    result: str = ""


class JobReply(Struct, frozen=True):
    id: str
    topic: str
    partition: int
    offset: int
    task: str
    priority: int
    not_before: str | None
    state: JobWord
    groups: list[JobState]


class JobCancelled(Struct, frozen=True):
    id: str
    cancelled: bool


class TrimReply(Struct, frozen=True):
    stream: str
    earliest_offset: str
    trimmed: bool
