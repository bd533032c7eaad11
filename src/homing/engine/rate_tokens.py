"""Takes rate limit tokens from the buckets that all processes share.

Every part of a process that is subject to a rate limit takes its tokens here: workers and synchronous sends
for providers, the pre-send check for recipients and tenants, and the REST service for its callers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from math import ceil, inf

from msgspec import Struct

from homing.core.ports.runtime import Clock
from homing.core.ports.stores import SharedState, TokenGrant, TokenRequest
from homing.core.routing.rate_limits import RateLimit

TOKENS_VALID_MS = 1_000
"""Time after which a worker gives unused tokens of a provider back, because other workers may need them."""

_FETCHES_PER_SECOND = 4
"""Divisor of a rate: one fetch takes at most a quarter of a second's worth of tokens, but at least one."""

_EPSILON = 1e-9
"""Rounding tolerance: a token counts as whole if at most this much is missing."""

_MAX_BUCKETS = 10_000
"""Maximum number of buckets whose tokens are kept. Tokens of the oldest bucket are discarded."""

_MAX_TURN_MS = 3_600_000
"""Longest wait for other claims of the same bucket, one hour.

The wait is bounded, because the limit may be raised while the claims wait.
"""

_MAX_TURNS = 100_000


class _Held(Struct):
    """Tokens of one bucket that this process took and has not used yet."""

    left: int = 0
    limit: RateLimit | None = None
    """Limit of the bucket at the last fetch. None before the first one."""
    until_ms: int = 0
    """Monotonic time in milliseconds from which on unused tokens are not used any more."""
    used_until_ms: int = 0
    """Monotonic time until which the bucket counts as in use. See `in_use`."""
    empty_until_ms: int = 0
    """Monotonic time until which the shared bucket is known to be empty. Until then, nothing is fetched."""
    level: float = inf
    """Tokens in the shared bucket at `level_ms`, by the last fetch. Infinite before the first one."""
    level_ms: int = 0
    fetching: asyncio.Future[None] | None = None
    """Future that is done when the fetch in progress ends. None if no fetch is in progress."""


class RateTokens:
    """Tokens of shared buckets, fetched in small chunks so that few requests need a call to the store.

    If `valid_ms` is None, unused tokens are kept until they are used.
    """

    def __init__(self, shared: SharedState, clock: Clock, *, valid_ms: int | None = None) -> None:
        self._shared = shared
        self._clock = clock
        self._valid_ms = valid_ms
        self._held: dict[str, _Held] = {}
        self._turns: dict[str, int] = {}

    async def hold(self, key: str, limit: RateLimit, want: int | None = None, reserve: int = 0) -> int:
        """Returns how many tokens of a bucket are held. If there are none, takes a chunk of them first.

        The chunk has at most `want` tokens and leaves `reserve` in the bucket. If `want` is None, concurrent
        callers share one fetch.
        """
        held = self._bucket(key)
        now = self._clock.monotonic_ms()
        if self._valid_ms is not None and now >= held.until_ms:
            held.left = 0
        if held.left or now < held.empty_until_ms:
            return held.left
        if want is not None:
            await self._fetch(held, key, limit, want, reserve)
        elif held.fetching is not None:
            await asyncio.shield(held.fetching)
        else:
            held.fetching = asyncio.get_running_loop().create_future()
            try:
                await self._fetch(held, key, limit, limit.burst, reserve)
            finally:
                held.fetching.set_result(None)
                held.fetching = None
        return held.left

    async def _fetch(self, held: _Held, key: str, limit: RateLimit, want: int, reserve: int) -> None:
        began_ms = self._clock.monotonic_ms()
        taken = await self._shared.take(key, limit, _chunk(limit, want), reserve)
        held.limit = limit
        held.left += taken.granted
        held.until_ms = began_ms + (self._valid_ms or 0)
        held.level, held.level_ms = taken.left, began_ms
        if taken.wait_ms or not taken.granted:
            held.empty_until_ms = self._clock.monotonic_ms() + max(1, taken.wait_ms)

    def spend(self, key: str, number: int = 1) -> int:
        """Uses tokens that are held. Returns how many of `number` are missing."""
        held = self._held.get(key)
        if held is None:
            return number
        used = min(held.left, number)
        held.left -= used
        self._note_use(held)
        return number - used

    def in_use(self, key: str) -> bool:
        """Returns True if tokens of the bucket are held, or were used within the last `valid_ms`."""
        held = self._held.get(key)
        return held is not None and (held.left > 0 or self._clock.monotonic_ms() < held.used_until_ms)

    def expect(self, key: str, limit: RateLimit, want: int, reserve: int = 0) -> int:
        """Returns how many tokens `hold` would probably take now, without taking any.

        Other processes may have taken some since the last fetch.
        """
        return max(0, min(_chunk(limit, want), int(self.level(key, limit) - reserve + _EPSILON)))

    async def give_back_unused(self) -> None:
        """Returns tokens that were held for `valid_ms` without being used to their shared buckets."""
        if self._valid_ms is None:
            return
        now, unused = self._clock.monotonic_ms(), dict[str, tuple[RateLimit, int]]()
        for key, held in self._held.items():
            if held.left and held.limit is not None and now >= held.until_ms:
                unused[key] = (held.limit, held.left)
                held.left = 0
        if unused:
            for key, taken in (await self.give_back(unused)).items():
                held = self._bucket(key)
                held.level, held.level_ms, held.empty_until_ms = taken.left, now, 0

    def level(self, key: str, limit: RateLimit) -> float:
        """Returns an estimate of the number of tokens in the shared bucket, from the last fetch.

        A bucket from which nothing was fetched yet counts as full.
        """
        held = self._held.get(key)
        if held is None:
            return float(limit.burst)
        passed_ms = max(0, self._clock.monotonic_ms() - held.level_ms)
        return min(float(limit.burst), held.level + passed_ms * limit.per_second / 1000)

    async def take_shared(self, key: str, limit: RateLimit, number: int = 1) -> tuple[int, int]:
        """Takes tokens from the shared bucket, even the last ones, with one call.

        Returns how many of `number` were taken, and the milliseconds until the next one if some are missing.
        """
        held, began_ms = self._bucket(key), self._clock.monotonic_ms()
        taken = await self._shared.take(key, limit, number)
        held.level, held.level_ms = taken.left, began_ms
        self._note_use(held)
        return taken.granted, 0 if taken.granted >= number else max(1, taken.wait_ms)

    async def take_up_to(self, key: str, limit: RateLimit, number: int, reserve: int = 0) -> tuple[int, int]:
        """Takes tokens above the reserve, those that are held first.

        Returns how many of `number` were taken, and the milliseconds until the next one if some are missing.
        """
        missing = number
        while missing:
            if await self.hold(key, limit, missing, reserve):
                missing = self.spend(key, missing)
            elif wait_ms := self.wait_ms(key):
                return number - missing, wait_ms
        return number, 0

    def wait_ms(self, key: str) -> int:
        """Returns the milliseconds until the shared bucket has another token. 0 if it may have one now."""
        held = self._held.get(key)
        return 0 if held is None else max(0, held.empty_until_ms - self._clock.monotonic_ms())

    async def take(self, key: str, limit: RateLimit, want: int | None = None, reserve: int = 0) -> int:
        """Takes one token above the reserve.

        Returns 0, or the milliseconds until the next one if none is left.
        """
        while not await self.hold(key, limit, want, reserve):
            if wait_ms := self.wait_ms(key):
                return wait_ms
        self.spend(key)
        return 0

    async def take_many(self, wants: Mapping[str, TokenRequest]) -> dict[str, list[int]]:
        """Takes tokens from many buckets in one transaction, without keeping any.

        Returns, for each bucket, the wait in milliseconds of each requested token. The wait is 0 for tokens
        that were taken. The others wait one after the other, each until one more token is available.
        """
        found: dict[str, list[int]] = {}
        for key, taken in (await self._shared.take_many(wants)).items():
            limit, tokens = wants[key].limit, wants[key].tokens
            late = range(tokens - taken.granted)
            found[key] = [0] * taken.granted + [self._turn_ms(key, limit, taken.wait_ms) for _ in late]
        return found

    async def give_back(self, unused: Mapping[str, tuple[RateLimit, int]]) -> dict[str, TokenGrant]:
        """Returns unused tokens to their shared buckets. Returns the state of the buckets afterwards."""
        return await self._shared.take_many(
            {key: TokenRequest(limit, -number) for key, (limit, number) in unused.items()}
        )

    def _note_use(self, held: _Held) -> None:
        held.used_until_ms = self._clock.monotonic_ms() + (self._valid_ms or 0)

    def _bucket(self, key: str) -> _Held:
        found = self._held.get(key)
        if found is None:
            if len(self._held) >= _MAX_BUCKETS:
                del self._held[next(iter(self._held))]
            found = self._held[key] = _Held()
        return found

    def _turn_ms(self, key: str, limit: RateLimit, wait_ms: int) -> int:
        now = self._clock.monotonic_ms()
        soonest = now + max(1, wait_ms)
        turn = soonest
        if key in self._turns:
            turn = max(soonest, self._turns[key] + ceil(1000 / limit.per_second))
            turn = min(turn, max(soonest, now + _MAX_TURN_MS))
        if len(self._turns) >= _MAX_TURNS:
            self._turns = {key: at for key, at in self._turns.items() if at > now}
        if len(self._turns) >= _MAX_TURNS:
            self._turns.clear()  # spreading out the waits is only an optimization
        self._turns[key] = turn
        return turn - now


def _chunk(limit: RateLimit, want: int) -> int:
    """Returns how many tokens one fetch takes at most."""
    return max(1, min(want, limit.burst, int(limit.per_second / _FETCHES_PER_SECOND)))
