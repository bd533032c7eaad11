"""This worker's view of all circuit breakers, synchronized with other workers through the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from homing.core.errors import StoreError
from homing.core.notifications import Channel, Mode, OutcomeKind
from homing.core.ports.observers import NULL_OBSERVER, Observer
from homing.core.ports.runtime import Clock
from homing.core.ports.stores import Backend
from homing.core.retry.policy import PolicyBook
from homing.core.routing.breaker import (
    Breaker,
    BreakerGate,
    Phase,
    begin_trial,
    blames_provider,
    check_gate,
    force_phase,
    open_breaker,
    phase_now,
    ramp_per_second,
    record_health_check,
    record_outcome,
    release_expired,
    reopens_at,
)
from homing.core.routing.fair_share import reserve_of
from homing.core.routing.rate_limits import RateLimit, TokenBucket, full_bucket, take_from_bucket
from homing.engine.health_checks import find_problem
from homing.engine.provider_roster import Listed, ProviderRoster
from homing.engine.store_clock import StoreClock
from homing.engine.upkeep.alerts import Alerts

log = logging.getLogger("homing.breakers")


_REFRESH_MS = 1_000
"""Time after which the breakers are read from the store again."""

_STALE_MS = 5_000
"""Age from which on breaker states and the store's time are too old to start an attempt."""

"""Time that a provider's health check may take."""

_CHECK_EARLY_MS = 50
"""A health check may be this much early, because the rounds of checks are not exactly regular."""

_MIN_WAIT_MS = 1_000
"""Shortest postponement of a notification whose provider is paused."""

_FORCED_WAIT_MS = 30_000
"""Postponement of a notification whose provider is paused until an operator releases its breaker."""

_NO_LIMIT = 1_000_000

_NEW = Breaker()

# Module constants: looking up an enum member for every attempt is slow.
_CLOSED, _ACCEPTED = Phase.CLOSED, OutcomeKind.ACCEPTED


class Breakers:
    """Reads and updates the breakers."""

    def __init__(
        self,
        *,
        roster: ProviderRoster,
        backend: Backend,
        clock: Clock,
        store_clock: StoreClock,
        alerts: Alerts,
        worker: str,
        observer: Observer = NULL_OBSERVER,
        wake_worker: Callable[[], None] = lambda: None,
    ) -> None:
        """`wake_worker` makes the worker of this process claim, because a provider may be tried again."""
        self._roster = roster
        self._known = frozenset(listed.id for listed in roster)
        self._backend = backend
        self._clock = clock
        self._store_clock = store_clock
        self._alerts = alerts
        self._worker = worker
        self._observer = observer
        self._wake_worker = wake_worker
        self._states: dict[str, Breaker] = {}
        """The breakers as this worker sees them, with its own changes that are not stored yet."""
        self._stored: dict[str, Breaker] = {}
        """The breakers as they were last read or written."""
        self._reads = 0
        """Number of reads that have begun."""
        self._newest_read = 0
        """Number of the latest read that has finished."""
        self._written: dict[str, int] = {}
        """Provider → number of reads that had begun when this worker last wrote the breaker."""
        self._refreshed_ms: int | None = None
        self._my_trials: set[str] = set()
        self._ramps: dict[str, TokenBucket] = {}
        self.claims_once = False
        """True in a run that claims only once. It may start a full burst at a recovering provider: a worker's
        first start there is reserved for priority, and the others come while it runs."""
        self._unshared: set[str] = set()
        self._checked_ms: dict[str, int] = {}
        """Provider → monotonic time of its last health check, or of the round in which none was needed."""

    async def refresh(self, *, at_once: bool = False) -> None:
        """Stores this worker's breaker changes, and reads the changes of other workers.

        Reads at most once per second, unless `at_once` is set or this worker had changes to store.
        """
        mono = self._clock.monotonic_ms()
        await self._alerts.flush()
        if self._unshared:
            await self._share()
        elif not at_once and self._refreshed_ms is not None and mono - self._refreshed_ms < _REFRESH_MS:
            return
        if at_once or self._refreshed_ms is None:
            await self._store_clock.refresh()
        self._reads += 1
        number = self._reads
        stored = await self._backend.breakers()
        self._refreshed_ms = mono
        for provider in {**self._stored, **stored}:
            theirs = stored.get(provider, _NEW)
            if self._is_news(provider, theirs, number):
                self._states[provider] = self._stored[provider] = theirs
                if theirs.trial_by != self._worker:
                    self._my_trials.discard(provider)
        self._newest_read = max(number, self._newest_read)

    def _is_news(self, provider: str, theirs: Breaker, read: int) -> bool:
        """Returns True if a breaker that was read replaces this worker's view of it.

        A higher version does. Another state without one means that the store has gone back to an earlier
        state, or that a read which began earlier has finished later. Only the former replaces the view.
        """
        mine = self._states.get(provider)
        if mine is None or theirs.version > mine.version:
            return True
        is_latest = read > max(self._newest_read, self._written.get(provider, 0))
        return is_latest and theirs != self._stored.get(provider, _NEW)

    def is_stale(self, mono_ms: int) -> bool:
        """Returns True if the known breaker states are too old to use, for example after a suspension."""
        if self._refreshed_ms is None:
            return True
        return mono_ms - min(self._refreshed_ms, self._store_clock.synced_ms) > _STALE_MS

    async def try_refresh(self) -> None:
        """Refreshes the breakers at once. If the store is unavailable, keeps the last known states."""
        try:
            await self.refresh(at_once=True)
        except StoreError as error:
            log.info("cannot read the breakers, the last known states stay in use: %s", error)

    def state(self, provider: str) -> Breaker:
        """Returns the last known state of a breaker."""
        state = self._states.get(provider) or _NEW
        return release_expired(state, self._store_clock.now()) if state.forced_until else state

    def now(self) -> int:
        """Returns the store's time, by which the pauses of breakers are measured."""
        return self._store_clock.now()

    def phase(self, provider: str) -> Phase:
        """Returns the phase of a breaker that is in effect now."""
        return phase_now(self.state(provider), self._store_clock.now())

    def gate(self, provider: str) -> BreakerGate:
        """Returns whether the breaker allows attempts, one trial, or nothing."""
        return check_gate(self.state(provider), self._store_clock.now())

    def any_open(self) -> bool:
        """Returns True if the last known state of some breaker is open and under automatic control."""
        states = map(self.state, tuple(self._states))
        return any(state.phase is Phase.OPEN and not state.forced for state in states)

    def is_closed(self, provider: str) -> bool:
        """Returns True if the breaker is closed and not forced, which is the usual case."""
        state = self._states.get(provider)
        closed = state is None or (state.phase is _CLOSED and state.forced is None)
        return closed and provider in self._known

    def usable(self, provider: str) -> bool:
        """Returns True if an attempt may go to this provider now.

        That includes a trial that this worker has won.
        """
        state = self._states.get(provider)
        if provider not in self._known:
            return False
        if state is None or (state.phase is _CLOSED and state.forced is None):
            return True
        mine = provider in self._my_trials and self.state(provider).forced is None
        return mine or self.gate(provider) is BreakerGate.GO

    def may_take_new(self, provider: str) -> bool:
        """Returns True unless the last known state of the breaker blocks all attempts."""
        return self.gate(provider) is not BreakerGate.STOP

    def any_closed(self, channel: str) -> bool:
        """Returns True if the last known state of a breaker on the channel's route is closed."""
        states = (self.state(step.provider) for step in self._roster.route(Channel(channel)))
        return any(phase_now(state, self.now()) is Phase.CLOSED for state in states)

    def wait_ms(self, provider: str) -> int:
        """Returns for how long to postpone a notification whose provider is paused.

        That is until the breaker may allow a trial, at least one second, and 30 seconds if an operator must
        release the breaker. It is one second during a trial: most trials end at once, and the time until
        which one may run is only for workers that die.
        """
        state = self.state(provider)
        if state.forced is None and state.phase is Phase.HALF_OPEN:
            return _MIN_WAIT_MS
        at = reopens_at(state)
        return _FORCED_WAIT_MS if at is None else max(_MIN_WAIT_MS, at - self._store_clock.now())

    def ramp_capacity(self, provider: str) -> tuple[int, int]:
        """Returns how many attempts may start at a recovering provider now: of priority, and of other modes.

        The numbers are very large if the provider is not being ramped up.
        """
        if provider not in self._roster or (limit := self._ramp_limit(provider)) is None:
            return _NO_LIMIT, _NO_LIMIT
        starts = self._ramp(provider, 0)
        return starts, max(0, starts - reserve_of(Mode.PRIORITY, limit.burst))

    def spend_ramp(self, provider: str, starts: int) -> None:
        """Counts attempts started at a provider against its limit, if the provider is being ramped up."""
        if provider in self._roster:
            self._ramp(provider, starts)

    def _ramp_limit(self, provider: str) -> RateLimit | None:
        """Returns the rate of the ramp-up, or None if the provider is not being ramped up."""
        policy, now = self._roster[provider].breaker_policy, self._store_clock.now()
        rate = ramp_per_second(self.state(provider), policy, now)
        return None if rate is None else RateLimit(rate, max(1, int(rate / 4)))

    def _ramp(self, provider: str, spend: int) -> int:
        limit, now = self._ramp_limit(provider), self._store_clock.now()
        if limit is None:
            self._ramps.pop(provider, None)
            return _NO_LIMIT
        held = self._ramps.get(provider)
        if held is None:
            held = full_bucket(limit, now) if self.claims_once else TokenBucket(1.0, now)
        bucket, _, _ = take_from_bucket(held, limit, now, spend)
        self._ramps[provider] = bucket
        return int(bucket.tokens)

    async def try_trial(self, provider: str, trial_ms: int) -> bool:
        """Tries to win the single trial of a breaker. Returns True if this worker has won it."""
        mine = self.state(provider)
        if self.gate(provider) is not BreakerGate.TRIAL:
            return False
        begun = begin_trial(mine, self._worker, self._store_clock.now(), trial_ms)
        if not await self._backend.put_breaker(provider, begun):
            await self.refresh(at_once=True)
            return False
        self._adopt(provider, mine, begun)
        if not self.is_trial(provider, begun.version + 1):
            return False  # the call took so long that another worker has the trial
        self._my_trials.add(provider)
        log.info("breaker of %s is half open: one trial", provider)
        self._observer.breaker_changed(provider, begun.phase)
        return True

    def spend_trial(self, provider: str) -> int:
        """Hands a won trial to the calling attempt. Returns the breaker's version, or 0 if no trial was won.

        No other attempt goes to this provider until the trial has an outcome.
        """
        if provider not in self._my_trials:
            return 0
        self._my_trials.discard(provider)
        return self.state(provider).version

    def is_trial(self, provider: str, version: int) -> bool:
        """Returns True if the trial that this worker won at `version` still belongs to it."""
        state = self.state(provider)
        return state.phase is Phase.HALF_OPEN and state.trial_by == self._worker and state.version == version

    def record(self, provider: str, kind: OutcomeKind, *, trial: bool = False) -> None:
        """Records the outcome of an attempt. A change of phase is stored at the next refresh."""
        before = self.state(provider)
        if kind is _ACCEPTED and before.phase is _CLOSED and not before.failures:
            return
        listed = self._roster.get(provider)
        if listed is None:
            return
        if before.phase is Phase.HALF_OPEN and not (trial and before.trial_by == self._worker):
            return  # the attempt started before the breaker opened; only the trial counts
        after = record_outcome(before, listed.breaker_policy, blames_provider(kind), self._store_clock.now())
        if after is not before:
            self._states[provider] = after
        if after.phase is not before.phase:
            self._unshared.add(provider)
            log.warning("breaker of %s: %s → %s", provider, before.phase.value, after.phase.value)

    async def force(
        self, provider: str, phase: Phase | None, who: str, why: str = "", for_ms: int | None = None
    ) -> Breaker:
        """Forces a breaker open or closed for an operator, for a time or until it is released.

        A phase of None returns it to automatic control.
        """
        while True:
            await self.refresh(at_once=True)
            now = self._store_clock.now()
            forced = force_phase(self.state(provider), phase, who, now, why, for_ms)
            if await self._backend.put_breaker(provider, forced):
                self._replace(provider, forced)
                self._announce_forced(provider, phase, who, why)
                self._wake_worker()
                await self._alerts.flush()
                return self._states[provider]

    async def trip(self, provider: str, why: str, pause_ms: int) -> None:
        """Opens a closed breaker for `pause_ms`, because of receipts rather than outcomes of attempts.

        Does nothing if the settings turn the breaker off.
        """
        listed = self._roster.get(provider)
        if listed is not None and listed.breaker_policy.off:
            return
        before = self.state(provider)
        tripped = open_breaker(before, why, pause_ms, self._store_clock.now())
        if tripped is not before and await self._backend.put_breaker(provider, tripped):
            self._replace(provider, tripped)
            log.warning("breaker of %s is open: %s", provider, why)
            self._announce(provider, tripped)
            await self._alerts.flush()

    def health_every_ms(self) -> int:
        """Returns the shortest interval between health checks of any provider, in milliseconds."""
        return min((listed.breaker_policy.health_every_ms for listed in self._roster), default=30_000)

    async def check_health(self) -> None:
        """Runs the health checks of providers whose breaker is open and not forced, each at its own interval.

        After a successful check, the breaker allows its trial early.
        """
        mono = self._clock.monotonic_ms()
        await self.refresh(at_once=True)
        due = [listed for listed in self._roster if self._is_check_due(listed, mono)]
        self._checked_ms.update((listed.id, mono) for listed in due)
        await asyncio.gather(*(self._check(listed) for listed in due))

    async def check_replaced(self, providers: Iterable[str]) -> None:
        """Runs the health checks that are due, and those of providers that were just replaced.

        If the store is unavailable, the next round of checks does that.
        """
        for provider in providers:
            self._checked_ms.pop(provider, None)
        try:
            await self.check_health()
        except StoreError as error:
            log.warning("providers with an open breaker cannot be checked now: %s", error)

    def _is_check_due(self, listed: Listed, mono_ms: int) -> bool:
        checked_ms = self._checked_ms.get(listed.id)
        if checked_ms is None:
            return True
        return mono_ms - checked_ms >= listed.breaker_policy.health_every_ms - _CHECK_EARLY_MS

    async def _check(self, listed: Listed) -> None:
        state = self.state(listed.id)
        if (
            state.phase is not Phase.OPEN
            or state.forced
            or check_gate(state, self._store_clock.now()) is not BreakerGate.STOP
        ):
            return
        if problem := await find_problem(listed.check, listed.provider):
            log.info("health check of %s failed: %s", listed.id, problem)
            return
        better = record_health_check(state, self._store_clock.now())
        if better is not state and await self._backend.put_breaker(listed.id, better):
            self._replace(listed.id, better)
            self._wake_worker()

    async def _share(self) -> None:
        for provider in sorted(self._unshared):
            state = self.state(provider)
            shared = await self._backend.put_breaker(provider, state)
            self._unshared.discard(provider)
            if shared:
                self._adopt(provider, state, state)
                self._announce(provider, state)
            else:  # another worker or an operator changed the breaker: the next read replaces our state
                self._states[provider] = replace(state, version=-1)

    def _wrote(self, provider: str, breaker: Breaker) -> Breaker:
        """Returns a breaker that was just written, as it is stored."""
        stored = replace(breaker, version=breaker.version + 1)
        self._stored[provider], self._written[provider] = stored, self._reads
        return stored

    def _replace(self, provider: str, written: Breaker) -> None:
        """Replaces this worker's view by a state that was just stored.

        If the store's answer was slow, a newer state may have been read or written since. It is kept.
        """
        known = self._states.get(provider)
        if known is None or known.version <= written.version:
            self._states[provider] = self._wrote(provider, written)

    def _adopt(self, provider: str, before: Breaker, stored: Breaker) -> None:
        """Adopts a state that was just stored.

        A change of phase by this worker during the write is kept, and stored at the next refresh. Failures
        that it counted meanwhile are kept too. A state that was read during the write is not: the write has
        replaced it.
        """
        newer = self._states.get(provider)
        if newer is not None and newer.version > stored.version:
            return  # a newer state was read during the write
        was_read = newer is self._stored.get(provider)
        written = self._wrote(provider, stored)
        if newer is None or newer is before or was_read:
            self._states[provider] = written
        elif newer.phase is not before.phase:
            self._states[provider] = replace(newer, version=written.version)
            self._unshared.add(provider)
        else:
            failures = newer.failures if newer.phase is written.phase else written.failures
            self._states[provider] = replace(written, failures=failures)

    def _announce_forced(self, provider: str, phase: Phase | None, who: str, why: str) -> None:
        self._observer.breaker_changed(provider, phase or self.state(provider).phase)
        now = "returned to automatic control" if phase is None else f"forced {phase}"
        reason = f": {why}" if why else ""
        self._alerts.add(
            "BreakerForced",
            f"breaker of {provider} is {now} by {who}{reason}",
            provider=provider,
            phase=phase.value if phase is not None else "auto",
            who=who,
            why=why,
        )

    def _announce(self, provider: str, state: Breaker) -> None:
        self._observer.breaker_changed(provider, state.phase)
        self._alerts.add(
            "BreakerChanged",
            f"breaker of {provider} is {state.phase}" + (f": {state.why}" if state.why else ""),
            provider=provider,
            phase=state.phase.value,
        )
        for channel in self._roster[provider].channels:
            names = [step.provider for step in self._roster.route(channel)]
            if provider in names and not any(self.usable(name) for name in names):
                self._alerts.add(
                    "NoProviderLeft",
                    f"no provider of {channel} is available; its notifications wait",
                    channel=channel.value,
                )


def max_trial_ms(book: PolicyBook) -> int:
    """Returns the milliseconds after which a trial counts as lost, which is longer than any attempt takes."""
    return book.longest_timeout_ms + 5_000
