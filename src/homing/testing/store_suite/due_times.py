"""Tests of due times: when a row may be claimed, and when the next claim is worthwhile."""

from __future__ import annotations

from homing.core.lifecycle.commands import Command, CommandName
from homing.testing.builders import (
    HOUR_MS,
    MINUTE_MS,
    STANDARD_EMAIL,
    STANDARD_SMS,
    a_claim_request,
    a_notification,
    an_sms,
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
)


class DueTimeTests:
    """Tests of the order of `claim`, and of its `next_due_at`."""

    async def test_only_due_rows_are_claimed(self, harness: Harness) -> None:
        store = harness.store
        now = await store.now_ms()
        due = a_notification()
        later = a_notification(send_at=now + HOUR_MS)
        await accept(store, due, later)
        assert [claim.id for claim in await claim_all(store)] == [due.id]
        await harness.advance(HOUR_MS + MINUTE_MS)
        assert [claim.id for claim in await claim_all(store)] == [later.id]

    async def test_the_longest_due_rows_come_first(self, harness: Harness) -> None:
        store = harness.store
        ids: list[str] = []
        for _ in range(5):
            ids.append(await accept_one(store))
            await harness.advance(MINUTE_MS)
        first = await store.claim(a_claim_request(slots=2))
        assert [claim.id for claim in first.claims] == ids[:2]
        await store.settle([retry_in(first.claims[0], 0)])  # due again, but more recently than the others
        rest = [(await store.claim(a_claim_request(slots=1))).claims[0].id for _ in range(4)]
        assert rest == [*ids[2:], ids[0]]

    async def test_ties_go_by_id(self, harness: Harness) -> None:
        store = harness.store
        at = await store.now_ms() + HOUR_MS
        news = [a_notification(send_at=at) for _ in range(6)]
        await accept(store, *reversed(news))
        await harness.advance(2 * HOUR_MS)
        taken = [(await store.claim(a_claim_request(slots=1))).claims[0].id for _ in news]
        assert taken == [new.id for new in news]

    async def test_a_retry_is_due_after_its_delay(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([retry_in(claim, HOUR_MS)])
        await harness.advance(HOUR_MS - MINUTE_MS)
        assert await claim_all(store) == ()
        await harness.advance(2 * MINUTE_MS)
        again = await claim_one(store)
        assert (again.id, again.attempt) == (claim.id, 2)
        assert close_to(again.due_at, claim.started_at + HOUR_MS)
        assert again.started_at >= again.due_at

    async def test_next_due_at_is_when_the_next_row_is_due(self, harness: Harness) -> None:
        store = harness.store
        now = await store.now_ms()
        assert (await store.claim(a_claim_request())).next_due_at is None
        soon, late = now + HOUR_MS, now + 2 * HOUR_MS
        await accept(store, a_notification(send_at=late), a_notification(send_at=soon), a_notification())
        await accept(store, a_notification(send_at=soon + MINUTE_MS), tenant="b")
        batch = await store.claim(a_claim_request())
        assert (len(batch.claims), batch.next_due_at) == (1, soon)
        await store.settle([sent(batch.claims[0])])
        await harness.advance(HOUR_MS + 10 * MINUTE_MS)
        batch = await store.claim(a_claim_request())
        assert (len(batch.claims), batch.next_due_at) == (2, late)
        await harness.advance(HOUR_MS)
        batch = await store.claim(a_claim_request())
        assert (len(batch.claims), batch.next_due_at) == (1, None)

    async def test_next_due_at_considers_only_the_requested_lanes(self, harness: Harness) -> None:
        store = harness.store
        now = await store.now_ms()
        await accept(store, an_sms(send_at=now + HOUR_MS), a_notification(send_at=now + 2 * HOUR_MS))
        assert (await store.claim(a_claim_request(STANDARD_EMAIL))).next_due_at == now + 2 * HOUR_MS
        both = await store.claim(a_claim_request(STANDARD_EMAIL, STANDARD_SMS))
        assert both.next_due_at == now + HOUR_MS

    async def test_next_due_at_ignores_outlets_without_capacity(self, harness: Harness) -> None:
        store = harness.store
        now = await store.now_ms()
        await accept(store, a_notification(outlet="x", send_at=now + HOUR_MS))
        closed = a_claim_request(outlet_capacity={"x": 0})
        assert (await store.claim(closed)).next_due_at is None
        await accept(store, a_notification(outlet="y", send_at=now + 2 * HOUR_MS))
        assert (await store.claim(closed)).next_due_at == now + 2 * HOUR_MS
        assert (await store.claim(a_claim_request())).next_due_at == now + HOUR_MS

    async def test_next_due_at_is_never_in_the_past(self, harness: Harness) -> None:
        """Due rows that were left for lack of capacity are claimed when there is capacity, not by polling."""
        store = harness.store
        later = await store.now_ms() + HOUR_MS
        await accept(store, *(a_notification(outlet="x") for _ in range(4)))
        await accept(store, a_notification(outlet="y", send_at=later), tenant="b")
        for request in (
            a_claim_request(slots=1),
            a_claim_request(slots=2, tenant_factor=7),
            a_claim_request(outlet_slots=1),
            a_claim_request(outlet_capacity={"x": 0}),
        ):
            batch = await store.claim(request)
            assert batch.next_due_at == later
            await harness.advance(MINUTE_MS)

    async def test_a_cancelled_row_is_no_longer_due(self, harness: Harness) -> None:
        store = harness.store
        now = await store.now_ms()
        claims = [await accept_and_claim(store) for _ in range(2)]
        await store.settle([retry_in(claims[0], 0), sent(claims[1])])
        await accept(store, a_notification(send_at=now + HOUR_MS))
        waiting = (await store.waiting("default")).items
        assert len(waiting) == 2
        cancel = Command(name=CommandName.CANCEL, who="ada")
        await store.amend("default", [n.id for n in waiting], cancel)
        batch = await store.claim(a_claim_request())
        assert (batch.claims, batch.next_due_at) == ((), None)

    async def test_a_row_whose_due_time_changed_often_is_due_once(self, harness: Harness) -> None:
        store = harness.store
        restless, steady = await accept_one(store), await accept_one(store)
        for number in range(150):
            delay_ms = HOUR_MS + (number % 7) * MINUTE_MS
            command = Command(name=CommandName.RESCHEDULE, who="ada", delay_ms=delay_ms)
            await store.amend("default", [restless], command)
            await harness.advance(1_000)
        assert [claim.id for claim in await claim_all(store)] == [steady]
        await harness.advance(2 * HOUR_MS)
        batch = await store.claim(a_claim_request())
        assert [claim.id for claim in batch.claims] == [restless]
        assert batch.next_due_at is None
