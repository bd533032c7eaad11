"""Computes how many attempts a worker can start now, per lane, provider, tenant and outlet.

A worker claims no more notifications than that.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import ceil
from operator import attrgetter

from msgspec import Struct, field

from homing.core.lifecycle.claims import (
    UNLIMITED,
    Claim,
    ClaimRequest,
    LaneCapacity,
    NewOutletsCapacity,
    ProviderCapacity,
)
from homing.core.notifications import Mode, lane_of
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Backend
from homing.core.routing.breaker import BreakerGate
from homing.core.routing.failover import pinned_outlet, put_first
from homing.core.routing.fair_share import (
    MODE_ORDER,
    TENANT_FACTOR,
    ClaimCapacity,
    DueQueue,
    hanging_share,
    new_outlets_share,
    reserve_of,
)
from homing.core.routing.rate_limits import RateLimit, provider_bucket
from homing.engine.delivery.abandoned_calls import AbandonedCalls, add_count
from homing.engine.delivery.breakers import Breakers
from homing.engine.delivery.outlets import Outlets
from homing.engine.provider_roster import Listed, ProviderRoster
from homing.engine.rate_tokens import TOKENS_VALID_MS, RateTokens
from homing.engine.settings import LaneSlots

log = logging.getLogger("homing.worker")

_RAMP_CHECK_MS = 100
"""Time after which a recovering provider may allow more attempts."""

_STARTS_PER_TURN = 16
"""After this many starts of more urgent modes at a limited provider, a mode gets the next start."""


class InFlight(Struct):
    """Number of attempts in flight, by several keys."""

    lanes: Counter[str] = field(default_factory=Counter)
    tenants: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(lane, tenant) → attempts."""
    outlets: Counter[str] = field(default_factory=Counter)
    shares: Counter[tuple[str, Mode, str]] = field(default_factory=Counter)
    """(provider, mode, tenant) → attempts."""
    hosts: Counter[tuple[str, Mode, str]] = field(default_factory=Counter)
    """(outlet, mode, tenant) → attempts at outlets that are hosts of recipients."""


class _TokenOffer(Struct, frozen=True):
    """Rate limit tokens of a provider that the attempts of one claim may use."""

    unreserved: int
    """Number of tokens for all modes."""
    reserved: int
    """Number of further tokens for priority, which are taken after the claim."""
    expected: int
    """Number of the unreserved tokens that are not taken yet."""
    wait_ms: int
    """Milliseconds until the bucket will have another one for all modes. 1 if it has one already."""


class SpentTokens(Struct, frozen=True):
    """Providers at which the claims of one batch have spent their rate limit tokens."""

    unpaid: Mapping[str, bool]
    """Ids of the claims for which no token was held. True if the claim may take one of the provider's
    reserve."""
    stand_ins: Mapping[str, str]
    """Provider → the provider that stood in for it when the tokens were spent. The next claim may find
    another one."""

    def are_at(self, meant: str, provider: str) -> bool:
        """Returns True if the tokens of claims made for `meant` were spent at `provider`."""
        return provider == self.stand_ins.get(meant, meant)


class Capacity:
    """Counts attempts in flight and computes how many more may start."""

    def __init__(
        self,
        *,
        roster: ProviderRoster,
        breakers: Breakers,
        outlets: Outlets,
        abandoned: AbandonedCalls,
        backend: Backend,
        clock: Clock,
        slots: LaneSlots,
    ) -> None:
        self._roster = roster
        self._breakers = breakers
        self._outlets = outlets
        self._abandoned = abandoned
        self._tokens = RateTokens(backend, clock, valid_ms=TOKENS_VALID_MS)
        self._token_offers: dict[str, _TokenOffer] = {}
        """Provider with a rate limit → what the last request offered of its tokens."""
        self._short_of_tokens: set[str] = set()
        """Providers of which the last claim used all tokens that it might, so that more may wait for some."""
        self._stand_ins: dict[str, str] = {}
        self._starts_since: Counter[tuple[str, Mode]] = Counter()
        """(provider, mode) → starts of more urgent modes since the last one of this mode."""
        self._lane_slots = {
            channel: [(lane_of(mode, channel), slots.of(mode)) for mode in MODE_ORDER]
            for channel in roster.channels
        }
        """Channel → lanes of the channel, each with its maximum number of attempts in flight."""
        self._lane_count = len(self.lane_names())
        self._foreign: set[str] = set()
        self._left_out: frozenset[str] = frozenset()
        """Outlets that the last request left out although they may have due notifications."""
        self._in_flight = InFlight()
        self._ended: list[Claim] = []
        self._next_check_ms: int | None = None
        """Value of `next_check_ms` without rate limits."""

    def lane_names(self) -> list[str]:
        """Returns all lanes that have a provider, the most urgent first."""
        return [lane_of(mode, channel) for mode in MODE_ORDER for channel in self._roster.channels]

    @property
    def lane_slots(self) -> Mapping[str, int]:
        """All lanes that have a provider, each with its maximum number of attempts in flight."""
        return {lane: slots for lanes in self._lane_slots.values() for lane, slots in lanes}

    @property
    def foreign(self) -> Collection[str]:
        """Providers of due notifications that this process does not have."""
        return self._foreign

    def note_foreign(self, providers: AbstractSet[str]) -> None:
        """Remembers providers of due notifications that were left to the workers that have them."""
        if new := providers - self._foreign:
            log.warning("left to other workers, because this one does not have the provider: %s", sorted(new))
            self._foreign |= new

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

    @property
    def next_check_ms(self) -> int | None:
        """Milliseconds after which another claim may find more capacity than the last one.

        None if no ramp or shared capacity reduced the last request, and no rate limit the last claim.
        """
        waits = [
            offer.wait_ms
            for provider, offer in self._token_offers.items()
            if offer.unreserved < 1 or provider in self._short_of_tokens
        ]
        if self._next_check_ms is not None:
            waits.append(self._next_check_ms)
        return min(waits, default=None)

    async def request(
        self,
        worker: str,
        lease_ms: int,
        *,
        limit: int | None = None,
        tenant: str | None = None,
        ids: frozenset[str] | None = None,
    ) -> ClaimRequest | None:
        """Returns the next claim request, or None if no attempt could start now.

        If `limit` is set, at most this number of notifications is claimed, from the most urgent lanes first.
        If `tenant` or `ids` is set, only notifications of this tenant or with these ids are claimed.
        """
        self._next_check_ms = None
        if self._token_offers:
            self._token_offers = {}
            await self._tokens.give_back_unused()
        providers = {listed.id: await self._provider_capacity(listed) for listed in self._roster}
        self._stand_ins = self._find_stand_ins(providers)
        stopped = (listed.id for listed in self._roster if not self._is_available(listed.id))
        paused = self._outlets.paused()
        self._left_out = frozenset([*map(pinned_outlet, stopped), *paused])
        lanes = self._lanes(providers)
        if not lanes:
            return None
        if wait_ms := self._outlets.next_trial_ms():
            self._check_again_in(wait_ms)
        return ClaimRequest(
            worker=worker,
            lease_ms=lease_ms,
            lanes=lanes,
            providers=providers,
            only_listed=True,
            stand_ins=self._stand_ins,
            outlet_slots=UNLIMITED,
            outlet_capacity=self._outlets.capacity(self._at_outlets())
            | {
                pinned_outlet(listed.id): UNLIMITED
                for listed in self._roster
                if listed.host_slots is not None
            }
            | dict.fromkeys(self._left_out, 0),
            hanging=self._outlets.hanging,
            answering=self._outlets.answering,
            limit=limit,
            tenant=tenant,
            ids=ids,
        )

    def may_have_left_work(self, request: ClaimRequest, claims: Sequence[Claim]) -> bool:
        """Returns True if a claim may have left due notifications, because it used up some capacity.

        If False, the claim took everything that was due, and no notification waits for free capacity.
        """
        if len(request.lanes) < self._lane_count:
            return True
        capacity = ClaimCapacity(request)
        used_up = capacity.is_used_up(self._left_out)
        if used_up or not claims:
            return used_up
        for (lane, tenant, outlet), number in Counter(map(_queue_fields, claims)).items():
            capacity.use(DueQueue(lane, tenant, outlet, 0), number)
        return capacity.is_used_up(self._left_out)

    def note_tokens(self, request: ClaimRequest, claims: Sequence[Claim]) -> None:
        """Notes which providers have too few tokens for what is due, by what the claim used of them."""
        if not self._token_offers:
            return
        used = Counter([self._stand_ins.get(claim.provider, claim.provider) for claim in claims])
        chosen = request.limit is not None or request.tenant is not None or request.ids is not None
        for provider, offer in self._token_offers.items():
            if offer.unreserved < 1:
                continue  # too few to find out
            if used[provider] >= offer.unreserved:
                self._short_of_tokens.add(provider)
            elif not chosen:
                self._short_of_tokens.discard(provider)

    def spend_tokens(self, claims: Sequence[Claim]) -> SpentTokens:
        """Spends one rate limit token per claim, at the provider that the claim is expected to go to."""
        unpaid: dict[str, bool] = {}
        by_provider: dict[str, list[Claim]] = {}
        for claim in claims:
            by_provider.setdefault(self._stand_ins.get(claim.provider, claim.provider), []).append(claim)
        for provider, those in by_provider.items():
            self._breakers.spend_ramp(provider, len(those))
            self._note_starts(provider, those)
            listed = self._roster.get(provider)
            if listed is None or listed.rate is None:
                continue
            if missing := self._tokens.spend(provider_bucket(provider), len(those)):
                urgent = sorted(those, key=lambda claim: claim.mode is not Mode.PRIORITY)
                offer = self._token_offers.get(provider)
                reserved = missing - (offer.expected if offer else 0)
                unpaid |= {claim.id: turn < reserved for turn, claim in enumerate(urgent[:missing])}
        return SpentTokens(unpaid, self._stand_ins)

    async def take_tokens(self, provider: str, number: int, *, reserved: bool) -> tuple[int, int]:
        """Takes rate limit tokens of `provider`.

        Returns how many of `number` were taken, and the wait in milliseconds if some are missing. If
        `reserved`, the tokens may be those of the provider's reserve.
        """
        rate, bucket = self._roster[provider].rate, provider_bucket(provider)
        if rate is None:
            return number, 0
        if reserved:
            return await self._tokens.take_shared(bucket, rate, number)
        return await self._tokens.take_up_to(bucket, rate, number, reserve_of(Mode.PRIORITY, rate.burst))

    def spend_ramp(self, provider: str, number: int) -> None:
        """Counts attempts that go to `provider` instead of the one they were claimed for."""
        self._breakers.spend_ramp(provider, number)

    async def _provider_capacity(self, listed: Listed) -> ProviderCapacity:
        """Returns how many attempts this worker can start at the provider now."""
        match self._breakers.gate(listed.id):
            case BreakerGate.STOP:
                return ProviderCapacity(
                    slots=int(self._breakers.usable(listed.id) and self._has_free_slot(listed))
                )
            case BreakerGate.TRIAL:
                starts, _ = await self._starts(listed, 1)
                return ProviderCapacity(slots=int(self._has_free_slot(listed)), starts=starts)
            case BreakerGate.GO:
                return await self._shared_capacity(listed)

    def _has_free_slot(self, listed: Listed) -> bool:
        in_flight = self._at_providers()
        taken = sum(number for (provider, _, _), number in in_flight.items() if provider == listed.id)
        return taken < listed.max_in_flight

    def _at_providers(self) -> Mapping[tuple[str, Mode, str], int]:
        """Returns (provider, mode, tenant) → calls that use a slot of the provider."""
        shares, abandoned = self.in_flight.shares, self._abandoned.shares
        return shares + abandoned if abandoned else shares

    def _at_outlets(self) -> Mapping[str, int]:
        """Returns outlet → calls that use a slot of the outlet."""
        outlets, abandoned = self.in_flight.outlets, self._abandoned.outlets
        return outlets + abandoned if abandoned else outlets

    def _at_hosts(self) -> Mapping[tuple[str, Mode, str], int]:
        """Returns (outlet, mode, tenant) → calls at outlets other than whole providers."""
        hosts, abandoned = self.in_flight.hosts, self._abandoned.hosts
        return hosts + abandoned if abandoned else hosts

    async def _shared_capacity(self, listed: Listed) -> ProviderCapacity:
        """Returns the capacity of a provider that works normally, and how modes and tenants share it."""
        slots, modes = listed.max_in_flight, Counter[Mode]()
        held = {
            (mode, tenant): number
            for (provider, mode, tenant), number in self._at_providers().items()
            if provider == listed.id
        }
        for (mode, _), number in held.items():
            modes[mode] += number
        free = max(0, slots - modes.total())
        starts, unreserved = await self._starts(listed, free) if free else (0, 0)
        return ProviderCapacity(
            slots=free,
            reserved={mode: max(0, reserve_of(mode, slots) - modes[mode]) for mode in MODE_ORDER},
            starts=starts,
            reserved_starts=starts - unreserved,
            owed=self._owed(listed.id) if starts < free else {},
            held=held,
            tenant_factor=TENANT_FACTOR,
            hanging_slots=max(0, hanging_share(slots) - self._hanging_in_flight(listed.id)),
            new_outlets=None if listed.host_slots is None else self._new_outlets_capacity(listed),
            outlet_slots=self._outlets.new_slots(listed),
        )

    async def _starts(self, listed: Listed, free: int) -> tuple[int, int]:
        """Returns how many attempts rate limit and ramp-up permit: of priority, and of other modes."""
        starts, unreserved = self._breakers.ramp_capacity(listed.id)
        if unreserved <= 0:
            self._check_again_in(_RAMP_CHECK_MS)
        if listed.rate is None:
            return starts, unreserved
        offer = await self._offer_tokens(listed.id, listed.rate, free)
        self._token_offers[listed.id] = offer
        return min(starts, offer.unreserved + offer.reserved), min(unreserved, offer.unreserved)

    async def _offer_tokens(self, provider: str, rate: RateLimit, free: int) -> _TokenOffer:
        """Returns the tokens that attempts may use now.

        They are taken before the claim only if it will probably use them. An idle worker would otherwise take
        tokens that others need. It takes them after the claim, for what was claimed.
        """
        tokens, bucket = self._tokens, provider_bucket(provider)
        reserve = reserve_of(Mode.PRIORITY, rate.burst)
        taking = tokens.in_use(bucket) or provider in self._short_of_tokens
        held = await tokens.hold(bucket, rate, free, reserve) if taking else 0
        expected = 0 if taking else tokens.expect(bucket, rate, free, reserve)
        level = tokens.level(bucket, rate) - expected
        reserved = min(reserve, int(level))
        wait_ms = tokens.wait_ms(bucket) or ceil((reserve + 1 - level) * 1000 / rate.per_second)
        if held + expected + reserved < 1:
            wait_ms = min(wait_ms, ceil((1 - level) * 1000 / rate.per_second))
        return _TokenOffer(held + expected, reserved, expected, max(1, wait_ms))

    def _hanging_in_flight(self, provider: str) -> int:
        in_flight = self._at_outlets()
        return sum(
            in_flight.get(outlet, 0)
            for outlet in self._outlets.hanging
            if outlet.partition("@")[0] == provider
        )

    def _new_outlets_capacity(self, listed: Listed) -> NewOutletsCapacity:
        """Returns the capacity of the provider's outlets that have not answered yet."""
        answering, hanging, prefix = self._outlets.answering, self._outlets.hanging, f"{listed.id}@"
        held: Counter[tuple[Mode, str]] = Counter()
        modes: Counter[Mode] = Counter()
        for (outlet, mode, tenant), number in self._at_hosts().items():
            if outlet.startswith(prefix) and outlet not in answering and outlet not in hanging:
                held[mode, tenant] += number
                modes[mode] += number
        slots = new_outlets_share(listed.max_in_flight)
        return NewOutletsCapacity(
            slots=max(0, slots - modes.total()),
            reserved={mode: max(0, reserve_of(mode, slots) - modes[mode]) for mode in MODE_ORDER},
            held=held,
        )

    def _owed(self, provider: str) -> dict[Mode, int]:
        return {mode: 1 for mode in MODE_ORDER[1:] if self._starts_since[provider, mode] >= _STARTS_PER_TURN}

    def _note_starts(self, provider: str, claims: Sequence[Claim]) -> None:
        """Counts the starts that each mode has waited through."""
        modes = Counter([claim.mode for claim in claims])
        urgent = 0
        for mode in MODE_ORDER:
            if modes[mode]:
                self._starts_since[provider, mode] = 0
            else:
                self._starts_since[provider, mode] += urgent
            urgent += modes[mode]

    def _find_stand_ins(self, providers: Mapping[str, ProviderCapacity]) -> dict[str, str]:
        """Returns the provider that replaces each one that cannot send now. Their rows share its capacity."""
        found = {}
        for listed in self._roster:
            target = self._target(listed.id, providers)
            if target is not None and target != listed.id:
                found[listed.id] = target
        return found

    def _target(self, provider: str, capacity: Mapping[str, ProviderCapacity]) -> str | None:
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
        available = [target for target in targets if target is not None and capacity[target].slots > 0]
        return max(available, key=lambda target: capacity[target].slots, default=None)

    def _is_available(self, provider: str) -> bool:
        match self._breakers.gate(provider):
            case BreakerGate.GO:
                return True
            case BreakerGate.TRIAL:  # not while calls that never returned keep all slots
                return self._has_free_slot(self._roster[provider])
            case BreakerGate.STOP:
                return self._breakers.usable(provider)

    def _lanes(self, providers: Mapping[str, ProviderCapacity]) -> dict[str, LaneCapacity]:
        lanes: dict[str, LaneCapacity] = {}
        in_flight = self.in_flight
        held: dict[str, dict[str, int]] = {}
        for (lane, tenant), number in in_flight.tenants.items():
            held.setdefault(lane, {})[tenant] = number
        for channel, lane_slots in self._lane_slots.items():
            route = [providers[step.provider] for step in self._roster.route(channel)]
            if not any(one.slots > 0 and one.starts > 0 for one in route):
                continue
            for lane, slots in lane_slots:
                free = slots - in_flight.lanes[lane]
                if free > 0:
                    lanes[lane] = LaneCapacity(
                        slots=free, held=held.get(lane, {}), tenant_factor=TENANT_FACTOR
                    )
        return lanes

    def _check_again_in(self, wait_ms: int) -> None:
        self._next_check_ms = wait_ms if self._next_check_ms is None else min(self._next_check_ms, wait_ms)

    def _count(self, claims: Sequence[Claim], by: int) -> None:
        held = self._in_flight
        for (lane, mode, tenant, provider, outlet), number in Counter(map(_counted_fields, claims)).items():
            add_count(held.lanes, lane, by * number)
            add_count(held.shares, (provider, mode, tenant), by * number)
            add_count(held.tenants, (lane, tenant), by * number)
            add_count(held.outlets, outlet, by * number)
            if outlet != provider:
                add_count(held.hosts, (outlet, mode, tenant), by * number)


_counted_fields = attrgetter("lane", "mode", "tenant", "provider", "outlet")

_queue_fields = attrgetter("lane", "tenant", "outlet")
