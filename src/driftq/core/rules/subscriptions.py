"""Subscriptions: create, read, delete, link streams; and claim, ack and finish a wake.

A wake is fenced by its generation: an ack of an older generation is refused. How wakes start and end is in
`core.transitions.wakes`.
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
from driftq.core.transitions.lookups import no_such_subscription
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
    return subscription if subscription is not None else no_such_subscription(name)


def make_key(ctx: DecisionContext, command: w.MakeSigningKey) -> Reply:
    if not ctx.state.subscriptions.seed:
        ctx.facts.append(SigningKeyMade(command.seed))
    return Done(changed=bool(ctx.facts))


# --- subscriptions and their links ------------------------------------------------------------------------------------


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
    subscription = _find(ctx, command.subscription)
    return subscription if isinstance(subscription, Rejected) else _view(ctx, subscription)


def _view(ctx: DecisionContext, subscription: SubscriptionRecord) -> w.SubscriptionView:
    created = subscription.created
    followed = tuple(_followed(ctx, link) for link in subscription.links.values())
    return w.SubscriptionView(created.subscription, created.config, created.origin, created.at_ms, followed)


def _followed(ctx: DecisionContext, link: SubscriptionLink) -> w.FollowedStream:
    return w.FollowedStream(link.path, link.by_name, link.acked, stream_end(ctx, link.path))


def delete(ctx: DecisionContext, command: w.DeleteSubscription) -> Reply:
    subscription = ctx.state.subscriptions.by_name.get(command.subscription)
    if subscription is not None:
        ctx.facts.append(SubscriptionDeleted(subscription.number))
    return Done(changed=subscription is not None)


def link(ctx: DecisionContext, command: w.LinkStreams) -> Reply:
    subscription = _find(ctx, command.subscription)
    if isinstance(subscription, Rejected):
        return subscription
    links = []
    for path in dict.fromkeys(command.paths):
        known = subscription.links.get(path)
        if known is None:
            links.append(SubscriptionLink(path, stream_end(ctx, path), True, False))
        elif not known.by_name:
            links.append(SubscriptionLink(path, known.acked, True, True))
    if len(subscription.links) + len(links) > LINKS_MAX:
        return Rejected(Code.TOO_LARGE, f"a subscription follows at most {LINKS_MAX} streams")
    if links:
        ctx.facts.append(SubscriptionLinked(subscription.number, tuple(links)))
    return Done(changed=bool(links))


def unlink(ctx: DecisionContext, command: w.UnlinkStream) -> Reply:
    subscription = _find(ctx, command.subscription)
    if isinstance(subscription, Rejected):
        return subscription
    known = subscription.links.get(command.path)
    if known is not None and known.by_name:
        if known.by_pattern:
            ctx.facts.append(
                SubscriptionLinked(subscription.number, (SubscriptionLink(known.path, known.acked, False, True),))
            )
        else:
            ctx.facts.append(SubscriptionUnlinked(subscription.number, known.path))
    return Done(changed=bool(ctx.facts))


# --- working on a wake ------------------------------------------------------------------------------------------------


def claim(ctx: DecisionContext, command: w.ClaimWake) -> Reply:
    subscription = _find(ctx, command.subscription)
    if isinstance(subscription, Rejected):
        return subscription
    if subscription.config.kind != PULL_WAKE:
        return _refuse(Code.INVALID_ARGUMENT, "INVALID_REQUEST", "only pull-wake subscriptions are claimed")
    if subscription.holder and subscription.until_ms > ctx.now_ms:
        message = f"{subscription.holder} works on it"
        details = {"current_holder": subscription.holder, "generation": subscription.generation}
        return _refuse(Code.BUSY, "ALREADY_CLAIMED", message, **details)
    followed = (_followed(ctx, link) for link in subscription.links.values())
    pending = tuple(stream for stream in followed if is_pending(stream))
    if not pending:
        return _refuse(Code.CONFLICT, "NO_PENDING_WORK", "nothing is pending")
    generation, wake_id = subscription.generation, subscription.wake_id
    if not wake_id or subscription.holder:  # a new generation fences off the last holder
        generation, wake_id = generation + 1, ctx.chance.token()
        tails = tuple((stream.path, stream.end_offset) for stream in pending)
        ctx.facts.append(WakeMade(subscription.number, generation, wake_id, ctx.now_ms, 0, tails))
    ctx.facts.append(WakeHeld(subscription.number, command.worker, ctx.now_ms + subscription.config.lease_ms))
    return w.WakeView(command.subscription, generation, wake_id, subscription.config.lease_ms, pending)


def is_pending(followed: w.FollowedStream) -> bool:
    return followed.end_offset > followed.acked


def ack(ctx: DecisionContext, command: w.AckWake) -> Reply:
    subscription = _find(ctx, command.subscription)
    if isinstance(subscription, Rejected):
        return subscription
    wake = (subscription.generation, subscription.wake_id)
    if not subscription.wake_id or (command.generation, command.wake_id) != wake:
        return _refuse(Code.STALE_EPOCH, "FENCED", "this wake is over", generation=subscription.generation)
    for path, offset in command.acks:
        known = subscription.links.get(path)
        if known is None or not known.acked <= offset <= stream_end(ctx, path):
            message = f"{path} is not followed" if known is None else f"{path} has no such offset to ack"
            return _refuse(Code.CONFLICT, "INVALID_OFFSET", message)
    until_ms = ctx.now_ms + subscription.config.lease_ms
    ctx.facts.append(WakeHeld(subscription.number, subscription.holder, until_ms, command.acks))
    if not (command.done or command.release):
        return w.WakeAckReply(False)
    return w.WakeAckReply(end_wake(ctx, subscription, dict(command.acks)))


def finish(ctx: DecisionContext, command: w.FinishWake) -> Reply:
    subscription = _find(ctx, command.subscription)
    if isinstance(subscription, Rejected):
        return subscription
    if not subscription.wake_id or command.generation != subscription.generation:
        return _refuse(Code.STALE_EPOCH, "FENCED", "this wake is over", generation=subscription.generation)
    acks = {
        path: max(end, subscription.links[path].acked) for path, end in subscription.tails if path in subscription.links
    }
    ctx.facts.append(WakeHeld(subscription.number, subscription.holder, ctx.now_ms, tuple(acks.items())))
    return w.WakeAckReply(end_wake(ctx, subscription, acks))
