"""How long to wait after the n-th attempt failed. Pure arithmetic: chance comes in as `u` in [0, 1)."""

from __future__ import annotations

from math import isfinite

from homing.core.policy import Backoff, Jitter, RetryPolicy

LONGEST_DELAY_MS = 7 * 24 * 3_600_000
"""No delay is longer, whatever base, factor and attempt number say."""

_FIBONACCI = (1, 2, 3, 5, 8, 13)


def base_delay_ms(policy: RetryPolicy, attempt: int) -> int:
    """The delay after attempt `attempt` (1 is the first) before jitter, capped."""
    if attempt < 1:
        return 0
    cap = min(policy.cap_ms or LONGEST_DELAY_MS, LONGEST_DELAY_MS)
    return max(0, min(_grow(policy, attempt, cap), cap))


def bounds_ms(policy: RetryPolicy, attempt: int, last_delay_ms: int = 0) -> tuple[int, int]:
    """The closed interval that `delay_ms` falls into. Its lower end is the backoff floor."""
    if attempt < 1:
        return 0, 0
    delay = base_delay_ms(policy, attempt)
    match policy.jitter:
        case Jitter.NONE:
            return delay, delay
        case Jitter.PROPORTIONAL:
            return delay, delay + int(delay * policy.jitter_ratio)
        case Jitter.ADDITIVE:
            return delay, delay + policy.jitter_ms
        case Jitter.FULL:
            return 0, delay
        case Jitter.EQUAL:
            return delay // 2, delay
        case Jitter.DECORRELATED:
            low = base_delay_ms(policy, 1)
            cap = min(policy.cap_ms or LONGEST_DELAY_MS, LONGEST_DELAY_MS)
            return low, max(low, min(cap, 3 * max(last_delay_ms, low)))


def delay_ms(policy: RetryPolicy, attempt: int, u: float, last_delay_ms: int = 0) -> int:
    """The delay with its jitter. The cap applies before jitter, so the sum may pass the cap."""
    low, high = bounds_ms(policy, attempt, last_delay_ms)
    return low + int(u * (high - low))


def _asked(policy: RetryPolicy, attempt: int, cap: int) -> int:
    """What a user's function says. One that fails must not stop the delivery: then the base it is."""
    assert policy.call is not None, "a callable backoff has its callable (checked on construction)"
    try:
        asked = float(policy.call(attempt))
    except Exception:
        return policy.base_ms
    return int(asked) if isfinite(asked) else cap


def _grow(policy: RetryPolicy, attempt: int, cap: int) -> int:
    base = policy.base_ms
    match policy.backoff:
        case Backoff.EXPONENTIAL:
            if not base:
                return 0
            try:
                grown = base * policy.factor ** (attempt - 1)
            except OverflowError:
                return cap
            return cap if grown >= cap else int(grown)
        case Backoff.LINEAR:
            return base * attempt
        case Backoff.FIBONACCI:
            return base * _FIBONACCI[min(attempt, len(_FIBONACCI)) - 1]
        case Backoff.FIXED:
            return policy.steps_ms[min(attempt, len(policy.steps_ms)) - 1]
        case Backoff.CALLABLE:
            return _asked(policy, attempt, cap)
