"""Runs a rehearsal: the engine with simulated providers and traffic, on virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from random import Random
from typing import Any

from msgspec import Struct, field

from homing.core.lifecycle.claims import Acceptance, Submission
from homing.core.lifecycle.outcomes import Outcome, Settlement, SettleResult
from homing.core.lifecycle.states import LIVE
from homing.core.notifications import Channel, Content, OutcomeKind, Recipient, Status
from homing.core.ports.providers import Delivery
from homing.core.ports.runtime import Clock
from homing.core.rehearsal import BreakerChange, Outage, OutageKind, Rehearsal
from homing.core.retry.policy import PolicyPatch, RetryPolicy, Rule
from homing.core.retry.presets import find_preset
from homing.core.routing.breaker import Breaker, Phase
from homing.core.routing.rate_limits import RateLimit
from homing.core.send_request import SendRequest
from homing.engine.engine import Engine, EngineParts, EngineSettings
from homing.engine.provider_roster import Listed, ProviderRoster
from homing.engine.settings import WorkerSettings
from homing.rehearsal.virtual_time import START_MS, VirtualClock, VirtualLoop, run_virtual
from homing.stores.sqlite import SqliteStore

_MAX_DURATION_MS = 30 * 24 * 3_600_000
"""Virtual time after which a rehearsal stops even if some notifications have not ended."""

_POLL_MS = 60_000
"""Poll interval of the worker. The worker wakes by itself when a row is due, so polling often is wasteful."""


_rehearsing: ContextVar[bool] = ContextVar("rehearsing", default=False)
"""True in code that runs inside a rehearsal."""


OnProgress = Callable[[int, int], None]
"""Function that is called often, with the number of notifications that have ended and the number of all."""


def no_progress(ended: int, total: int) -> None:
    """Does nothing."""


class RehearsalLog(Struct):
    """Events of a rehearsal. All times are in milliseconds since its start."""

    accepted: list[int] = field(default_factory=list)
    """Time of each acceptance."""
    sends: dict[str, list[int]] = field(default_factory=dict)
    """Provider → time of each send."""
    ended: dict[str, tuple[int, int, Status, str | None]] = field(default_factory=dict)
    """Notification id → (accepted at, ended at, status, reason)."""
    breakers: list[BreakerChange] = field(default_factory=list)


class _Store(SqliteStore):
    """The store in memory, which also logs when a notification ends and when a breaker changes.

    A rehearsal has no operator and no receipts, so a settlement alone decides how a notification ends.
    """

    def __init__(self, clock: Clock, log: RehearsalLog) -> None:
        super().__init__(":memory:", clock=clock.now_ms)
        self._now_ms = clock.now_ms
        self._log = log
        self._accepted_at: dict[str, int] = {}
        self._phases: dict[str, Phase] = {}

    async def accept(self, batch: Sequence[Submission], *, tx: Any = None) -> tuple[Acceptance, ...]:
        answers = await super().accept(batch, tx=tx)
        at = self._now_ms() - START_MS
        for answer in answers:
            self._accepted_at |= dict.fromkeys(answer.ids, at)
        return answers

    async def settle(self, batch: Sequence[Settlement]) -> SettleResult:
        result = await super().settle(batch)
        applied, at = frozenset(result.applied), self._now_ms() - START_MS
        for settlement in batch:
            status = settlement.status
            if settlement.id in applied and status not in LIVE:
                reason = settlement.reason.value if settlement.reason else None
                self._log.ended[settlement.id] = (self._accepted_at[settlement.id], at, status, reason)
        return result

    async def put_breaker(self, provider: str, breaker: Breaker) -> bool:
        put = await super().put_breaker(provider, breaker)
        before, after = self._phases.get(provider, Phase.CLOSED), breaker.phase
        if put and before is not after:
            self._phases[provider] = after
            at = self._now_ms() - START_MS
            change = BreakerChange(at_ms=at, provider=provider, before=before.value, after=after.value)
            self._log.breakers.append(change)
        return put


class _Provider:
    """A simulated provider that accepts every send, except those that an outage makes fail or slow."""

    def __init__(
        self, name: str, rehearsal: Rehearsal, rng: Random, now_ms: Callable[[], int], sends: list[int]
    ) -> None:
        self._name = name
        self._latency_ms = rehearsal.latency_ms
        self._outages = [outage for outage in rehearsal.outages if name in outage.providers]
        self._rng = rng
        self._now_ms = now_ms
        self._sends = sends

    async def send(self, delivery: Delivery) -> Outcome:
        self._sends.append(self._now_ms())
        outage = self._outage()
        if outage is not None and self._rng.random() < outage.share:
            return await self._fail(outage)
        await self._take_ms(self._latency_ms * (0.5 + self._rng.random()))
        return Outcome(OutcomeKind.ACCEPTED, provider_message_id=f"{self._name}-{delivery.notification_id}")

    async def check(self) -> bool:
        outage = self._outage()
        ill = outage is not None and outage.kind is not OutageKind.THROTTLE
        return not (ill and outage is not None and self._rng.random() < outage.share)

    async def close(self) -> None:
        """Does nothing: there are no connections."""

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
                    error=f"{self._name} is throttling",
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


def run_rehearsal(rehearsal: Rehearsal, on_progress: OnProgress = no_progress) -> RehearsalLog:
    """Runs a rehearsal until all notifications have ended or 30 virtual days have passed. Returns the log."""
    log = RehearsalLog(sends={name: [] for name in rehearsal.provider_names})

    async def main(loop: VirtualLoop) -> None:
        clock = VirtualClock(loop)
        engine = _engine(rehearsal, log, clock)
        async with engine:
            engine.start_worker()
            async for total in _send_traffic(engine, rehearsal, log, clock):
                on_progress(len(log.ended), total)
            while len(log.ended) < len(log.accepted) and clock.monotonic_ms() < _MAX_DURATION_MS:
                on_progress(len(log.ended), len(log.accepted))
                await clock.sleep_ms(1_000)

    with _without_logs():
        run_virtual(main)
    return log


@contextmanager
def _without_logs() -> Iterator[None]:
    """Suppresses log records of the rehearsal, which would look like real events in the program's log."""
    loggers = [
        logging.getLogger(name) for name in logging.root.manager.loggerDict if name.startswith("homing")
    ]
    for logger in loggers:
        logger.addFilter(_is_real)
    token = _rehearsing.set(True)
    try:
        yield
    finally:
        _rehearsing.reset(token)
        for logger in loggers:
            logger.removeFilter(_is_real)


def _is_real(record: logging.LogRecord) -> bool:
    return not _rehearsing.get()


def _engine(rehearsal: Rehearsal, log: RehearsalLog, clock: VirtualClock) -> Engine:
    limit = rehearsal.rate_per_second
    listed = [
        Listed(
            id=name,
            provider=_Provider(
                name,
                rehearsal,
                Random(f"{rehearsal.seed}/{name}"),
                clock.monotonic_ms,
                log.sends[name],
            ),
            channels=(rehearsal.traffic.channel,),
            max_in_flight=rehearsal.max_in_flight,
            rate=RateLimit(limit, max(1, int(limit))) if limit is not None else None,
            breaker=rehearsal.breaker,
        )
        for name in rehearsal.provider_names
    ]
    parts = EngineParts(
        backend=_Store(clock, log),
        roster=ProviderRoster(listed),
        clock=clock,
        random_source=Random(f"{rehearsal.seed}/engine"),
    )
    rules = rehearsal.rules if rehearsal.policy is None else (_rule_for_everything(rehearsal.policy),)
    settings = EngineSettings(
        name="rehearsal",
        tenant=rehearsal.traffic.tenant,
        preset=find_preset(rehearsal.preset),
        rules=rules,
        worker=WorkerSettings(poll_ms=_POLL_MS),
    )
    return Engine(parts, settings)


async def _send_traffic(
    engine: Engine, rehearsal: Rehearsal, log: RehearsalLog, clock: VirtualClock
) -> AsyncIterator[int]:
    """Sends all notifications. Yields their number after each."""
    traffic, rng = rehearsal.traffic, Random(f"{rehearsal.seed}/traffic")
    number = min(rehearsal.notifications, round(traffic.per_second * traffic.duration_ms / 1000)) or 1
    span_ms = min(traffic.duration_ms, round(number / traffic.per_second * 1000))
    moments = sorted(rng.randrange(max(1, span_ms)) for _ in range(number))
    names, shares = list(traffic.priorities), list(traffic.priorities.values())
    for index, at in enumerate(moments):
        if at > clock.monotonic_ms():
            await clock.sleep_ms(at - clock.monotonic_ms())
        request = SendRequest(
            recipient=_recipient(traffic.channel, index),
            channel=traffic.channel.value,
            type=traffic.type,
            origin=traffic.origin,
            priority=rng.choices(names, shares)[0].value,
            synchronous=False,
            content=Content(title="Rehearsal", body="Is anybody there?", data={"number": index}),
        )
        await engine.submit(request)
        log.accepted.append(clock.monotonic_ms())
        yield number


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


def _rule_for_everything(policy: RetryPolicy) -> Rule:
    fields = {name: getattr(policy, name) for name in RetryPolicy.__struct_fields__}
    if fields["call"] is None:
        del fields["call"]
    return Rule(name="rehearsed", policy=PolicyPatch(**fields))
