"""Tests of `claim`: due rows are leased exactly once and within the worker's capacity."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from homing.core.lifecycle.claims import Claim, ClaimRequest, LaneCapacity, Lease, ProviderCapacity
from homing.core.notifications import Channel, Mode, OutcomeKind, Priority, Reason, Status, lane_of
from homing.testing.builders import (
    HOUR_MS,
    MINUTE_MS,
    STANDARD_EMAIL,
    STANDARD_SMS,
    UNLIMITED_SLOTS,
    a_claim_request,
    a_message,
    a_notification,
    a_settlement,
    an_attempt,
    an_sms,
    moved,
    postponed,
    retry_in,
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
)


class ClaimTests:
    """Tests of the contents, leases and limits of claims."""

    claims_share_rows = False
    """True for a store in which two claims that choose the same rows may both get a part of them."""

    async def test_a_claim_has_all_fields_that_a_worker_needs(self, harness: Harness) -> None:
        store = harness.store
        now = await store.now_ms()
        new = a_notification(
            type="alarm",
            category="safety",
            priority=Priority.HIGH,
            origin="auth",
            provider="webhook",
            outlet="webhook@hooks.example.com",
            channel=Channel.WEBHOOK,
            pinned=True,
            address="https://hooks.example.com/a",
            message=a_message("Look!", order=7),
            expires_at=now + 5 * HOUR_MS,
        )
        answer = await accept(store, new)
        batch = await store.claim(a_claim_request(new.lane, worker="w-9", lease_ms=HOUR_MS))
        [claim] = batch.claims
        assert (claim.id, claim.tenant, claim.batch_id) == (new.id, "default", answer.batch_id)
        assert (claim.channel, claim.mode, claim.lane) == (new.channel, new.mode, new.lane)
        assert (claim.type, claim.category, claim.priority, claim.origin) == (
            "alarm",
            "safety",
            Priority.HIGH,
            "auth",
        )
        assert (claim.provider, claim.outlet) == ("webhook", "webhook@hooks.example.com")
        assert (claim.pinned, claim.address, claim.message) == (True, new.address, new.message)
        assert (claim.attempt, claim.attempt_floor, claim.failures_here) == (1, 0, 0)
        assert (claim.last_delay_ms, dict(claim.holds), claim.overdue) == (0, {}, False)
        assert (claim.worker, claim.expires_at) == ("w-9", new.expires_at)
        assert claim.started_at == batch.now
        assert claim.lease_until == batch.now + HOUR_MS
        assert claim.created_at == claim.aged_from == claim.due_at <= batch.now
        assert close_to(batch.now, now)

    async def test_a_claim_is_committed_before_it_returns(self, harness: Harness) -> None:
        store, other = harness.store, await harness.second()
        claim = await accept_and_claim(store)
        found = await get_notification(other, claim.id)
        assert (found.status, found.attempt_count) == (Status.SENDING, 1)
        assert await count_by_status(other) == {Status.SENDING: 1}
        assert found.next_retry_at is None

    async def test_a_leased_row_is_not_claimed_again(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        assert await claim_all(store, worker=claim.worker) == ()
        assert await claim_all(store, worker="w-2") == ()
        await harness.advance(HOUR_MS)  # a row with an expired lease is left to `reclaim`
        assert await claim_all(store) == ()

    async def test_claims_of_two_instances_at_once_are_disjoint(self, harness: Harness) -> None:
        stores = (harness.store, await harness.second())
        total = 60
        answer = await accept(harness.store, *(a_notification() for _ in range(total)))
        batches = await asyncio.gather(
            *(
                stores[number % 2].claim(a_claim_request(worker=f"w-{number}", slots=10))
                for number in range(6)
            )
        )
        claimed = [claim.id for batch in batches for claim in batch.claims]
        assert self.claims_share_rows or len(claimed) == total
        while len(claimed) < total:
            rest = await harness.store.claim(a_claim_request(slots=total))
            assert rest.claims, "what no claim has got can be claimed"
            claimed += [claim.id for claim in rest.claims]
        assert sorted(claimed) == sorted(answer.ids)
        assert await count_by_status(harness.store) == {Status.SENDING: total}

    async def test_tokens_only_rise(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        tokens = [claim.token]
        for _ in range(4):
            await store.settle([retry_in(claim, 0)])
            claim = await claim_one(store)
            tokens.append(claim.token)
        assert tokens == sorted(set(tokens))

    async def test_each_claim_counts_an_attempt(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        for attempt in (2, 3):
            await store.settle([retry_in(claim, 0)])
            claim = await claim_one(store)
            assert claim.attempt == attempt
        await store.settle([postponed(claim, 0)])
        assert (await claim_one(store)).attempt == 3

    async def test_only_the_lanes_of_the_request_are_claimed(self, harness: Harness) -> None:
        store = harness.store
        email, sms = a_notification(), an_sms()
        await accept(store, email, sms)
        assert [claim.id for claim in await claim_all(store, STANDARD_SMS, "bulk.chat")] == [sms.id]
        assert [claim.id for claim in await claim_all(store, STANDARD_EMAIL)] == [email.id]

    async def test_one_claim_serves_many_lanes_each_with_its_own_slots(self, harness: Harness) -> None:
        store = harness.store
        await accept(store, *(a_notification() for _ in range(5)), *(an_sms() for _ in range(5)))
        batch = await store.claim(
            _request(
                {
                    STANDARD_EMAIL: LaneCapacity(slots=2),
                    STANDARD_SMS: LaneCapacity(slots=3),
                }
            )
        )
        lanes = sorted(claim.lane for claim in batch.claims)
        assert lanes == [STANDARD_EMAIL] * 2 + [STANDARD_SMS] * 3

    async def test_a_lane_without_slots_is_not_claimed(self, harness: Harness) -> None:
        store = harness.store
        await accept_one(store)
        assert (await store.claim(a_claim_request(slots=0))).claims == ()
        assert (
            await store.claim(a_claim_request(slots=1, held={"default": 1}, tenant_factor=7))
        ).claims == ()
        assert (await store.claim(a_claim_request(outlet_slots=0))).claims == ()
        assert (await store.claim(_request({}))).claims == ()
        assert len(await claim_all(store)) == 1

    async def test_a_tenant_gets_at_most_its_capacity(self, harness: Harness) -> None:
        store = harness.store
        for tenant in ("a", "b", "c"):
            await accept(store, *(a_notification() for _ in range(9)), tenant=tenant)
        held = {"a": 67, "b": 74, "c": 200}
        batch = await store.claim(a_claim_request(slots=14, held=held, tenant_factor=7))
        assert _by(batch.claims, "tenant") == {"a": 3, "b": 1}

    async def test_an_outlet_gets_at_most_its_capacity(self, harness: Harness) -> None:
        store = harness.store
        for outlet in ("x", "y", "z"):
            await accept(store, *(a_notification(outlet=outlet) for _ in range(9)))
        batch = await store.claim(a_claim_request(slots=20, outlet_slots=4, outlet_capacity={"y": 2, "z": 7}))
        assert _by(batch.claims, "outlet") == {"x": 4, "y": 2, "z": 7}

    async def test_the_capacity_of_an_outlet_counts_across_lanes(self, harness: Harness) -> None:
        store = harness.store
        await accept(
            store, *(a_notification(outlet="x") for _ in range(5)), *(an_sms(outlet="x") for _ in range(5))
        )
        batch = await store.claim(a_claim_request(STANDARD_EMAIL, STANDARD_SMS, outlet_capacity={"x": 6}))
        assert len(batch.claims) == 6
        rest = await store.claim(a_claim_request(STANDARD_EMAIL, STANDARD_SMS, outlet_slots=3))
        assert len(rest.claims) == 3

    async def test_the_capacity_of_a_provider_limits_all_its_hosts_together(self, harness: Harness) -> None:
        store = harness.store
        for host in ("hook@a", "hook@b", "hook@c"):
            await accept(store, *(a_notification(outlet=host) for _ in range(9)))
        await accept(store, *(a_notification(outlet="other@a") for _ in range(9)))
        batch = await store.claim(
            a_claim_request(
                slots=30,
                outlet_slots=4,
                providers={"hook": ProviderCapacity(slots=7)},
                outlet_capacity={"hook@a": 1},
            )
        )
        taken = _by(batch.claims, "outlet")
        assert (taken["hook@a"], taken["other@a"]) == (1, 4)
        assert taken["hook@b"] + taken["hook@c"] == 6
        assert max(taken.values()) <= 4

    async def test_the_capacity_of_a_provider_limits_the_hosts_of_several_tenants(
        self, harness: Harness
    ) -> None:
        store = harness.store
        for tenant in "abc":  # one host each, so that a store could serve several rounds in one step
            await accept(store, *(a_notification(outlet=f"hook@{tenant}") for _ in range(9)), tenant=tenant)
        hook = ProviderCapacity(slots=7)
        batch = await store.claim(a_claim_request(slots=30, outlet_slots=8, providers={"hook": hook}))
        assert sorted(_by(batch.claims, "tenant").values()) == [2, 2, 3]

    async def test_a_paused_provider_closes_all_its_hosts(self, harness: Harness) -> None:
        store = harness.store
        await accept(store, a_notification(outlet="hook@a"), a_notification(outlet="hooks@a"))
        later = a_notification(outlet="hook@b", send_at=await store.now_ms() + HOUR_MS)
        await accept(store, later)
        batch = await store.claim(a_claim_request(providers={"hook": ProviderCapacity(slots=0)}))
        assert _by(batch.claims, "outlet") == {"hooks@a": 1}
        assert batch.next_due_at is None
        batch = await store.claim(a_claim_request())
        assert _by(batch.claims, "outlet") == {"hook@a": 1}
        assert batch.next_due_at == later.send_at

    async def test_rows_of_providers_that_a_request_does_not_list_are_left_and_reported(
        self, harness: Harness
    ) -> None:
        store = harness.store
        for outlet in ("mail", "old", "gone@a", "mailer"):
            await accept(store, a_notification(outlet=outlet))
        later = await store.now_ms() + HOUR_MS
        await accept(store, a_notification(outlet="new", send_at=later))
        providers = {"mail": ProviderCapacity(slots=5)}
        batch = await store.claim(a_claim_request(providers=providers, only_listed=True))
        assert _by(batch.claims, "outlet") == {"mail": 1}
        assert batch.unlisted == {"old", "gone", "mailer"}
        assert batch.next_due_at is None
        batch = await store.claim(a_claim_request(providers=providers))
        assert (len(batch.claims), batch.unlisted, batch.next_due_at) == (3, frozenset(), later)

    async def test_an_outlet_without_capacity_is_skipped_and_keeps_its_rows(self, harness: Harness) -> None:
        store = harness.store
        await accept(store, *(a_notification(outlet="x") for _ in range(50)))
        await harness.advance(MINUTE_MS)
        other = await accept_one(store, a_notification(outlet="y"))
        batch = await store.claim(a_claim_request(slots=10, outlet_capacity={"x": 0}))
        assert [claim.id for claim in batch.claims] == [other]
        assert await count_by_status(store) == {Status.PENDING: 50, Status.SENDING: 1}
        assert (await get_notification(store, other)).attempt_count == 1
        assert len((await store.claim(a_claim_request())).claims) == 50

    async def test_a_negative_capacity_counts_as_zero(self, harness: Harness) -> None:
        store = harness.store
        await accept(store, a_notification(outlet="x"), a_notification(outlet="y"))
        await accept(store, a_notification(outlet="y"), tenant="b")
        closed = {"y": ProviderCapacity(slots=-1)}
        assert (await store.claim(a_claim_request(outlet_capacity={"x": -2}, providers=closed))).claims == ()
        assert _by((await store.claim(a_claim_request(outlet_capacity={"x": -2}))).claims, "outlet") == {
            "y": 2
        }

    async def test_the_next_claim_has_the_values_of_the_settlement(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        now = await store.now_ms()
        await store.settle(
            [
                a_settlement(
                    claim,
                    Status.RETRYING,
                    attempt=an_attempt(claim),
                    provider="acs",
                    outlet="acs@eu",
                    failures_here=3,
                    spent={"sendgrid": 1, "sns": 2},
                    moves=4,
                    free_move=True,
                    last_delay_ms=1234,
                    hold_ms=HOUR_MS,
                )
            ]
        )
        again = await claim_one(store)
        assert (again.provider, again.outlet) == ("acs", "acs@eu")
        assert (again.failures_here, again.last_delay_ms) == (3, 1234)
        assert (dict(again.spent), again.moves, again.free_move) == ({"sendgrid": 1, "sns": 2}, 4, True)
        assert list(again.holds) == ["sendgrid"]
        assert close_to(again.holds["sendgrid"], now + HOUR_MS)
        assert again.aged_from == claim.aged_from

    @pytest.mark.parametrize("reason", [Reason.QUIET_HOURS, Reason.RATE_LIMIT])
    async def test_a_deliberate_wait_does_not_count_as_age(self, harness: Harness, reason: Reason) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        wanted = a_settlement(
            claim, Status.PENDING, attempt=None, reason=reason, give_back=True, delay_ms=HOUR_MS
        )
        await store.settle([wanted])
        await harness.advance(HOUR_MS)
        again = await claim_one(store)
        assert again.aged_from == claim.aged_from + HOUR_MS
        assert again.attempt == 1

    async def test_waiting_for_a_provider_counts_as_age(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        paused = a_settlement(
            claim,
            Status.PENDING,
            attempt=None,
            reason=Reason.NO_PROVIDER,
            give_back=True,
            delay_ms=HOUR_MS,
        )
        await store.settle([paused])
        await harness.advance(HOUR_MS)
        assert (await claim_one(store)).aged_from == claim.aged_from

    async def test_a_moved_row_waits_only_at_its_new_outlet(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([retry_in(claim, 0, provider="acs")])
        assert (await store.claim(a_claim_request(outlet_capacity={"acs": 0}))).claims == ()
        [again] = (await store.claim(a_claim_request(outlet_capacity={"sendgrid": 0}))).claims
        assert again.outlet == "acs"

    async def test_a_limit_bounds_all_lanes_together_and_serves_the_most_urgent_first(
        self, harness: Harness
    ) -> None:
        store = harness.store
        priority_sms = lane_of(Mode.PRIORITY, Channel.SMS)
        await accept(store, *[a_notification() for _ in range(4)])
        await accept(store, *[a_notification(mode=Mode.PRIORITY, channel=Channel.SMS) for _ in range(3)])
        first = (await store.claim(a_claim_request(STANDARD_EMAIL, priority_sms, limit=4))).claims
        assert _by(first, "lane") == {priority_sms: 3, STANDARD_EMAIL: 1}
        rest = (await store.claim(a_claim_request(STANDARD_EMAIL, priority_sms, limit=9))).claims
        assert _by(rest, "lane") == {STANDARD_EMAIL: 3}

    async def test_a_claim_may_be_limited_to_one_tenant(self, harness: Harness) -> None:
        store = harness.store
        mine = [await accept_one(store, tenant="a") for _ in range(3)]
        other = await accept_one(store, tenant="b")
        batch = await store.claim(a_claim_request(tenant="a", limit=2))
        assert [claim.id for claim in batch.claims] == mine[:2]
        assert [claim.id for claim in (await store.claim(a_claim_request(tenant="a"))).claims] == mine[2:]
        assert (await store.claim(a_claim_request(tenant="a"))).claims == ()
        assert (await claim_one(store)).id == other

    async def test_a_claim_of_chosen_rows_leaves_all_others(self, harness: Harness) -> None:
        store = harness.store
        later = await store.now_ms() + HOUR_MS
        first, second, third = [await accept_one(store) for _ in range(3)]
        other = await accept_one(store, tenant="b")
        waits = await accept_one(store, a_notification(send_at=later))
        chosen = [third, first, waits, other, "no-such-id"]
        batch = await store.claim(a_claim_request(ids=chosen, tenant="default"))
        assert [claim.id for claim in batch.claims] == [first, third], "those that are due, oldest first"
        assert all(claim.attempt == 1 for claim in batch.claims)
        assert (await store.claim(a_claim_request(ids=chosen, tenant="default"))).claims == ()
        await store.settle([retry_in(claim, 0) for claim in batch.claims])
        assert {claim.id for claim in await claim_all(store)} == {first, second, third, other}
        assert await count_by_status(store) == {"pending": 1, "sending": 3}
        await harness.advance(2 * HOUR_MS)
        assert [claim.id for claim in (await store.claim(a_claim_request(ids=[waits]))).claims] == [waits]

    async def test_chosen_rows_are_claimed_within_the_capacity(self, harness: Harness) -> None:
        store = harness.store
        ids = [await accept_one(store) for _ in range(3)]
        away = await accept_one(store, a_notification(provider="away", outlet="away"))
        request = a_claim_request(
            ids=[*ids, away], providers={"sendgrid": ProviderCapacity(slots=2)}, only_listed=True
        )
        assert [claim.id for claim in (await store.claim(request)).claims] == ids[:2]
        assert (await store.claim(a_claim_request(ids=ids, slots=0))).claims == ()
        assert {claim.id for claim in await claim_all(store)} == {ids[2], away}

    async def test_changing_a_claim_does_not_change_the_store(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store, a_notification(message=a_message(order=1)))
        claim.message.metadata["order"] = 2
        await store.settle([retry_in(claim, 0, provider="acs", hold_ms=HOUR_MS)])
        again = await claim_one(store)
        assert again.message.metadata == {"order": 1}
        assert isinstance(again.holds, dict)
        again.holds.clear()
        await store.settle([postponed(again, 0, Reason.QUIET_HOURS)])
        assert list((await claim_one(store)).holds) == ["sendgrid"]

    async def test_what_is_spent_survives_give_backs_extensions_and_expired_leases(
        self, harness: Harness
    ) -> None:
        store, expected = harness.store, ({"sendgrid": 1}, 1, True)
        await store.settle([moved(await accept_and_claim(store), "acs")])
        claim = await claim_one(store)
        assert (dict(claim.spent), claim.moves, claim.free_move) == expected
        await store.settle([postponed(claim, 0, Reason.RATE_LIMIT)])
        claim = await claim_one(store)
        assert (dict(claim.spent), claim.moves, claim.free_move) == expected
        await store.extend([Lease(claim.id, claim.token, "sns", "sns")], MINUTE_MS)
        await harness.advance(HOUR_MS)
        [claim] = (await store.reclaim("w", 10, HOUR_MS)).claims
        assert (claim.provider, claim.attempt) == ("sns", 2)
        assert (dict(claim.spent), claim.moves, claim.free_move) == expected
        found = await get_notification(store, claim.id)
        assert (found.spent, found.moves, found.attempt_count) == (("sendgrid",), 1, 2)

    async def test_an_ended_round_clears_what_is_spent(self, harness: Harness) -> None:
        store = harness.store
        await store.settle([moved(await accept_and_claim(store), "acs")])
        claim = await claim_one(store)
        last = an_attempt(claim)
        await store.settle([a_settlement(claim, Status.RETRYING, attempt=last, spent={}, moves=1)])
        claim = await claim_one(store)
        assert (dict(claim.spent), claim.moves, claim.free_move) == ({}, 1, False)

    async def test_uncounted_failures_add_up_and_survive_give_backs_and_the_end(
        self, harness: Harness
    ) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        for number in (1, 2):
            failed = an_attempt(claim, OutcomeKind.TRANSIENT, error="away", error_code="unreachable")
            await store.settle([a_settlement(claim, Status.RETRYING, attempt=failed, spent={}, moves=number)])
            claim = await claim_one(store)
            assert (claim.attempt, claim.moves, claim.free_move) == (number + 1, number, False)
        await store.settle([postponed(claim, 0, Reason.NO_PROVIDER)])
        claim = await claim_one(store)
        assert (claim.attempt, claim.moves) == (3, 2)
        await store.settle([a_settlement(claim, Status.SENT, attempt=an_attempt(claim))])
        found = await get_notification(store, claim.id)
        assert (found.status, found.attempt_count, found.moves) == (Status.SENT, 3, 2)


def _request(lanes: Mapping[str, LaneCapacity]) -> ClaimRequest:
    return ClaimRequest(worker="w-1", lease_ms=MINUTE_MS, lanes=lanes, outlet_slots=UNLIMITED_SLOTS)


def _by(claims: Sequence[Claim], name: str) -> dict[str, int]:
    return dict(Counter(getattr(claim, name) for claim in claims))
