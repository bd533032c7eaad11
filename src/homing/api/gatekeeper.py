"""Who is at the door, and whether they come too often."""

from __future__ import annotations

import asyncio
from math import ceil
from typing import Protocol

from msgspec import Struct

from homing.core.access import Caller
from homing.core.keys import PREFIX
from homing.core.limits import RateLimit
from homing.core.ports import Clock, Shared
from homing.engine.keychain import Keychain
from homing.engine.tenants import Tenants

_LONGEST = 8_192
_MOST_CALLERS = 10_000
_LEASES_PER_SECOND = 4
"""How often a process fetches tokens of a caller at most, however many requests that is."""


class ReadsTokens(Protocol):
    """Verifies what is not a key (`api.tokens`)."""

    def caller(self, token: str) -> Caller | None: ...


class _Allowance(Struct):
    """What one caller may still do in this process."""

    tokens: int = 0
    shut_until_ms: int = 0
    """All tokens are gone until then: nobody has to be asked."""
    fetching: asyncio.Future[None] | None = None


class Gate:
    """A `Gatekeeper`: API keys, and tokens where there are issuers in the settings."""

    def __init__(
        self,
        *,
        keys: Keychain,
        tenants: Tenants,
        shared: Shared,
        clock: Clock,
        rate_per_second: float = 0,
        rate_burst: int = 0,
        tokens: ReadsTokens | None = None,
    ) -> None:
        self._keys = keys
        self._tenants = tenants
        self._shared = shared
        self._clock = clock
        self._rate = rate_per_second
        """Of a key that has none of its own; 0: no limit."""
        self._burst = rate_burst
        """How many of these at once; 0, and for keys with their own rate: as many as in two seconds."""
        self._tokens = tokens
        self._allowances: dict[str, _Allowance] = {}

    async def caller(self, authorization: str) -> Caller | None:
        """From `Bearer KEY` or `Bearer TOKEN`; None: it is nobody's."""
        kind, _, given = authorization.partition(" ")
        if kind.lower() != "bearer" or len(given) > _LONGEST:
            return None
        given = given.strip(" ")
        if given.startswith(PREFIX):
            return await self._keys.verify(given)
        found = self._tokens.caller(given) if self._tokens is not None and given else None
        if found is None or not await self._tenants.enabled(found.tenant):
            return None
        return found

    async def admit(self, caller: Caller) -> int:
        """Counts one request of the caller; 0: come in, else in how many milliseconds to come again."""
        rate = self._rate if caller.rate_per_second is None else caller.rate_per_second
        if not rate:
            return 0
        allowance = self._allowance(caller.rate_key)
        while not allowance.tokens:
            if (wait_ms := allowance.shut_until_ms - self._clock.monotonic_ms()) > 0:
                return wait_ms
            await self._fetch(allowance, caller.rate_key, rate)
        allowance.tokens -= 1
        return 0

    async def _fetch(self, allowance: _Allowance, key: str, rate: float) -> None:
        """Leases some of the bucket that all processes share; those who come meanwhile wait for it."""
        if allowance.fetching is not None:
            await asyncio.shield(allowance.fetching)
            return
        allowance.fetching = asyncio.get_running_loop().create_future()
        try:
            own = 0 if rate != self._rate else self._burst
            limit = RateLimit(rate, own or max(1, ceil(2 * rate)))
            taken = await self._shared.take(f"caller:{key}", limit, max(1, int(rate / _LEASES_PER_SECOND)))
            allowance.tokens += taken.granted
            if not taken.granted:
                allowance.shut_until_ms = self._clock.monotonic_ms() + max(1, taken.wait_ms)
        finally:
            allowance.fetching.set_result(None)
            allowance.fetching = None

    def _allowance(self, key: str) -> _Allowance:
        found = self._allowances.get(key)
        if found is None:
            if len(self._allowances) >= _MOST_CALLERS:
                del self._allowances[next(iter(self._allowances))]
            found = self._allowances[key] = _Allowance()
        return found
