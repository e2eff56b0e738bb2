"""Subscriptions: who follows what, when somebody is woken, and who may still speak for a wake.

A wake is decided together with what causes it: the append, the end of the wake before, or a lease that ran out. It is
in the same frame, so that no crash can lose it. Events written to a wake stream wake nobody.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from driftq.core.model import facts as f
from driftq.core.model import subscriptions as w
from driftq.core.model.replies import Done, Rejected, Reply
from driftq.core.state.subscriptions import SubscriptionRecord, matches
from driftq.wire.errors import Code
from driftq.wire.records import pack_one

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext

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
        ctx.facts.append(w.SigningKeyMade(command.seed))
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
    links = {path: w.Link(path, _end(ctx, path), True, False) for path in config.streams}
    if config.pattern:
        for path, stream in ctx.state.streams.by_path.items():
            if not stream.soft_deleted and matches(config.pattern, path):
                links[path] = w.Link(path, _end(ctx, path), path in links, True)
    if len(links) > LINKS_MAX:
        return Rejected(Code.TOO_LARGE, f"{len(links)} streams match; a subscription follows at most {LINKS_MAX}")
    fact = w.SubscriptionCreated(
        command.subscription, subscriptions.next_number, ctx.now_ms, config, command.origin, tuple(links.values())
    )
    ctx.facts.append(fact)
    followed = tuple(w.FollowedStream(link.path, link.by_name, link.acked, link.acked) for link in links.values())
    return w.SubscriptionView(command.subscription, config, command.origin, ctx.now_ms, followed, created=True)


def read(ctx: DecisionContext, command: w.ReadSubscription) -> Reply:
    found = _find(ctx, command.subscription)
    return found if isinstance(found, Rejected) else _view(ctx, found)


def _view(ctx: DecisionContext, subscription: SubscriptionRecord) -> w.SubscriptionView:
    created = subscription.created
    followed = tuple(_followed(ctx, link) for link in subscription.links.values())
    return w.SubscriptionView(created.subscription, created.config, created.origin, created.at_ms, followed)


def _followed(ctx: DecisionContext, link: w.Link) -> w.FollowedStream:
    return w.FollowedStream(link.path, link.by_name, link.acked, _end(ctx, link.path))


def delete(ctx: DecisionContext, command: w.DeleteSubscription) -> Reply:
    found = ctx.state.subscriptions.by_name.get(command.subscription)
    if found is not None:
        ctx.facts.append(w.SubscriptionDeleted(found.number))
    return Done(changed=found is not None)


def link(ctx: DecisionContext, command: w.LinkStreams) -> Reply:
    found = _find(ctx, command.subscription)
    if isinstance(found, Rejected):
        return found
    links = []
    for path in dict.fromkeys(command.paths):
        known = found.links.get(path)
        if known is None:
            links.append(w.Link(path, _end(ctx, path), True, False))
        elif not known.by_name:
            links.append(w.Link(path, known.acked, True, True))
    if len(found.links) + len(links) > LINKS_MAX:
        return Rejected(Code.TOO_LARGE, f"a subscription follows at most {LINKS_MAX} streams")
    if links:
        ctx.facts.append(w.SubscriptionLinked(found.number, tuple(links)))
    return Done(changed=bool(links))


def unlink(ctx: DecisionContext, command: w.UnlinkStream) -> Reply:
    found = _find(ctx, command.subscription)
    if isinstance(found, Rejected):
        return found
    known = found.links.get(command.path)
    if known is not None and known.by_name:
        if known.by_pattern:
            ctx.facts.append(w.SubscriptionLinked(found.number, (w.Link(known.path, known.acked, False, True),)))
        else:
            ctx.facts.append(w.SubscriptionUnlinked(found.number, known.path))
    return Done(changed=bool(ctx.facts))


def _end(ctx: DecisionContext, path: str) -> int:
    """Where a stream ends, as this case will have left it; 0 if there is none."""
    if path in ctx.stream_made:
        return ctx.ends[ctx.stream_made[path]]
    stream = ctx.state.streams.by_path.get(path)
    if stream is None or stream.soft_deleted:
        return 0
    return ctx.ends.get(stream.log_id, ctx.state.logs[stream.log_id].end)


# --- waking -----------------------------------------------------------------------------------------------------------


def react(ctx: DecisionContext) -> None:
    """What the facts of a case mean to those who follow streams: new streams are linked, sleepers woken."""
    grown: dict[str, None] = {}
    followers: dict[int, dict[str, w.Link]] = {}
    for fact in list(ctx.facts):
        if isinstance(fact, f.StreamDeleted):
            path = ctx.state.streams.by_log[fact.log_id].path
            for number, subscription in ctx.state.subscriptions.by_path.get(path, {}).items():
                if subscription.links[path].by_name:  # it goes on from the start of whatever comes there
                    followers.setdefault(number, {})[path] = w.Link(path, 0, True, False)
        elif isinstance(fact, f.StreamCreated):
            ctx.stream_made[fact.path] = fact.log_id
            ctx.ends.setdefault(fact.log_id, fact.start_offset)
            for subscription in ctx.state.subscriptions.by_number.values():
                pattern = subscription.config.pattern
                if pattern and fact.path != subscription.config.wake_stream and matches(pattern, fact.path):
                    by_name = fact.path in subscription.links and subscription.links[fact.path].by_name
                    made = w.Link(fact.path, fact.start_offset, by_name, True)
                    ctx.facts.append(w.SubscriptionLinked(subscription.number, (made,)))
                    followers.setdefault(subscription.number, {})[fact.path] = made
        elif isinstance(fact, f.Appended):
            _note(ctx, grown, fact.log_id)
        elif isinstance(fact, f.Published):
            for part in fact.parts:
                _note(ctx, grown, part.log_id)
                ctx.ends[part.log_id] = max(ctx.ends.get(part.log_id, 0), part.first_offset + part.count)
    woken: dict[int, str] = {}
    for path in grown:
        for number in ctx.state.subscriptions.by_path.get(path, {}):
            woken.setdefault(number, path)
        for number, links in followers.items():
            if path in links:
                woken.setdefault(number, path)
    for number, path in woken.items():
        subscription = ctx.state.subscriptions.by_number[number]
        if not subscription.wake_id and path != subscription.config.wake_stream:
            _wake(ctx, subscription, {**subscription.links, **followers.get(number, {})}, path)


def _note(ctx: DecisionContext, grown: dict[str, None], log_id: int) -> None:
    stream = ctx.state.streams.by_log.get(log_id)
    if stream is not None:
        grown[stream.path] = None
        return
    for path, made_id in ctx.stream_made.items():
        if made_id == log_id:
            grown[path] = None


def _wake(ctx: DecisionContext, subscription: SubscriptionRecord, links: dict[str, w.Link], path: str) -> int:
    """Make a wake out of what is pending; returns its generation, or 0 if nothing is."""
    tails = tuple((each.path, _end(ctx, each.path)) for each in links.values() if _end(ctx, each.path) > each.acked)
    if not tails:
        return 0
    config = subscription.config
    until_ms = ctx.now_ms + config.lease_ms if config.kind == w.WEBHOOK else 0
    generation = subscription.generation + 1
    ctx.facts.append(w.WakeMade(subscription.number, generation, ctx.chance.token(), ctx.now_ms, until_ms, tails))
    if config.kind == w.PULL_WAKE:
        _announce(ctx, subscription, generation, path or tails[0][0])
    return generation


def _announce(ctx: DecisionContext, subscription: SubscriptionRecord, generation: int, path: str) -> None:
    """An event for the workers, if the stream they share can take it."""
    stream = ctx.state.streams.by_path.get(subscription.config.wake_stream)
    if stream is None or stream.closed or stream.soft_deleted or stream.is_over(ctx.now_ms):
        return
    event = {
        "type": "wake",
        "subscription_id": subscription.created.subscription,
        "stream": path,
        "generation": generation,
        "ts": ctx.now_ms,
    }
    body = json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode()
    ctx.append(ctx.state.logs[stream.log_id], pack_one(body), 1, len(body))


# --- working on a wake ------------------------------------------------------------------------------------------------


def claim(ctx: DecisionContext, command: w.ClaimWake) -> Reply:
    found = _find(ctx, command.subscription)
    if isinstance(found, Rejected):
        return found
    if found.config.kind != w.PULL_WAKE:
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
        ctx.facts.append(w.WakeMade(found.number, generation, wake_id, ctx.now_ms, 0, tails))
    ctx.facts.append(w.WakeHeld(found.number, command.worker, ctx.now_ms + found.config.lease_ms))
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
        if known is None or not known.acked <= offset <= _end(ctx, path):
            message = f"{path} is not followed" if known is None else f"{path} has no such offset to ack"
            return _refuse(Code.CONFLICT, "INVALID_OFFSET", message)
    until_ms = ctx.now_ms + found.config.lease_ms
    ctx.facts.append(w.WakeHeld(found.number, found.holder, until_ms, command.acks))
    if not (command.done or command.release):
        return w.WakeAcked(False)
    return w.WakeAcked(_end_wake(ctx, found, dict(command.acks)))


def finish(ctx: DecisionContext, command: w.FinishWake) -> Reply:
    found = _find(ctx, command.subscription)
    if isinstance(found, Rejected):
        return found
    if not found.wake_id or command.generation != found.generation:
        return _refuse(Code.STALE_EPOCH, "FENCED", "this wake is over", generation=found.generation)
    acks = {path: max(end, found.links[path].acked) for path, end in found.tails if path in found.links}
    ctx.facts.append(w.WakeHeld(found.number, found.holder, ctx.now_ms, tuple(acks.items())))
    return w.WakeAcked(_end_wake(ctx, found, acks))


def expire(ctx: DecisionContext, number: int) -> None:
    """A lease ran out: whoever had it is late from now on, and what is pending is woken for again."""
    found = ctx.state.subscriptions.by_number.get(number)
    if found is not None and found.wake_id and 0 < found.until_ms <= ctx.now_ms:
        _end_wake(ctx, found, {})


def _end_wake(ctx: DecisionContext, subscription: SubscriptionRecord, acks: dict[str, int]) -> bool:
    """End a wake; True if there is more, for which there is a new one at once."""
    ctx.facts.append(w.WakeEnded(subscription.number))
    links = {
        path: w.Link(path, acks.get(path, each.acked), each.by_name, each.by_pattern)
        for path, each in subscription.links.items()
    }
    return _wake(ctx, subscription, links, "") > 0
