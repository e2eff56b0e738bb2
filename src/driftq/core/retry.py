"""When to try again, and when to stop: pure arithmetic. Chance is an argument."""

from __future__ import annotations

from driftq.wire.message import RetryPolicy


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
            low = policy.backoff_ms
            high = max(low, 3 * _window_ms(policy, attempts - 1))
            return max(floor_ms, min(policy.max_backoff_ms or high, low + int((high - low) * chance)))


def _window_ms(policy: RetryPolicy, attempts: int) -> int:
    # Past 2**40 milliseconds the shift only costs memory; the cap decides long before.
    window = policy.backoff_ms << min(40, max(0, attempts - 1))
    return min(window, policy.max_backoff_ms) if policy.max_backoff_ms else window


def is_exhausted(policy: RetryPolicy, attempts: int) -> bool:
    """Whether the last allowed delivery has been made."""
    return 0 < policy.max_attempts <= attempts
