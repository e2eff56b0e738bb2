"""Subscriptions: who follows what, when somebody is woken, and who may still speak for a wake.

A wake is decided together with what causes it: the append, the end of the wake before, or a lease that ran out. It is
in the same frame, so that no crash can lose it. Events written to a wake stream wake nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core.model import subscriptions as w
from driftq.core.model.replies import Done, Rejected, Reply
from driftq.core.model.stream_facts import (
    PULL_WAKE,
    SigningKeyMade,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionLink,
    SubscriptionLinked,
    SubscriptionUnlinked,
    WakeHeld,
    WakeMade,
)
from driftq.core.state.subscriptions import SubscriptionRecord, matches
from driftq.core.transitions.wakes import end_wake, stream_end
from driftq.wire.errors import Code

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.model.queries import ReadSubscription

SUBSCRIPTIONS_MAX = 10_000
LINKS_MAX = 100_000


def _refuse(code: Code, reason: str, message: str, **details: object) -> Rejected:
    return Rejected(code, message, {"reason": reason, **details})


def _find(ctx: DecisionContext, name: str) -> SubscriptionRecord | Rejected:
    subscription = ctx.state.subscriptions.by_name.get(name)
    if subscription is None:
        return _refuse(Code.NOT_FOUND, "SUBSCRIPTION_NOT_FOUND", f"there is no subscription {name}")
    return subscription


def make_key(ctx: DecisionContext, command: w.MakeSigningKey) -> Reply:
    if not ctx.state.subscriptions.seed:
        ctx.facts.append(SigningKeyMade(command.seed))
    return Done(changed=bool(ctx.facts))


# --- what is followed -------------------------------------------------------------------------------------------------


def create(ctx: DecisionContext, command: w.CreateSubscription) -> Reply:
    subscriptions = ctx.state.subscriptions
    known = subscriptions.by_name.get(command.subscription)
    if known is not None:
        if known.config != command.config:
            message = f"subscription {command.subscription} exists with another configuration"
            return _refuse(Code.ALREADY_EXISTS, "SUBSCRIPTION_ALREADY_EXISTS", message)
        return _view(ctx, known)
    if len(subscriptions.by_name) >= SUBSCRIPTIONS_MAX:
        return Rejected(Code.OVERLOADED, f"there are {SUBSCRIPTIONS_MAX} subscriptions, the most allowed")
    config = command.config
    links = {path: SubscriptionLink(path, stream_end(ctx, path), True, False) for path in config.streams}
    if config.pattern:
        for path, stream in ctx.state.streams.by_path.items():
            if not stream.soft_deleted and matches(config.pattern, path):
                links[path] = SubscriptionLink(path, stream_end(ctx, path), path in links, True)
    if len(links) > LINKS_MAX:
        return Rejected(Code.TOO_LARGE, f"{len(links)} streams match; a subscription follows at most {LINKS_MAX}")
    fact = SubscriptionCreated(
        command.subscription, subscriptions.next_number, ctx.now_ms, config, command.origin, tuple(links.values())
    )
    ctx.facts.append(fact)
    followed = tuple(w.FollowedStream(link.path, link.by_name, link.acked, link.acked) for link in links.values())
    return w.SubscriptionView(command.subscription, config, command.origin, ctx.now_ms, followed, created=True)


def read(ctx: DecisionContext, command: ReadSubscription) -> Reply:
    found = _find(ctx, command.subscription)
    return found if isinstance(found, Rejected) else _view(ctx, found)


def _view(ctx: DecisionContext, subscription: SubscriptionRecord) -> w.SubscriptionView:
    created = subscription.created
    followed = tuple(_followed(ctx, link) for link in subscription.links.values())
    return w.SubscriptionView(created.subscription, created.config, created.origin, created.at_ms, followed)


def _followed(ctx: DecisionContext, link: SubscriptionLink) -> w.FollowedStream:
    return w.FollowedStream(link.path, link.by_name, link.acked, stream_end(ctx, link.path))


def delete(ctx: DecisionContext, command: w.DeleteSubscription) -> Reply:
    found = ctx.state.subscriptions.by_name.get(command.subscription)
    if found is not None:
        ctx.facts.append(SubscriptionDeleted(found.number))
    return Done(changed=found is not None)


def link(ctx: DecisionContext, command: w.LinkStreams) -> Reply:
    found = _find(ctx, command.subscription)
    if isinstance(found, Rejected):
        return found
    links = []
    for path in dict.fromkeys(command.paths):
        known = found.links.get(path)
        if known is None:
            links.append(SubscriptionLink(path, stream_end(ctx, path), True, False))
        elif not known.by_name:
            links.append(SubscriptionLink(path, known.acked, True, True))
    if len(found.links) + len(links) > LINKS_MAX:
        return Rejected(Code.TOO_LARGE, f"a subscription follows at most {LINKS_MAX} streams")
    if links:
        ctx.facts.append(SubscriptionLinked(found.number, tuple(links)))
    return Done(changed=bool(links))


def unlink(ctx: DecisionContext, command: w.UnlinkStream) -> Reply:
    found = _find(ctx, command.subscription)
    if isinstance(found, Rejected):
        return found
    known = found.links.get(command.path)
    if known is not None and known.by_name:
        if known.by_pattern:
            ctx.facts.append(
                SubscriptionLinked(found.number, (SubscriptionLink(known.path, known.acked, False, True),))
            )
        else:
            ctx.facts.append(SubscriptionUnlinked(found.number, known.path))
    return Done(changed=bool(ctx.facts))


# --- waking -----------------------------------------------------------------------------------------------------------


# --- working on a wake ------------------------------------------------------------------------------------------------


def claim(ctx: DecisionContext, command: w.ClaimWake) -> Reply:
    found = _find(ctx, command.subscription)
    if isinstance(found, Rejected):
        return found
    if found.config.kind != PULL_WAKE:
        return _refuse(Code.INVALID_ARGUMENT, "INVALID_REQUEST", "only pull-wake subscriptions are claimed")
    if found.holder and found.until_ms > ctx.now_ms:
        message = f"{found.holder} works on it"
        details = {"current_holder": found.holder, "generation": found.generation}
        return _refuse(Code.BUSY, "ALREADY_CLAIMED", message, **details)
    pending = tuple(each for each in (_followed(ctx, one) for one in found.links.values()) if is_pending(each))
    if not pending:
        return _refuse(Code.CONFLICT, "NO_PENDING_WORK", "nothing is pending")
    generation, wake_id = found.generation, found.wake_id
    if not wake_id or found.holder:  # whoever held it is fenced off
        generation, wake_id = generation + 1, ctx.chance.token()
        tails = tuple((each.path, each.end_offset) for each in pending)
        ctx.facts.append(WakeMade(found.number, generation, wake_id, ctx.now_ms, 0, tails))
    ctx.facts.append(WakeHeld(found.number, command.worker, ctx.now_ms + found.config.lease_ms))
    return w.WakeView(command.subscription, generation, wake_id, found.config.lease_ms, pending)


def is_pending(followed: w.FollowedStream) -> bool:
    return followed.end_offset > followed.acked


def ack(ctx: DecisionContext, command: w.AckWake) -> Reply:
    found = _find(ctx, command.subscription)
    if isinstance(found, Rejected):
        return found
    if not found.wake_id or (command.generation, command.wake_id) != (found.generation, found.wake_id):
        return _refuse(Code.STALE_EPOCH, "FENCED", "this wake is over", generation=found.generation)
    for path, offset in command.acks:
        known = found.links.get(path)
        if known is None or not known.acked <= offset <= stream_end(ctx, path):
            message = f"{path} is not followed" if known is None else f"{path} has no such offset to ack"
            return _refuse(Code.CONFLICT, "INVALID_OFFSET", message)
    until_ms = ctx.now_ms + found.config.lease_ms
    ctx.facts.append(WakeHeld(found.number, found.holder, until_ms, command.acks))
    if not (command.done or command.release):
        return w.WakeAckReply(False)
    return w.WakeAckReply(end_wake(ctx, found, dict(command.acks)))


def finish(ctx: DecisionContext, command: w.FinishWake) -> Reply:
    found = _find(ctx, command.subscription)
    if isinstance(found, Rejected):
        return found
    if not found.wake_id or command.generation != found.generation:
        return _refuse(Code.STALE_EPOCH, "FENCED", "this wake is over", generation=found.generation)
    acks = {path: max(end, found.links[path].acked) for path, end in found.tails if path in found.links}
    ctx.facts.append(WakeHeld(found.number, found.holder, ctx.now_ms, tuple(acks.items())))
    return w.WakeAckReply(end_wake(ctx, found, acks))
