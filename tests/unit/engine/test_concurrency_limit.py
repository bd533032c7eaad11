"""Slots at a provider: first come, first served, and none is lost or given twice."""

from __future__ import annotations

import asyncio

import pytest

from homing.engine.delivery.concurrency_limit import ConcurrencyLimit, SlotWaits


async def run_ready_tasks() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def waiting(limit: ConcurrencyLimit, got: list[int], number: int) -> asyncio.Task[None]:
    async def wait() -> None:
        await limit.acquire()
        got.append(number)

    return asyncio.create_task(wait())


async def test_there_are_as_many_slots_as_the_limit() -> None:
    limit = ConcurrencyLimit(2)
    assert [limit.try_acquire() for _ in range(3)] == [True, True, False]
    limit.release()
    assert [limit.try_acquire() for _ in range(2)] == [True, False]


async def test_a_slot_is_free_until_it_is_taken() -> None:
    assert ConcurrencyLimit(1).has_free_slot
    assert not ConcurrencyLimit(0).has_free_slot


async def test_a_released_slot_goes_to_the_caller_that_waited_longest_and_to_no_other() -> None:
    limit = ConcurrencyLimit(1)
    await limit.acquire()
    got: list[int] = []
    tasks = [waiting(limit, got, number) for number in (1, 2, 3)]
    await run_ready_tasks()
    assert got == []
    for expected in ([1], [1, 2], [1, 2, 3]):
        limit.release()
        await run_ready_tasks()
        assert got == expected
        assert not limit.has_free_slot
    limit.release()
    assert limit.has_free_slot
    await asyncio.gather(*tasks)


async def test_tenants_take_turns_for_released_slots() -> None:
    limit = ConcurrencyLimit(1)
    await limit.acquire()
    got: list[str] = []

    async def wait(tenant: str) -> None:
        await limit.acquire(tenant)
        got.append(tenant)

    tasks = [asyncio.create_task(wait(tenant)) for tenant in "aaabc"]
    await run_ready_tasks()
    assert limit.is_waiting("a")
    for _ in tasks:
        limit.release()
        await run_ready_tasks()
    assert got == ["a", "b", "c", "a", "a"]
    assert not limit.is_waiting("a")


async def test_a_tenant_s_share_leaves_a_slot_for_another_tenant() -> None:
    limit = ConcurrencyLimit(4)
    assert [limit.try_acquire_share("a") for _ in range(4)] == [True, True, True, False]
    assert limit.try_acquire_share("b")
    assert not limit.has_free_slot


async def test_a_tenant_waits_for_its_share_while_another_one_takes_the_free_slot() -> None:
    limit = ConcurrencyLimit(2)
    assert limit.try_acquire_share("a")
    waiter = asyncio.create_task(limit.acquire("a", share=True))
    await run_ready_tasks()
    assert limit.try_acquire_share("b")
    limit.release_share("b")
    await run_ready_tasks()
    assert not waiter.done()
    limit.release_share("a")
    await waiter
    limit.release_share("a")
    assert [limit.try_acquire() for _ in range(3)] == [True, True, False]


async def test_two_waits_for_a_share_end_if_one_released_slot_permits_both() -> None:
    limit, got = ConcurrencyLimit(16), list[str]()
    assert [limit.try_acquire_share(tenant) for tenant in "aaaaaaabbbbbbb"] == [True] * 14

    async def wait(tenant: str) -> None:
        await limit.acquire(tenant, share=True)
        got.append(tenant)

    tasks = [asyncio.create_task(wait(tenant)) for tenant in "ba"]
    await run_ready_tasks()
    assert (got, limit.has_free_slot) == ([], True)
    limit.release_share("a")  # b takes it, and a then holds little enough for one of the two free ones
    await run_ready_tasks()
    assert got == ["b", "a"]
    await asyncio.gather(*tasks)


async def test_a_wait_for_a_share_keeps_no_free_slot_from_other_work_of_its_tenant() -> None:
    limit = ConcurrencyLimit(2)
    assert limit.try_acquire_share("a")
    assert limit.try_acquire()
    share = asyncio.create_task(limit.acquire("a", share=True))
    await run_ready_tasks()
    other = asyncio.create_task(limit.acquire("a"))
    await run_ready_tasks()
    limit.release()
    await other
    assert not share.done()
    limit.release_share("a")
    await share


async def test_a_wait_for_a_share_that_is_cancelled_as_it_gets_its_slot_passes_it_on() -> None:
    limit = ConcurrencyLimit(1)
    assert limit.try_acquire_share("a")
    waiters = [asyncio.create_task(limit.acquire("a", share=True)) for _ in range(2)]
    await run_ready_tasks()
    limit.release_share("a")  # for the first, which has not run yet
    waiters[0].cancel()
    await waiters[1]
    limit.release_share("a")
    assert limit.try_acquire_share("a")


async def test_a_cancelled_wait_takes_no_slot() -> None:
    limit = ConcurrencyLimit(1)
    await limit.acquire()
    got: list[int] = []
    first, second = waiting(limit, got, 1), waiting(limit, got, 2)
    await run_ready_tasks()
    first.cancel()
    await run_ready_tasks()
    limit.release()
    await second
    assert got == [2]
    limit.release()
    assert limit.has_free_slot


async def test_a_wait_that_is_cancelled_as_it_gets_its_slot_passes_it_on() -> None:
    limit = ConcurrencyLimit(1)
    await limit.acquire()
    got: list[int] = []
    first, second = waiting(limit, got, 1), waiting(limit, got, 2)
    await run_ready_tasks()
    limit.release()  # for the first, which has not run yet
    first.cancel()
    await second
    assert got == [2]


async def test_a_wait_for_a_slot_ends_in_time_without_one() -> None:
    limit, waits = ConcurrencyLimit(1), SlotWaits()
    assert await waits.acquire(limit, 0)
    assert not await waits.acquire(limit, 1)
    limit.release()
    assert limit.has_free_slot


async def test_all_waits_of_a_caller_that_stops_end_and_later_ones_do_not_wait() -> None:
    limit, waits = ConcurrencyLimit(1), SlotWaits()
    await limit.acquire()
    waiters = [asyncio.create_task(waits.acquire(limit, 3_600_000)) for _ in range(2)]
    await run_ready_tasks()
    waits.end()
    assert await asyncio.gather(*waiters) == [False, False]
    assert not await waits.acquire(limit, 3_600_000)
    limit.release()
    assert await waits.acquire(limit, 3_600_000)
    assert not limit.has_free_slot


@pytest.mark.parametrize("within_ms", [-5, 0])
async def test_a_free_slot_is_taken_even_if_no_time_is_left(within_ms: int) -> None:
    assert await SlotWaits().acquire(ConcurrencyLimit(1), within_ms)
