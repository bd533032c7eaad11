"""Authenticates callers by API key or token, and enforces their rate limits."""

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

_MAX_CREDENTIAL_CHARACTERS = 8_192
_MAX_CALLERS = 10_000
_FETCHES_PER_SECOND = 4
"""Maximum number of times per second that a process fetches rate-limit tokens for one caller."""


class ReadsTokens(Protocol):
    """Verifies tokens that are not API keys. Implemented in `api.tokens`."""

    def caller(self, token: str) -> Caller | None:
        """Returns the token's caller, or None if the token is not valid."""


class _Allowance(Struct):
    """Rate-limit tokens of one caller that this process has fetched."""

    tokens: int = 0
    empty_until_ms: int = 0
    """Monotonic time until which the shared bucket is known to be empty, so that it need not be asked."""
    fetching: asyncio.Future[None] | None = None
    """Done when the fetch in progress ends. None if there is none."""


class Gate:
    """A `Gatekeeper` for API keys and, if the settings name issuers, for tokens."""

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
        """Rate limit of callers that have none of their own. 0 means no limit."""
        self._burst = rate_burst
        """Bucket size for the default rate. If 0, and for keys with their own rate, two seconds' worth of
        requests.
        """
        self._tokens = tokens
        self._allowances: dict[str, _Allowance] = {}

    async def caller(self, authorization: str) -> Caller | None:
        """Returns the caller of `Bearer KEY` or `Bearer TOKEN`, or None if the credentials are not valid."""
        scheme, _, credential = authorization.partition(" ")
        if scheme.lower() != "bearer" or len(credential) > _MAX_CREDENTIAL_CHARACTERS:
            return None
        credential = credential.strip(" ")
        if credential.startswith(PREFIX):
            return await self._keys.verify(credential)
        found = self._tokens.caller(credential) if self._tokens is not None and credential else None
        if found is None or not await self._tenants.enabled(found.tenant):
            return None
        return found

    async def admit(self, caller: Caller) -> int:
        """Counts one request. Returns 0 if it is within the rate limit, else the milliseconds to wait."""
        rate = self._rate if caller.rate_per_second is None else caller.rate_per_second
        if not rate:
            return 0
        allowance = self._allowance(caller.rate_key)
        while not allowance.tokens:
            if (wait_ms := allowance.empty_until_ms - self._clock.monotonic_ms()) > 0:
                return wait_ms
            await self._fetch(allowance, caller.rate_key, rate)
        allowance.tokens -= 1
        return 0

    async def _fetch(self, allowance: _Allowance, key: str, rate: float) -> None:
        """Takes tokens from the bucket that all processes share. Concurrent callers share one fetch."""
        if allowance.fetching is not None:
            await asyncio.shield(allowance.fetching)
            return
        allowance.fetching = asyncio.get_running_loop().create_future()
        try:
            burst = 0 if rate != self._rate else self._burst
            limit = RateLimit(rate, burst or max(1, ceil(2 * rate)))
            taken = await self._shared.take(f"caller:{key}", limit, max(1, int(rate / _FETCHES_PER_SECOND)))
            allowance.tokens += taken.granted
            if not taken.granted:
                allowance.empty_until_ms = self._clock.monotonic_ms() + max(1, taken.wait_ms)
        finally:
            allowance.fetching.set_result(None)
            allowance.fetching = None

    def _allowance(self, key: str) -> _Allowance:
        found = self._allowances.get(key)
        if found is None:
            if len(self._allowances) >= _MAX_CALLERS:
                del self._allowances[next(iter(self._allowances))]
            found = self._allowances[key] = _Allowance()
        return found
