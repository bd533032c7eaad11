"""Tests of leases: workers that die or take long, and rows that wait past their deadline."""

from __future__ import annotations

import asyncio

import pytest

from homing.core.lifecycle.claims import Claim, Lease
from homing.core.lifecycle.commands import Command, CommandName
from homing.core.notifications import Mode, OutcomeKind, Reason, Status
from homing.testing.builders import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    a_claim_request,
    a_notification,
    a_settlement,
    a_submission,
    an_attempt,
    dead,
    postponed,
    retry_in,
    sent,
)
from homing.testing.store_suite.harness import (
    Harness,
    accept,
    accept_and_claim,
    accept_one,
    claim_all,
    claim_one,
    close_to,
    count_by_status,
    get_notification,
    status_of,
)


class LeaseTests:
    """Tests of `reclaim` and `extend`."""

    async def test_a_valid_lease_is_not_reclaimed(self, harness: Harness) -> None:
        store = harness.store
        await accept_one(store)
        await store.claim(a_claim_request(lease_ms=HOUR_MS))
        await harness.advance(HOUR_MS - MINUTE_MS)
        assert (await store.reclaim("w-2", 10, HOUR_MS)).claims == ()

    async def test_an_expired_lease_is_reclaimed_with_its_attempt(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await harness.advance(HOUR_MS)
        batch = await store.reclaim("w-2", 10, HOUR_MS)
        [lost] = batch.claims
        assert (lost.id, lost.attempt, lost.overdue) == (claim.id, claim.attempt, False)
        assert lost.token > claim.token
        assert (lost.provider, lost.outlet) == (claim.provider, claim.outlet)
        assert (lost.worker, lost.started_at) == (claim.worker, claim.started_at)
        assert lost.lease_until == batch.now + HOUR_MS
        assert lost.message == claim.message
        found = await get_notification(store, claim.id)
        assert (found.status, found.attempt_count) == (Status.SENDING, 1)
        assert await count_by_status(store) == {Status.SENDING: 1}

    async def test_a_reclaimed_row_is_settled_only_with_the_new_token(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await harness.advance(HOUR_MS)
        [lost] = (await store.reclaim("w-2", 10, HOUR_MS)).claims
        assert (await store.settle([sent(claim)])).stale == (claim.id,)
        assert await store.extend([Lease(claim.id, claim.token)], HOUR_MS) == frozenset()
        record = an_attempt(lost, OutcomeKind.LOST)
        settlement = a_settlement(lost, Status.RETRYING, attempt=record, delay_ms=HOUR_MS)
        assert (await store.settle([settlement])).applied == (claim.id,)
        history = await store.get("default", claim.id)
        assert history is not None
        assert [attempt.outcome for attempt in history.attempts] == [OutcomeKind.LOST]
        assert history.notification.status is Status.RETRYING

    async def test_two_instances_never_reclaim_the_same_lease(self, harness: Harness) -> None:
        stores = (harness.store, await harness.second())
        answer = await accept(harness.store, *(a_notification() for _ in range(20)))
        await claim_all(harness.store)
        await harness.advance(HOUR_MS)
        batches = await asyncio.gather(*(stores[n % 2].reclaim(f"w-{n}", 7, HOUR_MS) for n in range(4)))
        taken = [claim.id for batch in batches for claim in batch.claims]
        assert sorted(taken) == sorted(answer.ids)

    async def test_a_reclaimed_lease_can_expire_again(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await harness.advance(HOUR_MS)
        [first] = (await store.reclaim("w-2", 10, HOUR_MS)).claims
        assert (await store.reclaim("w-3", 10, HOUR_MS)).claims == ()
        await harness.advance(HOUR_MS + MINUTE_MS)
        [second] = (await store.reclaim("w-3", 10, HOUR_MS)).claims
        assert second.token > first.token > claim.token
        assert (second.attempt, second.worker, second.started_at) == (1, claim.worker, claim.started_at)

    async def test_reclaim_returns_the_oldest_first_up_to_its_limit(self, harness: Harness) -> None:
        store = harness.store
        ids = []
        for _ in range(3):
            ids.append((await accept_and_claim(store)).id)
            await harness.advance(MINUTE_MS)
        now = await store.now_ms()
        ids.append(await accept_one(store, a_notification(send_at=now + DAY_MS, expires_at=now + HOUR_MS)))
        await harness.advance(2 * HOUR_MS)
        first = [claim.id for claim in (await store.reclaim("w", 2, HOUR_MS)).claims]
        then = [claim.id for claim in (await store.reclaim("w", 2, HOUR_MS)).claims]
        assert [first, then] == [ids[:2], ids[2:]]
        assert (await store.reclaim("w", 2, HOUR_MS)).claims == ()

    async def test_a_lease_ends_at_its_end(self, harness: Harness) -> None:
        """Exactly then, if the harness has an exact clock."""
        store = harness.store
        await accept_one(store)
        [claim] = (await store.claim(a_claim_request(lease_ms=HOUR_MS))).claims
        await harness.advance(HOUR_MS)
        assert [one.id for one in (await store.reclaim("w-2", 10, HOUR_MS)).claims] == [claim.id]

    async def test_reclaim_returns_the_lease_first_that_expired_first(self, harness: Harness) -> None:
        """The leases expire in another order than they were taken."""
        store = harness.store
        claims: list[Claim] = []
        for lease_ms in (3 * HOUR_MS, 2 * HOUR_MS, HOUR_MS):
            await accept_one(store)
            claims += (await store.claim(a_claim_request(lease_ms=lease_ms))).claims
        await harness.advance(4 * HOUR_MS)
        found = [(await store.reclaim("w", 1, DAY_MS)).claims[0].id for _ in range(3)]
        assert found == [claim.id for claim in reversed(claims)]

    async def test_a_waiting_row_past_its_expiry_is_reclaimed_without_an_attempt(
        self, harness: Harness
    ) -> None:
        store = harness.store
        now = await store.now_ms()
        new = a_notification(send_at=now + DAY_MS, expires_at=now + HOUR_MS)
        await accept(store, new)
        assert (await store.reclaim("w-2", 10, HOUR_MS)).claims == ()
        await harness.advance(HOUR_MS + MINUTE_MS)
        batch = await store.reclaim("w-2", 10, HOUR_MS)
        [claim] = batch.claims
        assert (claim.id, claim.overdue, claim.attempt, claim.worker) == (new.id, True, 0, "w-2")
        assert claim.due_at == new.send_at
        assert claim.lease_until == batch.now + HOUR_MS
        assert await status_of(store, new.id) is Status.SENDING
        ended = a_settlement(claim, Status.EXPIRED, attempt=None, reason=Reason.EXPIRED)
        assert (await store.settle([ended])).applied == (new.id,)
        found = await get_notification(store, new.id)
        assert (found.status, found.reason, found.attempt_count) == (Status.EXPIRED, Reason.EXPIRED, 0)

    async def test_a_row_past_its_maximum_age_is_reclaimed(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store, a_notification(max_age_ms=DAY_MS))
        await store.settle([retry_in(claim, 3 * DAY_MS)])
        await harness.advance(DAY_MS - HOUR_MS)
        assert (await store.reclaim("w", 10, HOUR_MS)).claims == ()
        await harness.advance(2 * HOUR_MS)
        [late] = (await store.reclaim("w", 10, HOUR_MS)).claims
        assert (late.id, late.overdue, late.attempt) == (claim.id, True, 1)
        assert close_to(late.due_at, claim.started_at + 3 * DAY_MS)

    async def test_the_last_settlement_decides_the_maximum_age(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store, a_notification(max_age_ms=DAY_MS))
        patient = a_settlement(
            claim, Status.RETRYING, attempt=an_attempt(claim), delay_ms=9 * DAY_MS, max_age_ms=2 * DAY_MS
        )
        await store.settle([patient])
        await harness.advance(DAY_MS + HOUR_MS)
        assert (await store.reclaim("w", 10, HOUR_MS)).claims == ()
        await harness.advance(DAY_MS)
        assert len((await store.reclaim("w", 10, HOUR_MS)).claims) == 1

    async def test_age_counts_from_send_at(self, harness: Harness) -> None:
        store = harness.store
        now = await store.now_ms()
        await accept(store, a_notification(send_at=now + 3 * DAY_MS, max_age_ms=DAY_MS))
        await harness.advance(4 * DAY_MS - HOUR_MS)
        assert (await store.reclaim("w", 10, HOUR_MS)).claims == ()
        await harness.advance(2 * HOUR_MS)
        [claim] = (await store.reclaim("w", 10, HOUR_MS)).claims
        assert claim.aged_from == now + 3 * DAY_MS

    async def test_a_synchronous_row_has_no_deadline(self, harness: Harness) -> None:
        store = harness.store
        now = await store.now_ms()
        new = a_notification(mode=Mode.SYNCHRONOUS, max_age_ms=HOUR_MS, expires_at=now + HOUR_MS)
        await accept(store, new)
        await harness.advance(DAY_MS)
        assert (await store.reclaim("w", 10, HOUR_MS)).claims == ()

    async def test_a_synchronous_send_whose_caller_died_is_reclaimed(self, harness: Harness) -> None:
        store = harness.store
        new = a_notification(mode=Mode.SYNCHRONOUS)
        await store.accept([a_submission(new, lease_to="caller", lease_ms=MINUTE_MS)])
        await harness.advance(HOUR_MS)
        [claim] = (await store.reclaim("w", 10, HOUR_MS)).claims
        assert (claim.id, claim.attempt, claim.worker) == (new.id, 1, "caller")

    async def test_an_overdue_row_whose_lease_expires_stays_overdue(self, harness: Harness) -> None:
        store = harness.store
        now = await store.now_ms()
        await accept(store, a_notification(send_at=now + DAY_MS, expires_at=now + HOUR_MS))
        await harness.advance(2 * HOUR_MS)
        [first] = (await store.reclaim("w-1", 10, HOUR_MS)).claims
        await harness.advance(2 * HOUR_MS)
        [second] = (await store.reclaim("w-2", 10, HOUR_MS)).claims
        assert (second.overdue, second.attempt) == (True, 0)
        assert second.due_at == first.due_at == now + DAY_MS
        assert second.token > first.token

    async def test_an_overdue_row_can_be_settled_to_wait_longer(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store, a_notification(max_age_ms=DAY_MS))
        await store.settle([retry_in(claim, 2 * DAY_MS)])
        await harness.advance(DAY_MS + HOUR_MS)
        [late] = (await store.reclaim("w", 10, HOUR_MS)).claims
        patient = a_settlement(late, Status.RETRYING, attempt=None, delay_ms=DAY_MS, max_age_ms=5 * DAY_MS)
        assert (await store.settle([patient])).applied == (claim.id,)
        assert (await store.reclaim("w", 10, HOUR_MS)).claims == ()
        assert await claim_all(store) == ()
        await harness.advance(DAY_MS + HOUR_MS)
        again = await claim_one(store)
        assert (again.attempt, again.overdue) == (2, False)

    @pytest.mark.parametrize("ending", ["sent", "failed", "cancelled"])
    async def test_an_ended_row_is_never_claimed_or_reclaimed(self, harness: Harness, ending: str) -> None:
        store = harness.store
        claim = await accept_and_claim(store, a_notification(max_age_ms=HOUR_MS))
        match ending:
            case "sent":
                await store.settle([sent(claim)])
            case "failed":
                await store.settle([dead(claim)])
            case _:
                await store.settle([postponed(claim, 2 * HOUR_MS)])
                await store.amend("default", [claim.id], Command(name=CommandName.CANCEL, who="ada"))
        await harness.advance(DAY_MS)
        assert (await store.reclaim("w", 10, HOUR_MS)).claims == ()
        assert await claim_all(store) == ()
        assert await status_of(store, claim.id) is Status(ending)

    async def test_an_extended_lease_lasts_longer(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        assert await store.extend([Lease(claim.id, claim.token)], DAY_MS) == frozenset({claim.id})
        await harness.advance(DAY_MS - HOUR_MS)
        assert (await store.reclaim("w", 10, HOUR_MS)).claims == ()
        assert (await store.settle([sent(claim)])).applied == (claim.id,)

    async def test_an_extended_lease_expires_eventually(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.extend([Lease(claim.id, claim.token)], HOUR_MS)
        await harness.advance(HOUR_MS + MINUTE_MS)
        [lost] = (await store.reclaim("w", 10, HOUR_MS)).claims
        assert (lost.id, lost.attempt) == (claim.id, 1)

    async def test_extend_never_shortens_a_lease(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.extend([Lease(claim.id, claim.token)], DAY_MS)
        assert await store.extend([Lease(claim.id, claim.token)], MINUTE_MS) == frozenset({claim.id})
        await harness.advance(DAY_MS - HOUR_MS)
        assert (await store.reclaim("w", 10, HOUR_MS)).claims == ()

    async def test_extend_returns_the_leases_that_are_still_held(self, harness: Harness) -> None:
        store = harness.store
        held, gone, settled = [await accept_and_claim(store) for _ in range(3)]
        await store.settle([sent(settled)])
        leases = [
            Lease(held.id, held.token),
            Lease(gone.id, gone.token - 1),
            Lease(settled.id, settled.token),
            Lease("nobody", 1),
        ]
        assert await store.extend(leases, DAY_MS) == frozenset({held.id})
        await harness.advance(HOUR_MS)
        assert [claim.id for claim in (await store.reclaim("w", 10, HOUR_MS)).claims] == [gone.id]
        assert await status_of(store, settled.id) is Status.SENT

    async def test_extend_records_a_change_of_provider(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([retry_in(claim, 0)])
        claim = await claim_one(store)
        assert claim.failures_here == 1
        await store.extend([Lease(claim.id, claim.token, "acs", "acs@eu")], MINUTE_MS)
        await harness.advance(HOUR_MS)
        [lost] = (await store.reclaim("w", 10, HOUR_MS)).claims
        assert (lost.provider, lost.outlet, lost.failures_here) == ("acs", "acs@eu", 0)
