"""Builds the report of a rehearsal from the log of its events."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence

from homing.core.lifecycle.states import SUCCESSFUL
from homing.core.notifications import Status
from homing.core.rehearsal import Ending, Percentiles, RecoveryPeak, Rehearsal, RehearsalReport, TimeBucket
from homing.rehearsal.run import RehearsalLog

_PEAK_WINDOW_MS = 10_000
"""Length of the window in which the highest send rate after an outage is measured."""

_MAX_BUCKETS = 240

_BUCKET_SIZES_MS = tuple(
    seconds * 1000 for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600)
)


def build_report(rehearsal: Rehearsal, log: RehearsalLog) -> RehearsalReport:
    """Returns the report of a rehearsal that has ended."""
    endings = Counter((status.value, reason) for _, _, status, reason in log.ended.values())
    took = sorted(
        ended_at - accepted_at
        for accepted_at, ended_at, status, _ in log.ended.values()
        if status in SUCCESSFUL
    )
    ended = sorted(ended_at for _, ended_at, _, _ in log.ended.values())
    attempts = sum(len(sends) for sends in log.sends.values())
    last_ms = _busy_until(rehearsal, log)
    bucket_ms = next((b for b in _BUCKET_SIZES_MS if last_ms / b <= _MAX_BUCKETS), _BUCKET_SIZES_MS[-1])
    buckets = _buckets(log, ended, bucket_ms, last_ms)
    unfinished = len(log.accepted) - sum(
        count for (status, _), count in endings.items() if status != Status.IN_DOUBT.value
    )
    return RehearsalReport(
        policy=_describe_policy(rehearsal),
        traffic=rehearsal.traffic,
        outages=rehearsal.outages,
        providers=rehearsal.provider_names,
        seed=rehearsal.seed,
        notifications=len(log.accepted),
        delivered=len(took),
        dead_letters=sum(n for (status, _), n in endings.items() if status == Status.FAILED.value),
        unfinished=unfinished,
        attempts=attempts,
        attempts_per_delivered=round(attempts / len(took), 3) if took else 0.0,
        delivery=_percentiles(took) if took else None,
        endings=tuple(
            Ending(status=status, reason=reason, count=count)
            for (status, reason), count in sorted(
                endings.items(), key=lambda e: (-e[1], e[0][0], e[0][1] or "")
            )
        ),
        bucket_ms=bucket_ms,
        buckets=buckets,
        sends_after=sum(
            len(sends) - bisect_left(sends, len(buckets) * bucket_ms) for sends in log.sends.values()
        ),
        largest_backlog=max((bucket.backlog for bucket in buckets), default=0),
        recovery_peaks=tuple(_peaks(rehearsal, log)),
        breaker_changes=tuple(log.breakers),
        ended_ms=ended[-1] if ended else 0,
    )


def _busy_until(rehearsal: Rehearsal, log: RehearsalLog) -> int:
    """Returns the time, in milliseconds, at which the traffic, the outages and 99 of 100 sends are over."""
    sends = sorted(at for sends in log.sends.values() for at in sends)
    nearly_all = sends[(len(sends) * 99 - 1) // 100] if sends else 0
    ends = [outage.end_ms for outage in rehearsal.outages]
    return max(nearly_all, log.accepted[-1] if log.accepted else 0, *ends, 1)


def _percentiles(took: Sequence[int]) -> Percentiles:
    def at(share: float) -> int:
        return took[min(len(took) - 1, max(0, -int(-len(took) * share // 1) - 1))]

    return Percentiles(p50=at(0.5), p90=at(0.9), p95=at(0.95), p99=at(0.99), max=took[-1])


def _buckets(log: RehearsalLog, ended: Sequence[int], bucket_ms: int, last_ms: int) -> tuple[TimeBucket, ...]:
    counts = {name: Counter(at // bucket_ms for at in sends) for name, sends in log.sends.items()}
    made: list[TimeBucket] = []
    for index in range(last_ms // bucket_ms + 1):
        end = (index + 1) * bucket_ms
        made.append(
            TimeBucket(
                start_ms=index * bucket_ms,
                sends_per_second={
                    name: round(counted[index] * 1000 / bucket_ms, 3) for name, counted in counts.items()
                },
                backlog=bisect_left(log.accepted, end) - bisect_left(ended, end),
            )
        )
    return tuple(made)


def _peaks(rehearsal: Rehearsal, log: RehearsalLog) -> list[RecoveryPeak]:
    peaks: list[RecoveryPeak] = []
    for outage in rehearsal.outages:
        for name in outage.providers:
            sends = log.sends[name]
            most, at = 0, outage.end_ms
            for index in range(bisect_left(sends, outage.end_ms), len(sends)):
                inside = bisect_right(sends, sends[index] + _PEAK_WINDOW_MS - 1) - index
                if inside > most:
                    most, at = inside, sends[index]
            before = bisect_left(sends, outage.start_ms) * 1000 / max(1, outage.start_ms)
            normal = before or rehearsal.traffic.per_second
            peak = most * 1000 / _PEAK_WINDOW_MS
            peaks.append(
                RecoveryPeak(
                    provider=name,
                    outage_end_ms=outage.end_ms,
                    per_second=round(peak, 3),
                    at_ms=at,
                    times_normal=round(peak / normal, 3),
                )
            )
    return peaks


def _describe_policy(rehearsal: Rehearsal) -> str:
    if rehearsal.policy is not None:
        return f"own policy, {rehearsal.policy.max_attempts} attempts, {rehearsal.policy.backoff.value}"
    extra = len(rehearsal.rules)
    return f"preset {rehearsal.preset}" + (f" and {extra} rule{'s' if extra > 1 else ''}" if extra else "")
