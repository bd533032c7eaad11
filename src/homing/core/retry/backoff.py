"""Computes the delay after a failed attempt. Pure: the random number `u` in [0, 1) is passed in."""

from __future__ import annotations

from math import isfinite

from homing.core.retry.policy import Backoff, Jitter, RetryPolicy

LONGEST_DELAY_MS = 7 * 24 * 3_600_000
"""Maximum delay before jitter, whatever the policy and the attempt number: seven days."""


_FIBONACCI = (1, 2, 3, 5, 8, 13)


def base_delay_ms(policy: RetryPolicy, attempt: int) -> int:
    """Returns the capped delay after the attempt with this number, before jitter. The first attempt is 1."""
    if attempt < 1:
        return 0
    cap = _cap_ms(policy)
    return max(0, min(_grow(policy, attempt, cap), cap))


def base_delays_ms(policy: RetryPolicy, number: int) -> tuple[int, ...]:
    """Returns the results of `base_delay_ms` for the first `number` attempts.

    Does not compute a delay that is the same from some attempt on again and again.
    """
    cap, backoff = _cap_ms(policy), policy.backoff
    grows = backoff in (Backoff.EXPONENTIAL, Backoff.LINEAR)
    last = {Backoff.FIBONACCI: len(_FIBONACCI), Backoff.FIXED: len(policy.steps_ms)}.get(backoff)
    delays: list[int] = []
    for attempt in range(1, number + 1):
        delays.append(base_delay_ms(policy, attempt))
        if attempt == last or (grows and delays[-1] == cap):
            delays += delays[-1:] * (number - attempt)
            break
    return tuple(delays)


def bounds_ms(policy: RetryPolicy, attempt: int, last_delay_ms: int = 0) -> tuple[int, int]:
    """Returns the two bounds between which the result of `delay_ms` lies, the lower one first."""
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
            return low, max(low, min(_cap_ms(policy), 3 * max(last_delay_ms, low)))


def delay_ms(policy: RetryPolicy, attempt: int, u: float, last_delay_ms: int = 0) -> int:
    """Returns the delay with jitter. The cap applies before jitter, so the result may exceed the cap."""
    low, high = bounds_ms(policy, attempt, last_delay_ms)
    return low + int(u * (high - low))


def _cap_ms(policy: RetryPolicy) -> int:
    return min(policy.cap_ms or LONGEST_DELAY_MS, LONGEST_DELAY_MS)


def _call_policy(policy: RetryPolicy, attempt: int, cap: int) -> int:
    """Returns the delay from the user's function.

    If the function raises, this is the base delay; if its result is not finite, the cap.
    """
    assert policy.call is not None, "a callable backoff has its callable (checked on construction)"
    try:
        delay = float(policy.call(attempt))
    except BaseException:  # a user's function may raise anything, and must not end the worker
        return policy.base_ms
    return int(delay) if isfinite(delay) else cap


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
            return _call_policy(policy, attempt, cap)
