"""Effects that happen once: begin under a fence, commit with a result, or fail so that another worker can try.

    (none) --begin--> PENDING(fence n) --commit--> COMMITTED: the result is returned to every later begin
                        |    ^
                   fail |    | begin, fence n+1: after a failure, after the lease ran out, or by the same caller
                        v    |
                      FAILED-+

Only the newest fence may commit or fail. Fences rise over all keys together and are never reused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from driftq.core.model.effect_facts import KeyBegun, KeyCommitted, KeyFailed
from driftq.core.model.replies import AlreadyDone, Done, EffectBegun, Rejected, Reply
from driftq.core.state.effects import EffectRecord, EffectStatus, effect_scope
from driftq.core.transitions.lookups import bad_partition, find_group
from driftq.core.transitions.retry import bounded
from driftq.wire.errors import Code

if TYPE_CHECKING:
    from driftq.core.context import DecisionContext
    from driftq.core.model import commands as c


def begin(ctx: DecisionContext, command: c.BeginEffect) -> Reply:
    message = _message(ctx, command)
    if isinstance(message, Rejected):
        return message
    scope = effect_scope(command.key)
    effect = ctx.state.effects.find(scope)
    token = command.token
    if effect is not None and effect.status is EffectStatus.COMMITTED:
        if not ctx.state.is_forgettable_at(effect, ctx.now_ms):
            return AlreadyDone(effect.result, effect.at_ms)
    if _has_lost_lease(ctx, command, message):
        return Rejected(Code.NOT_OWNER, "not owner: the message is leased to another worker or settled; claim again")
    if effect is not None:
        if effect.status is EffectStatus.PENDING and effect.until_ms > ctx.now_ms:
            if not _is_same_caller(effect, command, message):
                wait_ms = effect.until_ms - ctx.now_ms
                return Rejected(
                    Code.BUSY, f"{effect.owner} works on it for up to {wait_ms} ms more", {"retry_after_ms": wait_ms}
                )
            if command.fence is not None:  # the token and the message of the first begin still hold
                token = token or effect.token
                message = message if command.offset is not None else (effect.group_id, effect.log_id, effect.offset)
    lease_ms = command.lease_ms if command.lease_ms is not None else ctx.limits.effect_lease_ms
    until_ms = ctx.now_ms + lease_ms
    fence = ctx.state.next_fence
    ctx.facts.append(KeyBegun(scope, fence, command.owner, ctx.now_ms, until_ms, *message, token))
    return EffectBegun(fence, until_ms)


def _is_same_caller(effect: EffectRecord, command: c.BeginEffect, message: tuple[int, int, int]) -> bool:
    """Whether the caller began this effect before and lost the reply. A name is no proof, because two processes may
    share it. The fence is one, and so is the lease token together with the message: all messages of a claim have the
    same token."""
    if command.fence is not None:
        return command.fence == effect.fence
    return bool(command.token) and (command.token, message) == (
        effect.token, (effect.group_id, effect.log_id, effect.offset),
    )  # fmt: skip


def _has_lost_lease(ctx: DecisionContext, command: c.BeginEffect, message: tuple[int, int, int]) -> bool:
    """Whether the caller's token no longer holds its message: its work could not be acked. A lease that ran out counts
    until the next delivery, as for an ack."""
    group_id, log_id, offset = message
    if not command.token or offset < 0:
        return False
    _, lease, _ = ctx.state.progress_of(group_id, log_id).state_of(offset)
    return lease is None or lease.token != command.token


def _message(ctx: DecisionContext, command: c.BeginEffect) -> tuple[int, int, int] | Rejected:
    """(group, log, offset) of the effect's message; (0, 0, -1) if it names none."""
    if command.offset is None or command.partition is None:
        return 0, 0, -1
    group = find_group(ctx, command.key.topic, command.key.group)
    if isinstance(group, Rejected):
        return group
    topic = ctx.state.topics[command.key.topic]
    if not 0 <= command.partition < len(topic.log_ids):
        return bad_partition(command.partition, topic)
    return group.group_id, topic.log_ids[command.partition], command.offset


def commit(ctx: DecisionContext, command: c.CommitEffect) -> Reply:
    if len(command.result) > ctx.limits.result_bytes:
        message = f"a result has at most {ctx.limits.result_bytes} bytes; store it elsewhere and keep its address"
        return Rejected(Code.TOO_LARGE, message, {"limit_bytes": ctx.limits.result_bytes})
    effect = _held(ctx, command.key, command.fence)
    if isinstance(effect, Rejected):
        return effect
    if effect.status is EffectStatus.COMMITTED:
        return Done(changed=False)
    expires_ms = ctx.now_ms + (command.ttl_ms or ctx.limits.effect_ttl_ms)
    scope = effect_scope(command.key)
    ctx.facts.append(KeyCommitted(scope, command.fence, ctx.now_ms, expires_ms, command.result))
    return Done()


def fail(ctx: DecisionContext, command: c.FailEffect) -> Reply:
    effect = _held(ctx, command.key, command.fence)
    if isinstance(effect, Rejected):
        return effect
    if effect.status is EffectStatus.COMMITTED:
        return Rejected(Code.CONFLICT, "the effect was committed; it cannot fail any more")
    if effect.status is EffectStatus.FAILED:
        return Done(changed=False)
    expires_ms = ctx.now_ms + ctx.limits.effect_ttl_ms
    error = bounded(command.error, ctx.limits.error_bytes)
    ctx.facts.append(KeyFailed(effect_scope(command.key), command.fence, ctx.now_ms, expires_ms, error))
    return Done()


def _held(ctx: DecisionContext, key: c.EffectKey, fence: int) -> EffectRecord | Rejected:
    """The effect, if the caller's fence is the newest. A lease that ran out counts until another caller begins."""
    effect = ctx.state.effects.find(effect_scope(key))
    if effect is None:
        return Rejected(Code.NOT_FOUND, f"no effect was begun under {key.key!r}")
    if effect.fence != fence:
        return Rejected(
            Code.NOT_OWNER, f"fence {fence} is stale: {effect.fence} is the newest", {"fence": effect.fence}
        )
    return effect
