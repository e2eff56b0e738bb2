"""What one piece of work did, all or nothing: one frame holds the acks, the messages, the stream appends and the
effects."""

from __future__ import annotations

from collections.abc import Iterable

from driftq.core import commands as c
from driftq.core.case import Case
from driftq.core.produced_keys import produce_scope
from driftq.core.replies import OutcomeReply, Rejected, Reply, Settlement
from driftq.core.rules import effects, settle, streams
from driftq.core.rules.produce import produce
from driftq.wire.errors import Code


def outcome(case: Case, command: c.Outcome) -> Reply:
    refused = _named_twice(command)
    if refused is not None:
        return refused
    for ack in command.acks:
        reply = settle.ack(case, ack)
        if isinstance(reply, Rejected):
            return reply
        if isinstance(reply, Settlement) and reply.refused:
            first = reply.refused[0]
            details = {"partition": first.partition, "offset": first.offset}
            return Rejected(first.code, f"{first.message}; nothing of the outcome was done", details)
    produced = [produce(case, part) for part in command.produces]
    appended = [streams.append(case, part) for part in command.appends]
    committed = [effects.commit(case, part) for part in command.commits]
    for reply in (*produced, *appended, *committed):
        if isinstance(reply, Rejected):
            return reply
    return OutcomeReply(tuple(produced), tuple(appended))


def _named_twice(command: c.Outcome) -> Rejected | None:
    """Parts are judged against one state, so what dedup guards may be named only once."""
    producers = [(part.topic, part.producer.producer) for part in command.produces if part.producer is not None]
    named = [key for part in command.produces for key in (part.once, part.job) if key is not None]
    keys = [produce_scope(key) for key in named]
    paths = [part.path for part in command.appends]
    commits = [part.key for part in command.commits]
    for what, names in (("producer", producers), ("idempotency key", keys), ("stream", paths), ("effect", commits)):
        if _repeats(names):
            return Rejected(Code.INVALID_ARGUMENT, f"an outcome names each {what} at most once")
    return None


def _repeats(names: Iterable[object]) -> bool:
    listed = list(names)
    return len(listed) != len({repr(name) for name in listed})
