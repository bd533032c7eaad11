"""Tokens of shared rate limit buckets, on a controlled clock."""

from __future__ import annotations

import asyncio

from homing.core.ports.stores import TokenGrant, TokenRequest
from homing.core.routing.rate_limits import RateLimit, TokenBucket, full_bucket, take_from_bucket
from homing.engine.rate_tokens import RateTokens
from homing.testing.manual_clock import ManualClock


class Buckets:
    """The buckets of a store, and the number of calls for one bucket. No other part of a store is used."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}
        self.calls = 0

    async def take(self, key: str, limit: RateLimit, want: int, reserve: int = 0) -> TokenGrant:
        self.calls += 1
        await asyncio.sleep(0)
        now = self._clock.now_ms()
        bucket = self._buckets.get(key) or full_bucket(limit, now)
        self._buckets[key], granted, wait_ms = take_from_bucket(bucket, limit, now, want, reserve)
        return TokenGrant(granted, wait_ms, self._buckets[key].tokens)

    async def take_many(self, wants: dict[str, TokenRequest]) -> dict[str, TokenGrant]:
        return {key: await self.take(key, want.limit, want.tokens) for key, want in wants.items()}


def tokens(valid_ms: int | None = None) -> tuple[RateTokens, Buckets, ManualClock]:
    clock = ManualClock()
    buckets = Buckets(clock)
    return RateTokens(buckets, clock, valid_ms=valid_ms), buckets, clock  # type: ignore[arg-type]


async def test_tokens_are_fetched_in_chunks_of_a_quarter_of_a_second() -> None:
    held, buckets, _ = tokens()
    waits = [await held.take("k", RateLimit(100, 200)) for _ in range(50)]
    assert (set(waits), buckets.calls) == ({0}, 2)


async def test_concurrent_callers_share_one_fetch() -> None:
    held, buckets, _ = tokens()
    waits = await asyncio.gather(*(held.take("k", RateLimit(100, 200)) for _ in range(25)))
    assert (set(waits), buckets.calls) == ({0}, 1)


async def test_an_empty_bucket_is_not_asked_again_before_it_can_have_a_token() -> None:
    held, buckets, clock = tokens()
    limit = RateLimit(2, 1)
    assert await held.take("k", limit, 1) == 0
    assert await held.take("k", limit, 1) == 500
    clock.advance(200)
    assert await held.take("k", limit, 1) == 300
    assert buckets.calls == 1
    clock.advance(300)
    assert await held.take("k", limit, 1) == 0


async def test_unused_tokens_are_discarded_after_a_while() -> None:
    held, buckets, clock = tokens(valid_ms=1_000)
    limit = RateLimit(100, 100)
    assert await held.hold("k", limit, 8) == 8
    held.spend("k", 3)
    clock.advance(999)
    assert await held.hold("k", limit, 8) == 5
    clock.advance(1)
    assert await held.hold("k", limit, 8) == 8
    assert buckets.calls == 2


async def test_unused_tokens_are_given_back_after_a_while() -> None:
    held, buckets, clock = tokens(valid_ms=1_000)
    limit = RateLimit(0.001, 10)
    assert await held.hold("k", limit, 1, 9) == 1
    clock.advance(999)
    await held.give_back_unused()
    assert (await buckets.take("k", limit, 0)).left < 9.1
    clock.advance(1)
    await held.give_back_unused()
    assert (await buckets.take("k", limit, 0)).left == 10
    assert (held.level("k", limit), held.wait_ms("k")) == (10, 0)
    assert await held.hold("k", limit, 1, 9) == 1, "it can be taken again"


async def test_as_many_tokens_are_expected_as_a_fetch_would_take() -> None:
    held, buckets, clock = tokens(valid_ms=1_000)
    limit = RateLimit(8, 16)
    assert held.expect("k", limit, 5, 2) == 2, "a fetch takes at most a quarter of a second's worth"
    assert await held.take_shared("k", limit, 13) == (13, 0)
    assert held.expect("k", limit, 5, 2) == 1
    assert await held.take_shared("k", limit, 2) == (2, 0)
    assert held.expect("k", limit, 5, 2) == 0
    clock.advance(249)
    assert held.expect("k", limit, 5, 2) == 0
    clock.advance(1)
    assert held.expect("k", limit, 5, 2) == 1
    assert buckets.calls == 2


async def test_a_bucket_is_in_use_for_a_while_after_its_last_token_was_used() -> None:
    held, _, clock = tokens(valid_ms=1_000)
    limit = RateLimit(8, 16)
    assert not held.in_use("k")
    await held.hold("k", limit, 1)
    assert held.in_use("k")
    clock.advance(500)
    held.spend("k")
    clock.advance(999)
    assert held.in_use("k")
    clock.advance(1)
    assert not held.in_use("k")


async def test_tokens_of_a_batch_that_are_missing_wait_one_after_the_other() -> None:
    held, _, _ = tokens()
    wants = {"a": TokenRequest(RateLimit(2, 2), 4), "b": TokenRequest(RateLimit(1, 1), 1)}
    assert await held.take_many(wants) == {"a": [0, 0, 500, 1000], "b": [0]}
    await held.give_back({"b": (RateLimit(1, 1), 1)})
    assert await held.take_many({"b": TokenRequest(RateLimit(1, 1), 1)}) == {"b": [0]}


async def test_a_reserve_stays_in_the_bucket_for_urgent_callers() -> None:
    held, _, clock = tokens()
    limit = RateLimit(2, 3)
    waits = [await held.take("k", limit, 1, 1) for _ in range(3)]
    assert waits == [0, 0, 500]
    assert held.level("k", limit) == 1
    assert await held.take_shared("k", limit) == (1, 0)
    assert await held.take_shared("k", limit) == (0, 500)
    clock.advance(500)
    assert held.level("k", limit) == 1
    assert await held.take("k", limit, 1, 1) == 500


async def test_an_unknown_bucket_counts_as_full_and_missing_tokens_are_counted() -> None:
    held, _, _ = tokens()
    limit = RateLimit(100, 100)
    assert (held.level("k", limit), held.spend("k", 3)) == (100, 3)
    await held.hold("k", limit, 8)
    assert (held.spend("k", 5), held.spend("k", 5)) == (0, 2)


async def test_several_tokens_are_taken_with_one_call() -> None:
    held, buckets, _ = tokens()
    limit = RateLimit(10, 8)
    assert await held.take_shared("k", limit, 5) == (5, 0)
    assert await held.take_shared("k", limit, 5) == (3, 100)
    assert buckets.calls == 2


async def test_tokens_above_the_reserve_are_taken_as_far_as_they_go() -> None:
    held, _, clock = tokens()
    limit = RateLimit(10, 8)
    assert await held.take_up_to("k", limit, 5, 1) == (5, 0)
    assert await held.take_up_to("k", limit, 5, 1) == (2, 100)
    assert await held.take_up_to("k", limit, 1, 1) == (0, 100)
    clock.advance(100)
    assert await held.take_up_to("k", limit, 1, 1) == (1, 0)
