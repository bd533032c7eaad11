"""Opens the breaker of a provider that takes everything while its receipts turn bad, or stop.

What was sent and heard is in the hourly sums, which every store keeps with each change. The one worker that
leads looks at them every minute and remembers what each look added; a new leader starts with an empty memory
and needs a whole window again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from homing.core.model import RollUp
from homing.core.ports import Backend
from homing.core.receipt_health import ReceiptPolicy, Traffic, may_have_stopped, stopped, turned_bad
from homing.engine.breakers import Breakers
from homing.engine.roster import Roster

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_NOTHING = Traffic()

_Sums = dict[tuple[int, str], Traffic]
"""(hour, provider) → its traffic so far."""


class ReceiptWatch:
    """Part of upkeep: one worker at a time."""

    def __init__(
        self, *, backend: Backend, roster: Roster, breakers: Breakers, policy: ReceiptPolicy
    ) -> None:
        self._backend = backend
        self._roster = roster
        self._breakers = breakers
        self._policy = policy
        self._seen: _Sums | None = None
        self._looked_at = 0
        self._began_at = 0
        self._added: deque[tuple[int, Mapping[str, Traffic]]] = deque()
        """What each look found to be new, by the time of the look before it."""

    async def look(self) -> None:
        """One look at all providers."""
        if not self._policy.pause_ms:
            return
        now = await self._backend.now_ms()
        await self._remember(now)
        await self._breakers.refresh(at_once=True)
        for listed in self._roster:
            why = await self._verdict(listed.id, now)
            if why is not None:
                await self._breakers.trip(listed.id, why, self._policy.pause_ms)

    async def _remember(self, now: int) -> None:
        since_ms = now - self._looked_at if self._seen is not None else 0
        if since_ms > self._policy.window_ms:  # somebody else led: nobody knows when it came since
            self._seen = None
        sums = _sums(await self._backend.roll_ups(None, since_ms=max(0, since_ms)))
        if self._seen is None:
            self._added.clear()
            self._began_at = now
        else:
            self._added.append((self._looked_at, _new(sums, self._seen, self._looked_at)))
        self._seen, self._looked_at = sums, now
        longest_ms = max(self._policy.window_ms, self._policy.stopped_after_ms)
        while self._added and self._added[0][0] < now - longest_ms:
            self._added.popleft()

    async def _verdict(self, provider: str, now: int) -> str | None:
        policy, changed_at = self._policy, self._breakers.state(provider).changed_at
        why = turned_bad(self._since(provider, max(now - policy.window_ms, changed_at)), policy)
        if why is not None:
            return why
        silence_from = now - policy.stopped_after_ms
        if max(self._began_at, changed_at) > silence_from:
            return None  # not seen for long enough, or only back for a while
        window = self._since(provider, silence_from)
        if not may_have_stopped(window, policy):
            return None
        return stopped(window, await self._before(provider, silence_from, now), policy)

    def _since(self, provider: str, at: int) -> Traffic:
        total = _NOTHING
        for looked_at, added in self._added:
            if looked_at >= at:
                total = total.plus(added.get(provider, _NOTHING))
        return total

    async def _before(self, provider: str, until: int, now: int) -> Traffic:
        """The traffic of the hours of the day before that ended by then."""
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
        traffic = Traffic(one.sent, one.delivered, one.bounced)
        sums[key] = sums.get(key, _NOTHING).plus(traffic)
    return sums


def _new(sums: _Sums, seen: _Sums, looked_at: int) -> dict[str, Traffic]:
    """What was added since, by provider. Nothing is added to an hour that was over by then."""
    added: dict[str, Traffic] = {}
    for (hour, provider), traffic in sums.items():
        if hour + _HOUR_MS <= looked_at:
            continue
        more = traffic.minus(seen.get((hour, provider), _NOTHING))
        added[provider] = added.get(provider, _NOTHING).plus(more)
    return added
