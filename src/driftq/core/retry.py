"""When to try again, and when to stop: pure arithmetic. Chance is an argument."""

from __future__ import annotations

from driftq.wire.message import RetryPolicy

DELAY_MS_MAX = 1 << 40  # some thirty years


def delay_ms(policy: RetryPolicy, attempts: int, chance: float, floor_ms: int) -> int:
    """How long a message rests after its `attempts`-th delivery failed. `chance` is uniform in [0, 1).

    `full` spreads over the whole window, `equal` over its upper half, `decorrelated` over three times the previous
    window: each keeps retries of one cause from arriving together. `none` is what an envelope's policy asks for:
    exactly the window.
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
    """Policies come from envelopes that nobody may have checked: any number gives a time that can be written down."""
    window = max(0, policy.backoff_ms) << min(40, max(0, attempts - 1))
    return min(window, policy.max_backoff_ms if policy.max_backoff_ms > 0 else DELAY_MS_MAX, DELAY_MS_MAX)


def is_exhausted(policy: RetryPolicy, attempts: int) -> bool:
    """Whether the last allowed delivery has been made."""
    return 0 < policy.max_attempts <= attempts
