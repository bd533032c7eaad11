"""Computes how many attempts a worker can start now, per lane, tenant and outlet.

A worker claims no more notifications than that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import TypeVar

from msgspec import Struct, field

from homing.core.lifecycle.claims import Claim, ClaimRequest, LaneCapacity
from homing.core.notifications import Mode, lane_of
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Backend
from homing.core.routing.breaker import BreakerGate
from homing.core.routing.failover import pinned_outlet, put_first
from homing.core.routing.rate_limits import provider_bucket
from homing.engine.delivery.breakers import Breakers
from homing.engine.provider_roster import Listed, ProviderRoster
from homing.engine.rate_tokens import TOKENS_VALID_MS, RateTokens
from homing.engine.settings import LaneSlots

QUEUED_MODES = (Mode.PRIORITY, Mode.STANDARD, Mode.BULK)

_RAMP_CHECK_MS = 100
"""Time after which a recovering provider may allow more attempts."""

_SHARED_CHECK_MS = 50
"""Time after which capacity that several providers share is distributed again."""

_K = TypeVar("_K")


class InFlight(Struct):
    """Number of attempts in flight: by lane, by lane and tenant, by outlet, by provider, and in total."""

    lanes: Counter[str] = field(default_factory=Counter)
    tenants: Counter[tuple[str, str]] = field(default_factory=Counter)
    outlets: Counter[str] = field(default_factory=Counter)
    providers: Counter[str] = field(default_factory=Counter)
    total: int = 0


class Capacity:
    """Counts attempts in flight and computes how many more may start."""

    def __init__(
        self, *, roster: ProviderRoster, breakers: Breakers, backend: Backend, clock: Clock, slots: LaneSlots
    ) -> None:
        self._roster = roster
        self._breakers = breakers
        self._tokens = RateTokens(backend, clock, valid_ms=TOKENS_VALID_MS)
        self._substitutes: dict[str, str | None] = {}
        self._rounds = 0
        # Limit for hosts without attempts in flight, and for providers that are no longer configured.
        self._default_outlet_slots = max(
            (n for listed in roster if (n := listed.host_slots)), default=slots.standard
        )
        self._lane_slots = {
            channel: [(lane_of(mode, channel), slots.of(mode)) for mode in QUEUED_MODES]
            for channel in roster.channels
        }
        """Channel → lanes of the channel, each with its maximum number of attempts in flight."""
        self._lane_count = len(self.lane_names())
        self._foreign: set[str] = set()
        self._left_out: frozenset[str] = frozenset()
        """Outlets that the last request left out although they may have due notifications."""
        self._in_flight = InFlight()
        self._ended: list[Claim] = []
        self.next_check_ms: int | None = None
        """Milliseconds after which another claim may find more capacity than the last one.

        None if no rate limit, ramp or shared capacity reduced the last request.
        """

    def lane_names(self) -> list[str]:
        """Returns all lanes that have a provider, the most urgent first."""
        return [lane_of(mode, channel) for mode in QUEUED_MODES for channel in self._roster.channels]

    @property
    def lane_slots(self) -> Mapping[str, int]:
        """All lanes that have a provider, each with its maximum number of attempts in flight."""
        return {lane: slots for lanes in self._lane_slots.values() for lane, slots in lanes}

    @property
    def foreign(self) -> Collection[str]:
        """Providers of claimed notifications that this process does not have."""
        return self._foreign

    def leave_out_foreign(self, claims: Sequence[Claim]) -> set[str]:
        """Returns those providers of the claims that this process does not have.

        Their notifications are left to the workers that have them: later requests do not include them.
        """
        foreign = {
            provider for provider in {claim.provider for claim in claims} if provider not in self._roster
        }
        self._foreign |= foreign
        return foreign

    def take(self, claims: Sequence[Claim]) -> None:
        """Counts these claims as in flight."""
        self._count(claims, 1)

    def release(self, claims: Sequence[Claim]) -> None:
        """Counts these claims as no longer in flight."""
        self._ended += claims

    @property
    def in_flight(self) -> InFlight:
        """Number of attempts in flight. Reading it subtracts all ended claims in one go, to save time."""
        if self._ended:
            gone, self._ended = self._ended, []
            self._count(gone, -1)
        return self._in_flight

    async def request(self, worker: str, lease_ms: int, *, limit: int | None = None) -> ClaimRequest | None:
        """Returns the next claim request, or None if no attempt could start now.

        If `limit` is set, at most this number of notifications is claimed, from the most urgent lanes first.
        """
        self.next_check_ms = None
        capacity = {listed.id: await self._capacity(listed) for listed in self._roster}
        outlets = self._outlets(capacity)
        lanes = self._lanes(capacity)
        if limit is not None:
            lanes = {name: lanes[name] for name in self.lane_names() if name in lanes}
        if not lanes:
            return None
        return ClaimRequest(
            worker=worker,
            lease_ms=lease_ms,
            lanes=lanes,
            outlet_slots=self._default_outlet_slots,
            outlet_capacity=outlets,
            limit=limit,
        )

    def may_have_left_work(self, request: ClaimRequest, claims: Sequence[Claim]) -> bool:
        """Returns True if a claim may have left due notifications, because it used up some capacity.

        If False, the claim took everything that was due, and no notification waits for free capacity.
        """
        outlets, lanes = request.outlet_capacity, request.lanes
        full = any(not free and outlet not in self._left_out for outlet, free in outlets.items())
        if len(lanes) < self._lane_count or full:
            return True
        taken = Counter([(claim.lane, claim.tenant, claim.outlet) for claim in claims])
        by_lane, by_tenant, by_outlet = Counter[str](), Counter[tuple[str, str]](), Counter[str]()
        for (lane, tenant, outlet), number in taken.items():
            by_lane[lane] += number
            by_tenant[lane, tenant] += number
            provider, at, _ = outlet.partition("@")
            by_outlet[provider] += number
            if at:
                by_outlet[outlet] += number
        return (
            any(number >= lanes[lane].slots for lane, number in by_lane.items())
            or any(
                number >= outlets.get(outlet, request.outlet_slots) for outlet, number in by_outlet.items()
            )
            or any(not all(lane_capacity.tenant_capacity.values()) for lane_capacity in lanes.values())
            or any(
                number >= lanes[lane].tenant_capacity.get(tenant, lanes[lane].tenant_slots)
                for (lane, tenant), number in by_tenant.items()
            )
        )

    def spend_tokens(self, claims: Sequence[Claim]) -> None:
        """Spends one rate limit token per claim, at the provider that the claim is expected to go to."""
        for provider, number in Counter([claim.provider for claim in claims]).items():
            target = self._substitutes.get(provider) or provider
            self._breakers.spend_ramp(target, number)
            self._tokens.spend(provider_bucket(target), number)

    def is_token_spent_at(self, meant: str, provider: str) -> bool:
        """Returns True if `spend_tokens` took the token of a claim made for `meant` from `provider`."""
        return provider == (self._substitutes.get(meant) or meant)

    async def take_token(self, provider: str) -> int:
        """Takes a rate limit token of `provider`. Returns 0, or the wait in milliseconds if none is left."""
        rate, bucket = self._roster[provider].rate, provider_bucket(provider)
        if rate is not None and (wait_ms := await self._tokens.take(bucket, rate, 1)):
            return wait_ms
        self._breakers.spend_ramp(provider)
        return 0

    async def _capacity(self, listed: Listed) -> int:
        """Returns how many attempts this worker can start at the provider now."""
        match self._breakers.gate(listed.id):
            case BreakerGate.STOP:
                return 1 if self._breakers.usable(listed.id) else 0
            case BreakerGate.TRIAL:
                free = 1
            case BreakerGate.GO:
                free = max(0, listed.max_in_flight - self.in_flight.providers[listed.id])
        if free and listed.rate is not None:
            bucket = provider_bucket(listed.id)
            free = min(free, await self._tokens.hold(bucket, listed.rate, free))
            if wait_ms := self._tokens.wait_ms(bucket):
                self._check_again_in(wait_ms)
        if free:
            free = min(free, self._breakers.ramp_capacity(listed.id))
            if not free:
                self._check_again_in(_RAMP_CHECK_MS)
        return free

    def _outlets(self, capacity: Mapping[str, int]) -> dict[str, int]:
        """Returns the capacity per outlet.

        Claims of a provider that cannot send now share the capacity of the provider that replaces it.
        """
        substitutes = {listed.id: self._target(listed.id, capacity) for listed in self._roster}
        self._substitutes = substitutes
        outlets = dict.fromkeys(substitutes, 0)
        for target in sorted({target for target in substitutes.values() if target is not None}):
            sharing = [provider for provider, to in substitutes.items() if to == target]
            for turn in range(
                min(capacity[target], len(sharing))
            ):  # one for each provider, in turn if there are too few
                outlets[sharing[(self._rounds + turn) % len(sharing)]] = 1
            for provider in sharing:
                outlets[provider] += max(0, capacity[target] - len(sharing)) // len(sharing)
            if capacity[target] % len(sharing):
                # The remainder may have gone to a provider that has no due notifications.
                self._check_again_in(_SHARED_CHECK_MS)
        self._rounds += 1
        for outlet, held in self.in_flight.outlets.items():
            provider, at, _ = outlet.partition("@")
            listed_ = self._roster.get(provider)
            if at and held and listed_ is not None and listed_.host_slots is not None:
                outlets[outlet] = max(0, listed_.host_slots - held)
        stopped = (listed.id for listed in self._roster if not self._is_available(listed.id))
        self._left_out = frozenset([*self._foreign, *map(pinned_outlet, stopped)])
        outlets.update(dict.fromkeys(self._left_out, 0))
        return outlets

    def _target(self, provider: str, capacity: Mapping[str, int]) -> str | None:
        """Returns the provider to which an attempt meant for `provider` would go now.

        Returns None if no provider has capacity.
        """
        targets = [
            next(
                (
                    s.provider
                    for s in put_first(self._roster.route(channel), provider)
                    if self._is_available(s.provider)
                ),
                None,
            )
            for channel in self._roster[provider].channels
        ]
        available = [target for target in targets if target is not None and capacity[target]]
        return max(available, key=lambda target: capacity[target], default=None)

    def _is_available(self, provider: str) -> bool:
        return self._breakers.gate(provider) is not BreakerGate.STOP or self._breakers.usable(provider)

    def _lanes(self, capacity: Mapping[str, int]) -> dict[str, LaneCapacity]:
        lanes: dict[str, LaneCapacity] = {}
        in_flight = self.in_flight
        for channel, lane_slots in self._lane_slots.items():
            available = sum(capacity[step.provider] for step in self._roster.route(channel))
            for lane, all_slots in lane_slots:
                slots = min(all_slots - in_flight.lanes[lane], available)
                if slots <= 0:
                    continue
                each = max(1, all_slots - max(1, all_slots // 8)) if all_slots > 1 else 1
                busy = {t: max(0, each - n) for (at, t), n in in_flight.tenants.items() if at == lane and n}
                lanes[lane] = LaneCapacity(slots=slots, tenant_slots=each, tenant_capacity=busy)
        return lanes

    def _check_again_in(self, wait_ms: int) -> None:
        self.next_check_ms = wait_ms if self.next_check_ms is None else min(self.next_check_ms, wait_ms)

    def _count(self, claims: Sequence[Claim], by: int) -> None:
        held = self._in_flight
        held.total += by * len(claims)
        for (lane, tenant, provider, outlet), number in Counter(map(_counted_fields, claims)).items():
            _add(held.lanes, lane, by * number)
            _add(held.providers, provider, by * number)
            _add(held.tenants, (lane, tenant), by * number)
            _add(held.outlets, outlet, by * number)


_counted_fields = attrgetter("lane", "tenant", "provider", "outlet")


def _add(held: Counter[_K], key: _K, number: int) -> None:
    """Adds `number` to a count, and removes the key at zero, because tenants and hosts come and go."""
    held[key] += number
    if not held[key]:
        del held[key]
