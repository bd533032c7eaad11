"""Adapts the concurrency of each outlet whose host is the recipient's, and pauses those that keep failing.

One recipient's endpoint must not slow down or stop the others at the same provider. So each outlet has its
own number of slots and its own breaker, in this process only. The slots rise while the endpoint answers
quickly, and fall when it answers slowly or not at all. After a timeout, the outlet has a single slot.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from msgspec import Struct
from msgspec.structs import replace

from homing.core.notifications import OutcomeKind
from homing.core.ports.runtime import Clock
from homing.core.routing.breaker import (
    Breaker,
    BreakerGate,
    Phase,
    blames_provider,
    check_gate,
    record_outcome,
)
from homing.engine.provider_roster import Listed, ProviderRoster

log = logging.getLogger("homing.breakers")

_NEW_SLOTS = 2
"""Slots of an outlet that has not answered yet. Each quick answer adds one, so they double per round trip."""

_QUICK_MS = 500
"""An answer within this time is quick."""

_SLOW_MS = 5_000
"""An answer after this time is slow, even if the outlet has never answered sooner."""

_SLOWER_THAN_USUAL = 3
"""An answer is slow if it takes this many times as long as the outlet's usual answer, and is not quick."""

_ERROR_COSTS = 4
"""An error takes away as many slots as this number of quick answers adds.

So the slots of an outlet rise while fewer than one in five of its answers is an error.
"""

_MAX_OUTLETS = 4_096
"""Maximum number of outlets whose state is kept.

Beyond it, the one that answered longest ago is dropped, but first those that are neither paused nor hanging.
"""

_CLOSED = Breaker()

_ACCEPTED = OutcomeKind.ACCEPTED  # looking up an enum member for every attempt is slow


class OutletState(Struct):
    """What this process knows of an outlet."""

    slots: float
    """Maximum number of attempts in flight, before rounding down."""
    usual_ms: float = 0.0
    """Lowest recent time to an answer, which drifts upwards slowly. 0 before the first answer."""
    was_quick: bool = True
    """True until the first timeout, slow answer or `429`. Until then, the slots rise quickly."""
    breaker: Breaker = _CLOSED


class Outlets:
    """The outlets of all providers that have slots per host."""

    def __init__(self, roster: ProviderRoster, clock: Clock) -> None:
        self._roster = roster
        self._clock = clock
        self._states: dict[str, OutletState] = {}
        self._answering: set[str] = set()
        self._hanging: set[str] = set()
        self._open: set[str] = set()

    @property
    def hanging(self) -> frozenset[str]:
        """Outlets whose last answer was a timeout."""
        return frozenset(self._hanging)

    @property
    def answering(self) -> AbstractSet[str]:
        """Outlets that answered the last attempt in time."""
        return self._answering

    def new_slots(self, listed: Listed) -> int | None:
        """Returns the slots of an outlet of this provider that is not known yet, or None if not limited."""
        return None if listed.host_slots is None else min(listed.host_slots, _NEW_SLOTS)

    def capacity(self, in_flight: Mapping[str, int]) -> dict[str, int]:
        """Returns the free slots of all outlets that are known or in use."""
        found = {
            outlet: max(0, int(state.slots) - in_flight.get(outlet, 0))
            for outlet, state in self._states.items()
        }
        for outlet, number in in_flight.items():
            provider, at, _ = outlet.partition("@")
            listed = self._roster.get(provider)
            if at and outlet not in found and listed is not None and listed.host_slots is not None:
                found[outlet] = max(0, min(listed.host_slots, _NEW_SLOTS) - number)
        now = self._clock.monotonic_ms()
        for outlet in self._open:
            gate = check_gate(self._states[outlet].breaker, now)
            free = 0 if gate is BreakerGate.STOP else 1 - in_flight.get(outlet, 0)
            found[outlet] = max(0, min(found[outlet], free))
        return found

    def paused(self) -> list[str]:
        """Returns the outlets whose breaker allows no attempt now."""
        now = self._clock.monotonic_ms()
        return [
            outlet
            for outlet in self._open
            if check_gate(self._states[outlet].breaker, now) is BreakerGate.STOP
        ]

    def next_trial_ms(self) -> int | None:
        """Returns the milliseconds until a paused outlet may be tried again. None if no outlet is paused."""
        now = self._clock.monotonic_ms()
        waits = [self._states[outlet].breaker.open_until - now for outlet in self._open]
        return min((wait for wait in waits if wait > 0), default=None)

    def answered(
        self, listed: Listed, outlet: str, kind: OutcomeKind, latency_ms: int, timed_out: bool
    ) -> None:
        """Records the outcome of an attempt at an outlet of this provider."""
        ceiling = listed.host_slots or 1
        state = self._states.get(outlet)
        if (
            state is not None
            and kind is _ACCEPTED
            and latency_ms <= _QUICK_MS
            and state.slots >= ceiling
            and state.breaker is _CLOSED
            and outlet not in self._hanging
        ):
            self._states[outlet] = self._states.pop(outlet)
            return  # the usual case: only the order changes
        state = self._states.pop(outlet, None)
        if state is None:
            state = OutletState(slots=min(ceiling, _NEW_SLOTS))
            if len(self._states) >= _MAX_OUTLETS:
                self._forget(self._least_needed())
        self._states[outlet] = state  # the last one is the one that answered most recently
        _adapt_slots(state, kind, latency_ms, timed_out, ceiling)
        now_in, no_longer_in = (
            (self._hanging, self._answering) if timed_out else (self._answering, self._hanging)
        )
        now_in.add(outlet)
        no_longer_in.discard(outlet)
        self._record(listed, outlet, state, kind)

    def _record(self, listed: Listed, outlet: str, state: OutletState, kind: OutcomeKind) -> None:
        before, now = state.breaker, self._clock.monotonic_ms()
        if before.phase is Phase.OPEN:
            if check_gate(before, now) is BreakerGate.STOP:
                return  # the attempt started before the breaker opened
            before = replace(before, phase=Phase.HALF_OPEN)
        blame = blames_provider(kind)
        if blame is None:
            return
        after = record_outcome(before, listed.breaker_policy, blame, now)
        state.breaker = after if after.phase is Phase.OPEN or after.failures else _CLOSED
        if after.phase is Phase.OPEN and outlet not in self._open:
            self._open.add(outlet)
            log.warning("an endpoint of %s keeps failing; its notifications wait", listed.id)
        elif after.phase is not Phase.OPEN and outlet in self._open:
            self._open.discard(outlet)
            log.info("an endpoint of %s answers again", listed.id)

    def _least_needed(self) -> str:
        """Returns the outlet that answered longest ago, if possible one that is not paused or hanging."""
        needed = self._open | self._hanging
        oldest = next(iter(self._states))
        return next((outlet for outlet in self._states if outlet not in needed), oldest)

    def _forget(self, outlet: str) -> None:
        del self._states[outlet]
        self._hanging.discard(outlet)
        self._answering.discard(outlet)
        self._open.discard(outlet)


def _adapt_slots(
    state: OutletState, kind: OutcomeKind, latency_ms: int, timed_out: bool, ceiling: int
) -> None:
    """Raises or lowers the slots of an outlet after an answer."""
    if timed_out:
        state.slots, state.was_quick = 1.0, False
        return
    if kind is OutcomeKind.THROTTLED:
        state.slots, state.was_quick = max(1.0, state.slots / 2), False
        return
    step = 1.0 if state.was_quick else 1.0 / state.slots
    if blames_provider(kind):
        state.slots = max(1.0, state.slots - _ERROR_COSTS * step)
        return
    usual_ms = state.usual_ms or latency_ms
    if latency_ms > min(max(_QUICK_MS, _SLOWER_THAN_USUAL * usual_ms), _SLOW_MS):
        state.slots, state.was_quick = max(1.0, state.slots * 0.9), False
    else:
        state.slots = min(float(ceiling), state.slots + step)
    state.usual_ms = min(float(latency_ms), usual_ms * 1.01)
