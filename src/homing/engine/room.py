"""How much a worker can start now, by lane, tenant and outlet. A claim asks for no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from homing.core.breaker import Gate
from homing.core.failover import Stop, rotation
from homing.core.model import Claim, ClaimRequest, LaneRoom, Mode, lane_of
from homing.core.ports import Backend, Clock
from homing.engine.breakers import Breakers
from homing.engine.roster import Listed, Roster

QUEUED_MODES = (Mode.PRIORITY, Mode.STANDARD, Mode.BULK)
_TOKENS_KEEP_MS = 1_000
_K = TypeVar("_K")


class Slots(Struct, frozen=True, kw_only=True):
    """Attempts that one worker has under way at most, per lane (mode × channel)."""

    priority: int = 128
    standard: int = 128
    bulk: int = 64

    def of(self, mode: Mode) -> int:
        return int(getattr(self, mode.value))


class _Tokens(Struct):
    left: int = 0
    until_ms: int = 0


class Held(Struct):
    """What is under way."""

    lanes: Counter[str] = field(default_factory=Counter)
    tenants: Counter[tuple[str, str]] = field(default_factory=Counter)
    outlets: Counter[str] = field(default_factory=Counter)
    providers: Counter[str] = field(default_factory=Counter)
    total: int = 0


class Room:
    """Counts what is held, and works out what else fits."""

    def __init__(
        self, *, roster: Roster, breakers: Breakers, backend: Backend, clock: Clock, slots: Slots
    ) -> None:
        self._roster = roster
        self._breakers = breakers
        self._backend = backend
        self._clock = clock
        self._slots = slots
        self._tokens: dict[str, _Tokens] = {}
        self._stands_in: dict[str, str | None] = {}
        self._turn = 0
        # For hosts that are not in use, and for providers that are no longer wired in.
        self._unnamed_slots = max(
            (n for listed in roster if (n := listed.host_slots)), default=slots.standard
        )
        self._lanes_in_all = len(self.lane_names())
        self._held = Held()
        self._gone: list[Claim] = []
        self.retry_in_ms: int | None = None
        """Set when a rate limit or a ramp held something back: look again then."""

    def lane_names(self) -> list[str]:
        """All lanes that have a provider, the more urgent ones first."""
        return [lane_of(mode, channel) for mode in QUEUED_MODES for channel in self._roster.channels]

    def take(self, claims: Sequence[Claim]) -> None:
        self._count(claims, 1)

    def release(self, claims: Sequence[Claim]) -> None:
        self._gone += claims

    @property
    def held(self) -> Held:
        """What is under way. Those that have gone are counted together, when somebody asks."""
        if self._gone:
            gone, self._gone = self._gone, []
            self._count(gone, -1)
        return self._held

    async def request(
        self, worker: str, lease_ms: int, *, lane: str | None = None, limit: int | None = None
    ) -> ClaimRequest | None:
        """The next claim (of one lane, of at most `limit`), or None where nothing could be started."""
        self.retry_in_ms = None
        capacity = {listed.id: await self._capacity(listed) for listed in self._roster}
        rooms = self._outlets(capacity)
        lanes = self._lanes(capacity)
        if lane is not None:
            lanes = {lane: lanes[lane]} if lane in lanes else {}
        if limit is not None:
            lanes = {name: replace(room, slots=min(room.slots, limit)) for name, room in lanes.items()}
        if not lanes:
            return None
        return ClaimRequest(
            worker=worker,
            lease_ms=lease_ms,
            lanes=lanes,
            outlet_slots=self._unnamed_slots,
            outlet_room=rooms,
        )

    def is_tight(self, request: ClaimRequest, claims: Sequence[Claim]) -> bool:
        """Whether a claim may have left something that was due: some room was used up, or had been before.

        Otherwise it took all there was, and what ends now makes no room that anything waits for.
        """
        rooms, lanes = request.outlet_room, request.lanes
        if len(lanes) < self._lanes_in_all or not all(rooms.values()):
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
            or any(number >= rooms.get(outlet, request.outlet_slots) for outlet, number in by_outlet.items())
            or any(not all(room.tenant_room.values()) for room in lanes.values())
            or any(
                number >= lanes[lane].tenant_room.get(tenant, lanes[lane].tenant_slots)
                for (lane, tenant), number in by_tenant.items()
            )
        )

    def spend(self, claims: Sequence[Claim]) -> None:
        """Claims that were taken use up tokens of the providers that they will go to."""
        for provider, number in Counter([claim.provider for claim in claims]).items():
            self._spend(self._stands_in.get(provider) or provider, number)

    def is_counted(self, meant: str, provider: str) -> bool:
        """Whether the token that was used up for a claim meant for one provider is one of the other."""
        return provider == (self._stands_in.get(meant) or meant)

    async def token(self, provider: str) -> int:
        """0 where one more may go to `provider` as far as its rate limit says; else how long it must wait."""
        listed = self._roster[provider]
        if listed.rate is not None and not await self._leased_tokens(listed, 1):
            return self.retry_in_ms or _TOKENS_KEEP_MS
        self._spend(provider)
        return 0

    def _spend(self, provider: str, number: int = 1) -> None:
        self._breakers.ramp_spend(provider, number)
        if tokens := self._tokens.get(provider):
            tokens.left = max(0, tokens.left - number)

    async def _capacity(self, listed: Listed) -> int:
        """Starts that this provider can take now."""
        match self._breakers.gate(listed.id):
            case Gate.STOP:
                return 1 if self._breakers.usable(listed.id) else 0
            case Gate.TRIAL:
                free = 1
            case Gate.GO:
                free = max(0, listed.max_in_flight - self.held.providers[listed.id])
        if free and listed.rate is not None:
            free = min(free, await self._leased_tokens(listed, free))
        if free:
            free = min(free, self._breakers.ramp_room(listed.id))
            if not free:
                self._again_in(100)
        return free

    async def _leased_tokens(self, listed: Listed, want: int) -> int:
        assert listed.rate is not None, "only for providers with a rate limit"
        mono = self._clock.monotonic_ms()
        tokens = self._tokens.setdefault(listed.id, _Tokens())
        if mono >= tokens.until_ms:
            tokens.left = 0
        if not tokens.left:
            chunk = max(1, min(want, listed.rate.burst, int(listed.rate.per_second / 4) or 1))
            taken = await self._backend.take(f"provider:{listed.id}", listed.rate, chunk)
            tokens.left, tokens.until_ms = taken.granted, mono + _TOKENS_KEEP_MS
            if taken.wait_ms:
                self._again_in(taken.wait_ms)
        return tokens.left

    def _outlets(self, capacity: Mapping[str, int]) -> dict[str, int]:
        """Room by outlet. What waits for a stopped provider shares the room of the one that stands in."""
        stands_in = {listed.id: self._target(listed.id, capacity) for listed in self._roster}
        self._stands_in = stands_in
        rooms = dict.fromkeys(stands_in, 0)
        for target in sorted({target for target in stands_in.values() if target is not None}):
            sharers = [provider for provider, to in stands_in.items() if to == target]
            for turn in range(min(capacity[target], len(sharers))):  # what cannot be divided goes round
                rooms[sharers[(self._turn + turn) % len(sharers)]] = 1
            for provider in sharers:
                rooms[provider] += max(0, capacity[target] - len(sharers)) // len(sharers)
            if capacity[target] % len(sharers):
                self._again_in(50)  # the turn may have fallen on one that has nothing due
        self._turn += 1
        for outlet, held in self.held.outlets.items():
            provider, at, _ = outlet.partition("@")
            listed_ = self._roster.get(provider)
            if at and held and listed_ is not None and listed_.host_slots is not None:
                rooms[outlet] = max(0, listed_.host_slots - held)
        return rooms

    def _target(self, provider: str, capacity: Mapping[str, int]) -> str | None:
        """Where an attempt that is meant for `provider` would go now."""
        targets = [
            next(
                (s.provider for s in rotation(self._roster.route(channel), provider) if self._takes(s)), None
            )
            for channel in self._roster[provider].channels
        ]
        able = [target for target in targets if target is not None and capacity[target]]
        return max(able, key=lambda target: capacity[target], default=None)

    def _takes(self, stop: Stop) -> bool:
        return self._breakers.gate(stop.provider) is not Gate.STOP or self._breakers.usable(stop.provider)

    def _lanes(self, capacity: Mapping[str, int]) -> dict[str, LaneRoom]:
        lanes: dict[str, LaneRoom] = {}
        for channel in self._roster.channels:
            able = sum(capacity[stop.provider] for stop in self._roster.route(channel))
            for mode in QUEUED_MODES:
                lane, all_slots = lane_of(mode, channel), self._slots.of(mode)
                slots = min(all_slots - self.held.lanes[lane], able)
                if slots <= 0:
                    continue
                each = max(1, all_slots - max(1, all_slots // 8)) if all_slots > 1 else 1
                busy = {t: max(0, each - n) for (at, t), n in self.held.tenants.items() if at == lane and n}
                lanes[lane] = LaneRoom(slots=slots, tenant_slots=each, tenant_room=busy)
        return lanes

    def _again_in(self, wait_ms: int) -> None:
        self.retry_in_ms = wait_ms if self.retry_in_ms is None else min(self.retry_in_ms, wait_ms)

    def _count(self, claims: Sequence[Claim], by: int) -> None:
        held = self._held
        held.total += by * len(claims)
        for (lane, tenant, provider, outlet), number in Counter(map(_place, claims)).items():
            _add(held.lanes, lane, by * number)
            _add(held.providers, provider, by * number)
            _add(held.tenants, (lane, tenant), by * number)
            _add(held.outlets, outlet, by * number)


_place = attrgetter("lane", "tenant", "provider", "outlet")


def _add(held: Counter[_K], key: _K, number: int) -> None:
    """Counts, and forgets what is down to nothing: tenants and hosts come and go."""
    held[key] += number
    if not held[key]:
        del held[key]
