"""Provider operations for operators: list, health check, test message and breaker control."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta

from msgspec import structs

from homing.core.errors import InvalidRequest
from homing.core.ids import uuid7
from homing.core.notifications import Channel, Content, Priority, Recipient
from homing.core.plain_values import enum_member, plain_text
from homing.core.ports.providers import Delivery
from homing.core.ports.runtime import Clock, RandomSource
from homing.core.routing.breaker import (
    Breaker,
    BreakerGate,
    BreakerPolicy,
    Phase,
    check_gate,
    phase_now,
    reopens_at,
)
from homing.core.routing.provider_views import BreakerPolicyView, BreakerView, Health, ProviderView, Tried
from homing.core.routing.splits import SplitOverrideView
from homing.core.send_request import ADDRESS_FIELD, address_of
from homing.core.times import moment, span_ms
from homing.engine.delivery.attempts import send_with_deadline
from homing.engine.delivery.breakers import Breakers
from homing.engine.health_checks import find_problem
from homing.engine.operations.split_overrides import SplitOverrides
from homing.engine.provider_roster import Listed, ProviderRoster

_TEST_TIMEOUT_MS = 30_000

_LONGEST_FORCE_MS = 30 * 24 * 3_600_000

TEST_CONTENT = Content(
    subject="Test message",
    title="Test message",
    body="This is a test message from Homing.",
    text="This is a test message from Homing.",
)


class ProviderOperations:
    """Provider operations of the engine."""

    def __init__(
        self,
        tenant: str,
        *,
        roster: ProviderRoster,
        breakers: Breakers,
        splits: SplitOverrides,
        clock: Clock,
        random_source: RandomSource,
    ) -> None:
        self.tenant = tenant
        self._roster = roster
        self._breakers = breakers
        self._splits = splits
        self._clock = clock
        self._random_source = random_source

    async def providers(self) -> tuple[ProviderView, ...]:
        """Returns all providers in their configured order, with their breakers and overrides of the split."""
        await self._breakers.refresh(at_once=True)
        overrides = await self._splits.in_force()
        return tuple(self._view(listed, overrides) for listed in self._roster)

    async def check_providers(self, provider: str | None = None) -> tuple[Health, ...]:
        """Runs the health check of one provider, or of all providers if None is given. Changes nothing."""
        chosen = list(self._roster) if provider is None else [self._listed(provider)]
        problems = await asyncio.gather(*(find_problem(listed.check, listed.provider) for listed in chosen))
        return tuple(
            Health(provider=listed.id, usable=not problem, problem=problem)
            for listed, problem in zip(chosen, problems, strict=True)
        )

    async def try_provider(self, provider: str, address: str, channel: Channel | str | None = None) -> Tried:
        """Sends a real test message through this provider and returns the result.

        Stores and retries nothing. Ignores the breaker, rate limits and preferences.
        """
        listed = self._listed(provider)
        over = self._channel(listed, None if channel is None else enum_member(Channel, channel, "channel"))
        recipient = Recipient(**{ADDRESS_FIELD[over]: address})
        id = uuid7(self._clock.now_ms(), self._random_source.getrandbits(74))
        began_ms = self._clock.monotonic_ms()
        outcome = await send_with_deadline(
            listed,
            Delivery(
                notification_id=id,
                tenant=self.tenant,
                channel=over,
                type="homing_test",
                priority=Priority.MEDIUM,
                recipient=recipient,
                address=address_of(recipient, over),
                content=TEST_CONTENT,
                idempotency_key=id,
                attempt=1,
                timeout_ms=_TEST_TIMEOUT_MS,
            ),
        )
        latency_ms = self._clock.monotonic_ms() - began_ms
        return Tried(
            provider=listed.id,
            channel=over,
            recipient=recipient,
            outcome=outcome.kind,
            latency_ms=latency_ms,
            provider_message_id=outcome.provider_message_id,
            error_code=outcome.error_code,
            error=outcome.error,
        )

    async def force_breaker(
        self,
        provider: str,
        phase: Phase | str | None,
        *,
        who: str,
        why: str = "",
        lasting: timedelta | None = None,
    ) -> None:
        """Forces a provider's breaker open or closed, for a time, or until it is released if that is None.

        A phase of None returns it to automatic control.
        """
        chosen = None if phase is None else enum_member(Phase, phase, "phase")
        plain_text(who, "who")
        plain_text(why, "why")
        for_ms = None if lasting is None else span_ms(lasting, "lasting")
        if for_ms is not None and not 0 < for_ms <= _LONGEST_FORCE_MS:
            raise InvalidRequest("lasting", "must be longer than 0 and at most 30 days")
        await self._breakers.force(self._listed(provider).id, chosen, who, why, for_ms)

    def _listed(self, provider: str) -> Listed:
        listed = self._roster.find(provider)
        if listed is None:
            known = ", ".join(one.id for one in self._roster)
            raise InvalidRequest("provider", f"{provider!r} is not configured; configured providers: {known}")
        return listed

    def _channel(self, listed: Listed, asked: Channel | None) -> Channel:
        serves = ", ".join(channel.value for channel in listed.channels)
        if asked is None and len(listed.channels) > 1:
            raise InvalidRequest("channel", f"is missing; {listed.id} serves {serves}, so choose one")
        if asked is not None and asked not in listed.channels:
            raise InvalidRequest("channel", f"{asked} is not served by {listed.id}; it serves {serves}")
        return asked or listed.channels[0]

    def _view(self, listed: Listed, overrides: Mapping[Channel, SplitOverrideView]) -> ProviderView:
        places = {
            channel: place
            for channel in listed.channels
            for place, step in enumerate(self._roster.route(channel), 1)
            if step.provider == listed.id
        }
        return ProviderView(
            id=listed.id,
            kind=listed.kind or type(listed.provider).__name__,
            channels=listed.channels,
            routes=places,
            weight=listed.weight,
            splits={channel: override for channel, override in overrides.items() if channel in places},
            breaker=breaker_view(self._breakers.state(listed.id), self._breakers.now()),
            breaker_policy=breaker_policy_view(listed.breaker_policy),
            max_in_flight=listed.max_in_flight,
            host_slots=listed.host_slots,
            rate_per_second=None if listed.rate is None else listed.rate.per_second,
            rate_burst=None if listed.rate is None else listed.rate.burst,
        )


def breaker_policy_view(policy: BreakerPolicy) -> BreakerPolicyView:
    """Returns the public view of a breaker's settings."""
    return BreakerPolicyView(**structs.asdict(policy))


def breaker_view(breaker: Breaker, now: int) -> BreakerView:
    """Returns the public view of a breaker at the time `now`."""
    began = breaker.changed_at if breaker.forced is not None else breaker.failing_from or breaker.changed_at
    since = moment(began) if began else None
    if breaker.forced is not None:
        return BreakerView(
            phase=breaker.forced,
            forced=True,
            by=breaker.forced_by,
            why=breaker.forced_why,
            since=since,
            until=moment(breaker.forced_until) if breaker.forced_until else None,
        )
    at = reopens_at(breaker) if check_gate(breaker, now) is BreakerGate.STOP else None
    return BreakerView(
        phase=phase_now(breaker, now),
        why=breaker.why,
        since=since,
        until=None if at is None else moment(at),
    )
