"""Wakes of subscriptions: when one starts, what announces it, and how it ends.

A wake is decided together with its cause and is in the same frame, so that no crash can lose it. The causes are:

1. A followed stream grows while the subscription is asleep (`react`).
2. A wake ends and there is more to read (`end_wake`).
3. The lease of a wake runs out (`expire_wake`).

Events written to a wake stream wake no subscription.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from driftq.core.model.effect_facts import Published
from driftq.core.model.facts import Appended
from driftq.core.model.stream_facts import (
    PULL_WAKE,
    WEBHOOK,
    StreamCreated,
    StreamDeleted,
    SubscriptionLink,
    SubscriptionLinked,
    WakeEnded,
    WakeMade,
)
from driftq.core.state.subscriptions import matches
from driftq.wire.namespaces import Namespace, tenant_of
from driftq.wire.records import pack_one

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.state.subscriptions import SubscriptionRecord


def react(ctx: DecisionContext) -> None:
    """Add what a command's facts mean to subscriptions: link new streams to patterns, wake sleeping subscriptions."""
    grown: dict[str, None] = {}  # paths of the streams that have new records
    new_links: dict[int, dict[str, SubscriptionLink]] = {}  # by subscription: links that these facts make or reset
    for fact in list(ctx.facts):
        if isinstance(fact, StreamDeleted):
            path = ctx.state.streams.by_log[fact.log_id].path
            for number, subscription in ctx.state.subscriptions.by_path.get(path, {}).items():
                if subscription.links[path].by_name:  # it will follow the next stream of that name from its start
                    new_links.setdefault(number, {})[path] = SubscriptionLink(path, 0, True, False)
        elif isinstance(fact, StreamCreated):
            ctx.created_streams[fact.path] = fact.log_id
            ctx.ends.setdefault(fact.log_id, fact.start_offset)
            for subscription in ctx.state.subscriptions.by_number.values():
                pattern = subscription.config.pattern
                if pattern and fact.path != subscription.config.wake_stream and matches(pattern, fact.path):
                    by_name = fact.path in subscription.links and subscription.links[fact.path].by_name
                    link = SubscriptionLink(fact.path, fact.start_offset, by_name, True)
                    ctx.facts.append(SubscriptionLinked(subscription.number, (link,)))
                    new_links.setdefault(subscription.number, {})[fact.path] = link
        elif isinstance(fact, Appended):
            _add_grown(ctx, grown, fact.log_id)
        elif isinstance(fact, Published):
            for part in fact.parts:
                _add_grown(ctx, grown, part.log_id)
                ctx.ends[part.log_id] = max(ctx.ends.get(part.log_id, 0), part.first_offset + part.count)
    woken: dict[int, str] = {}  # subscriptions, and the first stream that concerns each
    for path in grown:
        for number in ctx.state.subscriptions.by_path.get(path, {}):
            woken.setdefault(number, path)
        for number, links in new_links.items():
            if path in links:
                woken.setdefault(number, path)
    for number, path in woken.items():
        subscription = ctx.state.subscriptions.by_number[number]
        if not subscription.wake_id and path != subscription.config.wake_stream:
            _wake(ctx, subscription, {**subscription.links, **new_links.get(number, {})}, path)


def _add_grown(ctx: DecisionContext, grown: dict[str, None], log_id: int) -> None:
    stream = ctx.state.streams.by_log.get(log_id)
    if stream is not None:
        grown[stream.path] = None
        return
    for path, created_id in ctx.created_streams.items():
        if created_id == log_id:
            grown[path] = None


def expire_wake(ctx: DecisionContext, number: int) -> None:
    """The lease of a wake ran out: its holder is fenced off, and a new wake starts if records are pending."""
    subscription = ctx.state.subscriptions.by_number.get(number)
    if subscription is not None and subscription.wake_id and 0 < subscription.until_ms <= ctx.now_ms:
        end_wake(ctx, subscription, {})


def end_wake(ctx: DecisionContext, subscription: SubscriptionRecord, acks: dict[str, int]) -> bool:
    """End a wake. True if records are still pending: then the next wake starts in the same frame."""
    ctx.facts.append(WakeEnded(subscription.number))
    links = {
        path: SubscriptionLink(path, acks.get(path, link.acked), link.by_name, link.by_pattern)
        for path, link in subscription.links.items()
    }
    return _wake(ctx, subscription, links, "") > 0


def _wake(ctx: DecisionContext, subscription: SubscriptionRecord, links: dict[str, SubscriptionLink], path: str) -> int:
    """Start a wake for the streams with pending records; returns its generation, or 0 if nothing is pending."""
    tails = tuple((link.path, end) for link in links.values() if (end := stream_end(ctx, link.path)) > link.acked)
    if not tails:
        return 0
    config = subscription.config
    until_ms = ctx.now_ms + config.lease_ms if config.kind == WEBHOOK else 0
    generation = subscription.generation + 1
    ctx.facts.append(WakeMade(subscription.number, generation, ctx.chance.token(), ctx.now_ms, until_ms, tails))
    if config.kind == PULL_WAKE:
        _announce(ctx, subscription, generation, path or tails[0][0])
    return generation


def _announce(ctx: DecisionContext, subscription: SubscriptionRecord, generation: int, path: str) -> None:
    """Append an event to the wake stream that the workers share, if it can take one."""
    stream = ctx.state.streams.by_path.get(subscription.config.wake_stream)
    if stream is None or stream.closed or stream.soft_deleted or stream.is_over(ctx.now_ms):
        return
    name = subscription.created.subscription
    space = Namespace(tenant_of(name))
    event = {
        "type": "wake",
        "subscription_id": space.own(name),
        "stream": space.own(path),
        "generation": generation,
        "ts": ctx.now_ms,
    }
    body = json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode()
    ctx.append(ctx.state.logs[stream.log_id], pack_one(body), 1, len(body))


def stream_end(ctx: DecisionContext, path: str) -> int:
    """Where a stream ends once this command's facts are applied; 0 if there is none."""
    if path in ctx.created_streams:
        return ctx.ends[ctx.created_streams[path]]
    stream = ctx.state.streams.by_path.get(path)
    if stream is None or stream.soft_deleted:
        return 0
    return ctx.ends.get(stream.log_id, ctx.state.logs[stream.log_id].end)
