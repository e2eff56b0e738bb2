"""Bodies of effects and outcomes.

An *effect* is something a worker does once, under a key: begin, commit or fail. An *outcome* is everything that one
piece of work did, in one write: acks, messages, stream appends, committed effects.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from driftq.wire.claims import HeldItem
from driftq.wire.fields import ID_LENGTH_MAX, Body, Name, Natural, Owner
from driftq.wire.produce import ProduceReply, ProduceRequest

EffectId = Annotated[str, Meta(min_length=1, max_length=ID_LENGTH_MAX)]


class EffectRequest(Body, frozen=True):
    """The key of an effect, in its topic, group and tenant."""

    topic: Name
    group: Name
    key: EffectId
    tenant_id: Annotated[str, Meta(max_length=ID_LENGTH_MAX)] = ""


class BeginRequest(EffectRequest, frozen=True, kw_only=True, omit_defaults=True):
    """Begin an effect. With the `token` of the message, or the `fence` of an earlier begin, the call can be
    repeated."""

    owner: Owner
    lease_ms: Natural | None = None
    partition: Natural | None = None
    offset: Natural | None = None
    token: Annotated[str, Meta(max_length=ID_LENGTH_MAX)] = ""
    fence: Natural | None = None


class BeginReply(Struct, frozen=True, omit_defaults=True):
    """`begun`: do the work, then commit with this `fence`. `done`: it was committed before, with this `result`."""

    status: Literal["begun", "done"]
    fence: int = 0
    until: str = ""
    result: str | None = None
    at: str = ""


class CommitRequest(EffectRequest, frozen=True, kw_only=True):
    """The effect was carried out. `result` is returned to later begins for `ttl_ms`."""

    fence: Natural
    result: str = ""
    ttl_ms: Natural = 0


class FailRequest(EffectRequest, frozen=True, kw_only=True):
    """The effect was not carried out; another worker may begin it."""

    fence: Natural
    reason: str = ""


class EffectReply(Struct, frozen=True):
    """The state of an effect."""

    status: Literal["PENDING", "COMMITTED", "FAILED"]
    fence: int
    owner: str
    at: str
    until: str
    result: str
    error: str


# --- outcomes ---------------------------------------------------------------------------------------------------------
#
# The broker stores a digest of the encoded messages, appends and commits of an outcome, to recognise a repeat. So the
# encoding of `ProduceRequest`, `OutcomeAppend` and `CommitRequest` must not change.


class OutcomeAck(Body, frozen=True, omit_defaults=True):
    topic: Name
    group: Name
    messages: list[HeldItem]
    owner: str = ""


class OutcomeAppend(Body, frozen=True):
    path: str
    value: str = ""
    value_base64: str | None = None
    content_type: str = "application/octet-stream"
    close: bool = False
    producer_id: str = ""
    producer_epoch: Natural = 0
    producer_seq: Natural = 0


class OutcomeRequest(Body, frozen=True, omit_defaults=True):
    """Everything that one piece of work did. A repeat is recognised by the tokens of its acks, the fences of its
    commits and the producers of its appends. An outcome that has none of these may have an `idempotency_key`."""

    acks: tuple[OutcomeAck, ...] = ()
    produce: tuple[ProduceRequest, ...] = ()
    streams: tuple[OutcomeAppend, ...] = ()
    commits: tuple[CommitRequest, ...] = ()
    idempotency_key: Annotated[str, Meta(max_length=ID_LENGTH_MAX)] = ""


class AppendedInfo(Struct, frozen=True):
    """A stream after the append of an outcome."""

    path: str
    end_offset: int
    closed: bool


class OutcomeDone(Struct, frozen=True, omit_defaults=True):
    """`duplicate`: the outcome was carried out before, and this is the first result."""

    status: str
    produced: list[ProduceReply]
    streams: list[AppendedInfo]
    duplicate: bool = False
