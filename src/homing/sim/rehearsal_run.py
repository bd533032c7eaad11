"""A rehearsal under way: the engine, rehearsed providers and traffic on virtual time."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from msgspec import Struct, field

from homing.core.breaker import Breaker, Phase
from homing.core.limits import RateLimit
from homing.core.model import (
    Channel,
    Content,
    Outcome,
    OutcomeKind,
    Recipient,
    Settlement,
    SettleResult,
    Status,
)
from homing.core.policy import PolicyPatch, RetryPolicy, Rule
from homing.core.ports import Clock, Delivery
from homing.core.presets import preset
from homing.core.request import SendRequest
from homing.core.states import FINAL
from homing.engine.homing import Engine, EngineSettings, Parts
from homing.engine.roster import Listed, Roster
from homing.engine.worker import WorkerSettings
from homing.sim.loop import START_MS, VirtualClock, VirtualLoop, run
from homing.sim.rehearsal import (
    BreakerChange,
    Bucket,
    Ending,
    Outage,
    OutageKind,
    Percentiles,
    RecoveryPeak,
    Rehearsal,
    RehearsalReport,
)
from homing.stores.memory import MemoryStore

_PATIENCE_MS = 30 * 24 * 3_600_000
"""A rehearsal whose last notification has not ended by then is broken off."""
_PEAK_MS = 10_000
_MOST_BUCKETS = 240
_BUCKETS_MS = tuple(
    seconds * 1000 for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600)
)
_POLL_MS = 60_000
"""The engine wakes by itself whenever something is due; looking more often would only cost time."""


class Diary(Struct):
    """What was seen, in milliseconds from the beginning."""

    accepted: list[int] = field(default_factory=list)
    sends: dict[str, list[int]] = field(default_factory=dict)
    ended: dict[str, tuple[int, int, Status, str | None]] = field(default_factory=dict)
    """Notification → (accepted at, ended at, status, reason)."""
    breakers: list[BreakerChange] = field(default_factory=list)


class _Store(MemoryStore):
    """The memory store, with its endings and breakers written down."""

    def __init__(self, clock: Clock, diary: Diary) -> None:
        super().__init__(clock)
        self._diary = diary

    async def settle(self, batch: Sequence[Settlement]) -> SettleResult:
        result = await super().settle(batch)
        for id in result.applied:
            row = self._kept[id].row
            if row.status in FINAL or row.status is Status.IN_DOUBT:
                reason = row.reason.value if row.reason else None
                at = row.updated_at - START_MS
                self._diary.ended[id] = (row.created_at - START_MS, at, row.status, reason)
        return result

    async def put_breaker(self, provider: str, breaker: Breaker) -> bool:
        before = self._breakers.get(provider)
        put = await super().put_breaker(provider, breaker)
        phase = before.phase if before else Phase.CLOSED
        if put and phase is not breaker.phase:
            at = self._clock.now_ms() - START_MS
            change = BreakerChange(at_ms=at, provider=provider, before=phase.value, after=breaker.phase.value)
            self._diary.breakers.append(change)
        return put


class _Provider:
    """Works, except during its outages."""

    def __init__(
        self, name: str, rehearsal: Rehearsal, chance: Random, now_ms: Callable[[], int], sends: list[int]
    ) -> None:
        self._name = name
        self._latency_ms = rehearsal.latency_ms
        self._outages = [outage for outage in rehearsal.outages if name in outage.providers]
        self._chance = chance
        self._now_ms = now_ms
        self._sends = sends

    async def send(self, delivery: Delivery) -> Outcome:
        self._sends.append(self._now_ms())
        outage = self._outage()
        if outage is not None and self._chance.random() < outage.share:
            return await self._fail(outage)
        await self._take_ms(self._latency_ms * (0.5 + self._chance.random()))
        return Outcome(OutcomeKind.ACCEPTED, provider_message_id=f"{self._name}-{delivery.notification_id}")

    async def check(self) -> bool:
        outage = self._outage()
        ill = outage is not None and outage.kind is not OutageKind.THROTTLE
        return not (ill and outage is not None and self._chance.random() < outage.share)

    async def close(self) -> None:
        """Nothing to close."""

    async def _fail(self, outage: Outage) -> Outcome:
        match outage.kind:
            case OutageKind.DOWN:
                await self._take_ms(self._latency_ms / 4)
                return Outcome(OutcomeKind.TRANSIENT, error_code="503", error=f"{self._name} is down")
            case OutageKind.THROTTLE:
                await self._take_ms(self._latency_ms / 4)
                return Outcome(
                    OutcomeKind.THROTTLED,
                    error_code="429",
                    error=f"{self._name} asks to slow down",
                    retry_after_ms=outage.retry_after_ms,
                )
            case OutageKind.SLOW:
                await self._take_ms(outage.latency_ms)
                return Outcome(OutcomeKind.ACCEPTED, provider_message_id=f"{self._name}-late")

    async def _take_ms(self, duration_ms: float) -> None:
        await asyncio.sleep(round(duration_ms) / 1000)

    def _outage(self) -> Outage | None:
        now = self._now_ms()
        return next((o for o in self._outages if o.start_ms <= now < o.end_ms), None)


def run_rehearsal(rehearsal: Rehearsal) -> Diary:
    """Everything from the first request until the last notification has ended."""
    diary = Diary(sends={name: [] for name in rehearsal.provider_names})

    async def main(loop: VirtualLoop) -> None:
        clock = VirtualClock(loop)
        engine = _engine(rehearsal, diary, clock)
        async with engine:
            engine.start_worker()
            await _feed(engine, rehearsal, diary, clock)
            while len(diary.ended) < len(diary.accepted) and clock.monotonic_ms() < _PATIENCE_MS:
                await clock.sleep_ms(1_000)

    run(main)
    return diary


def _engine(rehearsal: Rehearsal, diary: Diary, clock: VirtualClock) -> Engine:
    limit = rehearsal.rate_per_second
    listed = [
        Listed(
            id=name,
            provider=_Provider(
                name,
                rehearsal,
                Random(f"{rehearsal.seed}/{name}"),
                clock.monotonic_ms,
                diary.sends[name],
            ),
            channels=(rehearsal.traffic.channel,),
            max_in_flight=rehearsal.max_in_flight,
            rate=RateLimit(limit, max(1, int(limit))) if limit is not None else None,
            breaker=rehearsal.breaker,
        )
        for name in rehearsal.provider_names
    ]
    parts = Parts(
        backend=_Store(clock, diary),
        roster=Roster(listed),
        clock=clock,
        chance=Random(f"{rehearsal.seed}/engine"),
    )
    rules = rehearsal.rules if rehearsal.policy is None else (_for_everything(rehearsal.policy),)
    settings = EngineSettings(
        name="rehearsal",
        tenant=rehearsal.traffic.tenant,
        preset=preset(rehearsal.preset),
        rules=rules,
        worker=WorkerSettings(poll_ms=_POLL_MS),
    )
    return Engine(parts, settings)


async def _feed(engine: Engine, rehearsal: Rehearsal, diary: Diary, clock: VirtualClock) -> None:
    traffic, chance = rehearsal.traffic, Random(f"{rehearsal.seed}/traffic")
    number = min(rehearsal.notifications, round(traffic.per_second * traffic.duration_ms / 1000)) or 1
    span_ms = min(traffic.duration_ms, round(number / traffic.per_second * 1000))
    moments = sorted(chance.randrange(max(1, span_ms)) for _ in range(number))
    names, shares = list(traffic.priorities), list(traffic.priorities.values())
    for index, at in enumerate(moments):
        if at > clock.monotonic_ms():
            await clock.sleep_ms(at - clock.monotonic_ms())
        request = SendRequest(
            recipient=_recipient(traffic.channel, index),
            channel=traffic.channel.value,
            type=traffic.type,
            origin=traffic.origin,
            priority=chance.choices(names, shares)[0].value,
            synchronous=False,
            content=Content(title="Rehearsal", body="Is anybody there?", data={"number": index}),
        )
        await engine.submit(request)
        diary.accepted.append(clock.monotonic_ms())


def _recipient(channel: Channel, index: int) -> Recipient:
    match channel:
        case Channel.EMAIL:
            return Recipient(email=f"somebody-{index}@example.org")
        case Channel.SMS:
            return Recipient(phone=f"+1555{index:07d}")
        case Channel.PUSH:
            return Recipient(device_token=f"token-{index}")
        case _:
            return Recipient(url=f"https://example.org/{index}")


def _for_everything(policy: RetryPolicy) -> Rule:
    fields = {name: getattr(policy, name) for name in RetryPolicy.__struct_fields__}
    if fields["call"] is None:
        del fields["call"]
    return Rule(name="rehearsed", policy=PolicyPatch(**fields))


# What was seen, as a report ------------------------------------------------------------------------


def report_of(rehearsal: Rehearsal, diary: Diary) -> RehearsalReport:
    """The diary, counted and sorted."""
    endings = Counter((status.value, reason) for _, _, status, reason in diary.ended.values())
    took = sorted(
        ended_at - accepted_at
        for accepted_at, ended_at, status, _ in diary.ended.values()
        if status in (Status.SENT, Status.DELIVERED)
    )
    ended = sorted(ended_at for _, ended_at, _, _ in diary.ended.values())
    attempts = sum(len(sends) for sends in diary.sends.values())
    last_ms = _busy_until(rehearsal, diary)
    bucket_ms = next((b for b in _BUCKETS_MS if last_ms / b <= _MOST_BUCKETS), _BUCKETS_MS[-1])
    buckets = _buckets(diary, ended, bucket_ms, last_ms)
    unfinished = len(diary.accepted) - sum(
        count for (status, _), count in endings.items() if status != Status.IN_DOUBT.value
    )
    return RehearsalReport(
        policy=_in_words(rehearsal),
        traffic=rehearsal.traffic,
        outages=rehearsal.outages,
        providers=rehearsal.provider_names,
        seed=rehearsal.seed,
        notifications=len(diary.accepted),
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
            len(sends) - bisect_left(sends, len(buckets) * bucket_ms) for sends in diary.sends.values()
        ),
        largest_backlog=max((bucket.backlog for bucket in buckets), default=0),
        recovery_peaks=tuple(_peaks(rehearsal, diary)),
        breaker_changes=tuple(diary.breakers),
        ended_ms=ended[-1] if ended else 0,
    )


def _busy_until(rehearsal: Rehearsal, diary: Diary) -> int:
    """Until the traffic, the outages and all but one in a hundred sends are over."""
    sends = sorted(at for sends in diary.sends.values() for at in sends)
    nearly_all = sends[(len(sends) * 99 - 1) // 100] if sends else 0
    ends = [outage.end_ms for outage in rehearsal.outages]
    return max(nearly_all, diary.accepted[-1] if diary.accepted else 0, *ends, 1)


def _percentiles(took: Sequence[int]) -> Percentiles:
    def at(share: float) -> int:
        return took[min(len(took) - 1, max(0, -int(-len(took) * share // 1) - 1))]

    return Percentiles(p50=at(0.5), p90=at(0.9), p95=at(0.95), p99=at(0.99), max=took[-1])


def _buckets(diary: Diary, ended: Sequence[int], bucket_ms: int, last_ms: int) -> tuple[Bucket, ...]:
    counts = {name: Counter(at // bucket_ms for at in sends) for name, sends in diary.sends.items()}
    made: list[Bucket] = []
    for index in range(last_ms // bucket_ms + 1):
        end = (index + 1) * bucket_ms
        made.append(
            Bucket(
                start_ms=index * bucket_ms,
                sends_per_second={
                    name: round(counted[index] * 1000 / bucket_ms, 3) for name, counted in counts.items()
                },
                backlog=bisect_left(diary.accepted, end) - bisect_left(ended, end),
            )
        )
    return tuple(made)


def _peaks(rehearsal: Rehearsal, diary: Diary) -> list[RecoveryPeak]:
    peaks: list[RecoveryPeak] = []
    for outage in rehearsal.outages:
        for name in outage.providers:
            sends = diary.sends[name]
            most, at = 0, outage.end_ms
            for index in range(bisect_left(sends, outage.end_ms), len(sends)):
                inside = bisect_right(sends, sends[index] + _PEAK_MS - 1) - index
                if inside > most:
                    most, at = inside, sends[index]
            before = bisect_left(sends, outage.start_ms) * 1000 / max(1, outage.start_ms)
            normal = before or rehearsal.traffic.per_second
            peak = most * 1000 / _PEAK_MS
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


def _in_words(rehearsal: Rehearsal) -> str:
    if rehearsal.policy is not None:
        return f"own policy, {rehearsal.policy.max_attempts} attempts, {rehearsal.policy.backoff.value}"
    extra = len(rehearsal.rules)
    return f"preset {rehearsal.preset}" + (f" and {extra} rule{'s' if extra > 1 else ''}" if extra else "")
