"""Opens the breaker of a provider that accepts messages while its receipts report failures or are missing.

The store counts per hour how many messages were sent, delivered and bounced. The leading worker reads these
counts every minute and keeps the increases in memory. A new leader starts without them, so it needs a whole
window before it can find missing receipts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from homing.core.ports.stores import Backend
from homing.core.routing.receipt_health import (
    ReceiptCounts,
    ReceiptHealthPolicy,
    bounce_rate_problem,
    may_have_stopped,
    missing_receipts_problem,
)
from homing.core.statistics import RollUp
from homing.engine.delivery.breakers import Breakers
from homing.engine.provider_roster import ProviderRoster

_HOUR_MS = 3_600_000

_DAY_MS = 24 * _HOUR_MS

_NOTHING = ReceiptCounts()


_Sums = dict[tuple[int, str], ReceiptCounts]
"""(start of the hour in milliseconds, provider) → counts of that hour so far."""


class ReceiptMonitor:
    """Checks the receipts of all providers. Part of upkeep, so only one worker at a time runs it."""

    def __init__(
        self, *, backend: Backend, roster: ProviderRoster, breakers: Breakers, policy: ReceiptHealthPolicy
    ) -> None:
        self._backend = backend
        self._roster = roster
        self._breakers = breakers
        self._policy = policy
        self._last_sums: _Sums | None = None
        self._checked_at = 0
        self._began_at = 0
        self._added: deque[tuple[int, Mapping[str, ReceiptCounts]]] = deque()
        """Increases found by each check, by provider, with the time of the previous check."""

    async def check(self) -> None:
        """Checks all providers once, and opens the breakers of those with bad or missing receipts."""
        if not self._policy.pause_ms:
            return
        now = await self._backend.now_ms()
        await self._record_new(now)
        await self._breakers.refresh(at_once=True)
        for listed in self._roster:
            why = await self._find_problem(listed.id, now)
            if why is not None:
                await self._breakers.trip(listed.id, why, self._policy.pause_ms)

    async def _record_new(self, now: int) -> None:
        since_ms = now - self._checked_at if self._last_sums is not None else 0
        # After a long gap, another worker led meanwhile, and the times of the new counts are unknown.
        if since_ms > self._policy.window_ms:
            self._last_sums = None
        sums = _sums(await self._backend.roll_ups(None, since_ms=max(0, since_ms)))
        if self._last_sums is None:
            self._added.clear()
            self._began_at = now
        else:
            self._added.append((self._checked_at, _new(sums, self._last_sums, self._checked_at)))
        self._last_sums, self._checked_at = sums, now
        longest_ms = max(self._policy.window_ms, self._policy.stopped_after_ms)
        while self._added and self._added[0][0] < now - longest_ms:
            self._added.popleft()

    async def _find_problem(self, provider: str, now: int) -> str | None:
        policy, changed_at = self._policy, self._breakers.state(provider).changed_at
        why = bounce_rate_problem(self._since(provider, max(now - policy.window_ms, changed_at)), policy)
        if why is not None:
            return why
        silence_from = now - policy.stopped_after_ms
        if max(self._began_at, changed_at) > silence_from:
            return None  # not observed for long enough, or the breaker closed only recently
        window = self._since(provider, silence_from)
        if not may_have_stopped(window, policy):
            return None
        return missing_receipts_problem(window, await self._before(provider, silence_from, now), policy)

    def _since(self, provider: str, at: int) -> ReceiptCounts:
        total = _NOTHING
        for checked_at, added in self._added:
            if checked_at >= at:
                total = total.plus(added.get(provider, _NOTHING))
        return total

    async def _before(self, provider: str, until: int, now: int) -> ReceiptCounts:
        """Returns the counts of the hours that ended by `until`, within the 24 hours before it."""
        total = _NOTHING
        for (hour, name), traffic in _sums(
            await self._backend.roll_ups(None, since_ms=_DAY_MS + now - until)
        ).items():
            if name == provider and hour + _HOUR_MS <= until:
                total = total.plus(traffic)
        return total


def _sums(roll_ups: Iterable[RollUp]) -> _Sums:
    sums: _Sums = {}
    for one in roll_ups:
        key = (round(one.hour_at.timestamp() * 1000), one.provider)
        traffic = ReceiptCounts(one.sent, one.delivered, one.bounced)
        sums[key] = sums.get(key, _NOTHING).plus(traffic)
    return sums


def _new(sums: _Sums, seen: _Sums, checked_at: int) -> dict[str, ReceiptCounts]:
    """Returns by how much the counts have increased since the last check, by provider.

    Hours that had ended by the last check are skipped.
    """
    added: dict[str, ReceiptCounts] = {}
    for (hour, provider), traffic in sums.items():
        if hour + _HOUR_MS <= checked_at:
            continue
        more = traffic.minus(seen.get((hour, provider), _NOTHING))
        added[provider] = added.get(provider, _NOTHING).plus(more)
    return added
