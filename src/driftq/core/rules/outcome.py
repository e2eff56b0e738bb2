"""An outcome: everything that one piece of work did, all or nothing. One frame holds its acks, messages, stream appends
and effects.

1. A repeat is answered with the first result (`core.state.outcomes`), before anything else is decided.
2. Every ack must be of a lease that the caller holds.
3. Every part is decided by its own rule, in the same context (`DecisionContext.decide`). If one refuses, the outcome is
   refused and nothing happens.
4. Every effect must be committed here for the first time: a worker that lost its message changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from driftq.core.model.effect_facts import OutcomeRecorded
from driftq.core.model.replies import Done, OutcomeReply, Produced, Rejected, Reply, StreamAppended
from driftq.core.state import outcomes
from driftq.core.state.idempotency_keys import produce_scope
from driftq.core.transitions.lookups import overlap
from driftq.wire.errors import Code

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.model import commands as c

NOTHING = "nothing of the outcome was done"


def outcome(ctx: DecisionContext, command: c.CommitOutcome) -> Reply:
    refused = _named_twice(command)
    if refused is not None:
        return refused
    identity = outcomes.identity(command)
    known = ctx.state.outcomes.find(identity, ctx.now_ms) if identity else None
    if known is not None:
        return _repeated(command, known)
    for ack in command.acks:
        reply = ctx.decide(replace(ack, fenced=True))
        if isinstance(reply, Rejected):
            return replace(reply, message=f"{reply.message}; {NOTHING}")
    produced: list[Produced] = []
    appended: list[StreamAppended] = []
    for reply in _parts(ctx, command):
        if isinstance(reply, Rejected):
            return reply
        if isinstance(reply, Produced):
            produced.append(reply)
        elif isinstance(reply, StreamAppended):
            appended.append(reply)
    if identity:
        expires_ms = ctx.now_ms + ctx.limits.key_ttl_ms
        result = outcomes.encode_result(produced, appended)
        ctx.facts.append(OutcomeRecorded(identity, outcomes.digest(command), expires_ms, ctx.now_ms, result))
    return OutcomeReply(tuple(produced), tuple(appended))


def _repeated(command: c.CommitOutcome, known: outcomes.KnownOutcome) -> Reply:
    if known.digest == outcomes.digest(command):
        return outcomes.first_reply(known)
    if command.key:
        message = f"idempotency key {command.key!r} was used for another outcome"
        return Rejected(Code.KEY_CONFLICT, f"{message}; {NOTHING}", {"idempotency_key": command.key})
    message = "another outcome was carried out under the same tokens and fences"
    return Rejected(Code.CONFLICT, f"{message}; {NOTHING}")


def _parts(ctx: DecisionContext, command: c.CommitOutcome) -> Iterable[Reply]:
    for produce in command.produces:
        yield ctx.decide(produce)
    for append in command.appends:
        yield ctx.decide(replace(append, keeps_producer=False))
    for commit in command.commits:
        yield _commit(ctx, commit)


def _commit(ctx: DecisionContext, command: c.CommitEffect) -> Reply:
    """Refuse an effect that is committed already: another outcome has done this work."""
    reply = ctx.decide(command)
    if isinstance(reply, Done) and not reply.changed:
        return Rejected(Code.CONFLICT, f"effect {command.key.key!r} was committed before; {NOTHING}")
    return reply


def _named_twice(command: c.CommitOutcome) -> Rejected | None:
    """All parts are decided against the same state, so whatever is deduplicated may be named only once."""
    producers = [(part.topic, part.producer.producer) for part in command.produces if part.producer is not None]
    scopes = [key for part in command.produces for key in (part.once, part.job) if key is not None]
    keys = [produce_scope(key) for key in scopes]
    paths = [part.path for part in command.appends]
    commits = [part.key for part in command.commits]
    for what, names in (("producer", producers), ("idempotency key", keys), ("stream", paths), ("effect", commits)):
        if _repeats(names):
            return Rejected(Code.INVALID_ARGUMENT, f"an outcome names each {what} at most once")
    if _is_any_acked_twice(command.acks):
        return Rejected(Code.INVALID_ARGUMENT, "an outcome names each message at most once")
    return None


def _is_any_acked_twice(acks: tuple[c.Ack, ...]) -> bool:
    held: dict[tuple[str, str], list[c.Held]] = {}
    for ack in acks:
        held.setdefault((ack.topic, ack.group), []).extend(ack.held)
    return any(len(ranges) > 1 and overlap(ranges) for ranges in held.values())


def _repeats(names: Iterable[object]) -> bool:
    listed = list(names)
    return len(listed) != len({repr(name) for name in listed})
