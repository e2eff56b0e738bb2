"""What happens to a message whose attempt failed: it waits in backoff, or becomes a dead letter.

Nacks, lost leases and execution timeouts all end here, so there is one retry decision:

1. The policy is the envelope's, else the topic's, else the server's.
2. If the policy has no attempts left, the message becomes a dead letter (`core.transitions.dead_letter`).
3. Otherwise it waits for the delay of the caller, or for the backoff with jitter (`delay_ms`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from driftq.core.context import DecisionContext, Unreadable
from driftq.core.model import facts as f
from driftq.core.transitions.dead_letter import dead_letter
from driftq.wire.message import Head, RetryPolicy, read_head

if TYPE_CHECKING:
    from driftq.core.state.groups import Group, Topic
    from driftq.core.state.progress import Progress


def fail(
    ctx: DecisionContext,
    group: Group,
    progress: Progress,
    offset: int,
    error: str,
    *,
    lost: bool,
    delay: int | None = None,
    traceback: str = "",
) -> None:
    """End an attempt as failed; `lost` if its lease ran out."""
    log = ctx.state.logs[progress.log_id]
    topic = ctx.state.topics[group.topic]
    entry = progress.entries.get(offset)
    attempts = entry.attempts if entry is not None else 1
    error = bounded(error, ctx.limits.error_bytes)
    try:
        policy = _policy(ctx, topic, read_head(ctx.reader.head(log.log_id, offset)))
    except Unreadable:
        policy = ctx.limits.retry  # it cannot be copied to the dead letters: it is retried until it can be read
    exhausted = is_exhausted(policy, attempts) and not topic.dead_of
    if exhausted and dead_letter(ctx, group, progress, offset, "max_attempts", error, lost=lost, traceback=traceback):
        return
    if delay is None:
        delay = delay_ms(policy, attempts, ctx.chance.uniform(), ctx.limits.retry_floor_ms)
    retry_at_ms = ctx.now_ms + delay
    ctx.expect_event(log, error)
    ctx.facts.append(f.Failed(group.group_id, log.log_id, offset, ctx.now_ms, retry_at_ms, error, lost))


def _policy(ctx: DecisionContext, topic: Topic, head: Head) -> RetryPolicy:
    """The policy of the envelope, else of the topic, else of the server. One without a backoff uses the server's."""
    server = ctx.limits.retry
    policy = head.envelope.retry_policy if head.envelope is not None else None
    policy = policy or topic.config.retry
    if policy is None:
        is_job = head.job is not None
        return msgspec.structs.replace(server, max_attempts=ctx.limits.job_attempts_max) if is_job else server
    if policy.backoff_ms == 0:
        return msgspec.structs.replace(server, max_attempts=policy.max_attempts)
    return policy


def bounded(text: str, bytes_max: int) -> str:
    """Cut a text to a number of UTF-8 bytes, between characters."""
    raw = text.encode("utf-8", "replace")
    return text if len(raw) <= bytes_max else raw[:bytes_max].decode("utf-8", "ignore")


def bounded_end(text: str, bytes_max: int) -> str:
    """The end of a text: the last lines of a traceback say what happened."""
    raw = text.encode("utf-8", "replace")
    return text if len(raw) <= bytes_max else raw[-bytes_max:].decode("utf-8", "ignore")


# --- backoff: pure arithmetic, chance is an argument ---


DELAY_MS_MAX = 1 << 40  # about thirty years


def delay_ms(policy: RetryPolicy, attempts: int, chance: float, floor_ms: int) -> int:
    """How long a message waits after its `attempts`-th delivery failed. `chance` is uniform in [0, 1).

    `full` spreads over the whole window, `equal` over its upper half, `decorrelated` over three times the previous
    window: so retries with one cause do not arrive together. `none` is exactly the window.
    """
    window = _window_ms(policy, attempts)
    match policy.jitter:
        case "none":
            return window
        case "full":
            return max(floor_ms, int(window * chance))
        case "equal":
            return max(floor_ms, window // 2 + int(window / 2 * chance))
        case "decorrelated":
            low = _window_ms(policy, 1)
            high = max(low, 3 * _window_ms(policy, attempts - 1))
            return max(floor_ms, min(policy.max_backoff_ms or DELAY_MS_MAX, low + int((high - low) * chance)))


def _window_ms(policy: RetryPolicy, attempts: int) -> int:
    """Envelopes are not validated, so any number must give a valid time."""
    window = max(0, policy.backoff_ms) << min(40, max(0, attempts - 1))
    return min(window, policy.max_backoff_ms if policy.max_backoff_ms > 0 else DELAY_MS_MAX, DELAY_MS_MAX)


def is_exhausted(policy: RetryPolicy, attempts: int) -> bool:
    """Whether the last allowed delivery was made."""
    return 0 < policy.max_attempts <= attempts
