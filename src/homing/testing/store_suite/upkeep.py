"""Tests of maintenance: the schema, the clock, the deletion of old rows, and the size of the store."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from homing.core.lifecycle.commands import Command, CommandName
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.notifications import Filter, Mode, OutcomeKind, Status
from homing.core.ports.stores import Backend, Retention
from homing.testing.builders import (
    DAY_MS,
    HOUR_MS,
    a_claim_request,
    a_notification,
    a_receipt,
    a_settlement,
    a_submission,
    an_attempt,
    an_id,
    dead,
    in_doubt,
    retry_in,
    sent,
)
from homing.testing.store_suite.harness import (
    Harness,
    accept,
    accept_and_claim,
    accept_and_send,
    accept_one,
    claim_all,
    claim_one,
    close_to,
    count_by_status,
    get_notification,
    list_all,
    status_of,
    tally_cells,
)

RETENTION = Retention(delivered_ms=DAY_MS, sent_ms=7 * DAY_MS, others_ms=30 * DAY_MS, keys_ms=7 * DAY_MS)


class UpkeepTests:
    """Tests of `migrate`, `now_ms`, `prune` and `size`."""

    async def test_migrating_again_does_nothing(self, harness: Harness) -> None:
        store = harness.store
        id = await accept_one(store)
        assert await store.migrate() == ()
        assert await store.migrate(create=False) == (), "the schema exists"
        assert await status_of(store, id) is Status.PENDING

    async def test_the_clock_advances(self, harness: Harness) -> None:
        store, other = harness.store, await harness.second()
        before = await store.now_ms()
        await harness.advance(HOUR_MS)
        assert close_to(await store.now_ms(), before + HOUR_MS)
        assert close_to(await other.now_ms(), before + HOUR_MS)

    @pytest.mark.parametrize(
        ("status", "days"),
        [
            (Status.DELIVERED, 1),
            (Status.SENT, 7),
            (Status.FAILED, 30),
            (Status.CANCELLED, 30),
            (Status.EXPIRED, 30),
            (Status.SKIPPED, 30),
        ],
    )
    async def test_ended_rows_are_deleted_at_their_retention_age(
        self, harness: Harness, status: Status, days: int
    ) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([a_settlement(claim, status, attempt=an_attempt(claim, message_id="m-1"))])
        await harness.advance(days * DAY_MS - HOUR_MS)
        assert (await store.prune(RETENTION, 10))["notifications"] == 0
        assert await status_of(store, claim.id) is status
        await harness.advance(2 * HOUR_MS)
        assert (await store.prune(RETENTION, 10))["notifications"] == 1
        assert await store.get("default", claim.id) is None
        assert await list_all(store) == []

    async def test_age_counts_from_the_last_change(self, harness: Harness) -> None:
        store = harness.store
        id = await accept_and_send(store, "m-1")
        await harness.advance(6 * DAY_MS)
        await store.receipt([a_receipt("m-1", ReceiptEvent.OPEN)])
        await harness.advance(2 * DAY_MS)
        assert (await store.prune(RETENTION, 10))["notifications"] == 0
        await store.receipt([a_receipt("m-1", ReceiptEvent.DELIVERED)])
        await harness.advance(DAY_MS - HOUR_MS)
        assert (await store.prune(RETENTION, 10))["notifications"] == 0
        await harness.advance(2 * HOUR_MS)
        assert (await store.prune(RETENTION, 10))["notifications"] == 1
        assert await store.get("default", id) is None

    async def test_live_and_in_doubt_rows_are_never_deleted(self, harness: Harness) -> None:
        store = harness.store
        now = await store.now_ms()
        claims = [await accept_and_claim(store) for _ in range(3)]
        await store.settle([in_doubt(claims[0]), retry_in(claims[1], DAY_MS)])
        await accept(store, a_notification(send_at=now + 900 * DAY_MS, max_age_ms=900 * DAY_MS))
        await accept(store, a_notification(mode=Mode.SYNCHRONOUS))
        await harness.advance(400 * DAY_MS)
        assert (await store.prune(RETENTION, 10))["notifications"] == 0
        assert await count_by_status(store) == {
            Status.PENDING: 2,
            Status.SENDING: 1,
            Status.RETRYING: 1,
            Status.IN_DOUBT: 1,
        }

    async def test_rows_are_deleted_in_bounded_steps(self, harness: Harness) -> None:
        store = harness.store
        claims = [await accept_and_claim(store) for _ in range(5)]
        await store.settle([sent(claim) for claim in claims])
        await harness.advance(8 * DAY_MS)
        steps = [(await store.prune(RETENTION, 2))["notifications"] for _ in range(4)]
        assert steps == [2, 2, 1, 0]
        assert await list_all(store) == []

    async def test_a_purge_does_not_change_other_rows(self, harness: Harness) -> None:
        store = harness.store
        claims = [await accept_and_claim(store) for _ in range(7)]
        await store.settle([sent(claim) for claim in claims[:5]])
        await store.settle([dead(claim) for claim in claims[5:]])
        await harness.advance(8 * DAY_MS)
        before = await list_all(store, filter=Filter(statuses=(Status.FAILED,)))
        await store.prune(RETENTION, 10)
        assert await list_all(store) == before
        assert [item.id for item in before] == [claims[6].id, claims[5].id]
        [group] = await store.error_groups("default")
        assert group.count == 2

    async def test_a_purge_moves_counts_to_purged(self, harness: Harness) -> None:
        store = harness.store
        claims = [await accept_and_claim(store, tenant="a") for _ in range(4)]
        await store.settle([retry_in(claims[0], 0), sent(claims[1]), sent(claims[2]), dead(claims[3])])
        [again] = await claim_all(store)
        await store.settle([sent(again)])
        await accept_one(store, tenant="b")
        hours = await store.roll_ups(None, since_ms=100 * DAY_MS)
        await harness.advance(8 * DAY_MS)
        await store.prune(RETENTION, 2)
        purged = sum(tally.purged for tally in await store.tallies("a"))
        assert purged == 2
        assert sum(tally.count + tally.purged for tally in await store.tallies("a")) == 4
        await store.prune(RETENTION, 2)
        assert tally_cells(await store.tallies("a")) == {
            (Status.SENT, 1): (0, 2),
            (Status.SENT, 2): (0, 1),
            (Status.FAILED, 1): (1, 0),
        }
        assert tally_cells(await store.tallies("b")) == {(Status.PENDING, 0): (1, 0)}
        assert tally_cells(await store.tallies(None))[Status.SENT, 1] == (0, 2)
        assert await store.roll_ups(None, since_ms=100 * DAY_MS) == hours

    async def test_deleted_rows_are_missing_everywhere(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store, tenant="a")
        await store.settle([sent(claim, "m-1")])
        await harness.advance(8 * DAY_MS)
        await store.prune(RETENTION, 10)
        assert (await store.settle([sent(claim)])).missing == (claim.id,)
        cancel = Command(name=CommandName.CANCEL, who="ada")
        assert (await store.amend("a", [claim.id], cancel)).missing == (claim.id,)
        receipt = a_receipt("m-1")
        assert (await store.receipt([receipt])).orphaned == (receipt.event_id,)
        assert (await store.waiting("a")).items == ()
        assert await store.tenants() == ("a",)

    async def test_a_new_notification_has_nothing_of_a_deleted_one(self, harness: Harness) -> None:
        """A store may use the internal number of a deleted row again."""
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([retry_in(claim, 0)])
        await store.amend("default", [claim.id], Command(name=CommandName.CANCEL, who="ada"))
        await harness.advance(31 * DAY_MS)
        assert (await store.prune(RETENTION, 10))["notifications"] == 1
        id = await accept_one(store)
        history = await store.get("default", id)
        assert history is not None
        assert (history.attempts, history.causes) == ((), ())
        await store.settle([sent(await claim_one(store))])
        history = await store.get("default", id)
        assert history is not None
        assert [attempt.outcome for attempt in history.attempts] == [OutcomeKind.ACCEPTED]

    async def test_idempotency_keys_are_deleted_at_their_own_age(self, harness: Harness) -> None:
        store = harness.store
        [first] = await store.accept([a_submission(key="k")])
        await harness.advance(7 * DAY_MS - HOUR_MS)
        assert (await store.prune(RETENTION, 10))["keys"] == 0
        [again] = await store.accept([a_submission(key="k")])
        assert again.ids == first.ids
        await harness.advance(2 * HOUR_MS)
        assert (await store.prune(RETENTION, 10))["keys"] == 1
        [fresh] = await store.accept([a_submission(key="k", fingerprint="other")])
        assert not fresh.conflict
        assert fresh.ids != first.ids
        assert await status_of(store, first.ids[0]) is Status.PENDING

    async def test_an_idempotency_key_outlives_its_notification(self, harness: Harness) -> None:
        store = harness.store
        [first] = await store.accept([a_submission(key="k")])
        [claim] = await claim_all(store)
        await store.settle([a_settlement(claim, Status.DELIVERED, attempt=an_attempt(claim))])
        await harness.advance(2 * DAY_MS)
        await store.prune(RETENTION, 10)
        assert await store.get("default", claim.id) is None
        [again] = await store.accept([a_submission(key="k")])
        assert again.ids == first.ids
        assert await list_all(store) == []

    async def test_dedup_keys_are_deleted_at_the_age_of_keys(self, harness: Harness) -> None:
        store = harness.store
        new = a_notification(dedup_key="d", dedup_window_ms=5 * DAY_MS)
        await accept_one(store, new)
        await harness.advance(6 * DAY_MS)
        assert (await store.prune(RETENTION, 10))["keys"] == 0
        await harness.advance(2 * DAY_MS)
        assert (await store.prune(RETENTION, 10))["keys"] == 1

    async def test_a_dedup_key_is_kept_for_its_window_if_that_is_longer(self, harness: Harness) -> None:
        store = harness.store
        new = a_notification(dedup_key="d", dedup_window_ms=30 * DAY_MS)
        id = await accept_one(store, new)
        await harness.advance(29 * DAY_MS)
        assert (await store.prune(RETENTION, 10))["keys"] == 0
        assert await accept_one(store, replace(new, id=an_id())) == id
        await harness.advance(2 * DAY_MS)
        assert (await store.prune(RETENTION, 10))["keys"] == 1
        assert await accept_one(store, replace(new, id=an_id())) != id

    async def test_long_dedup_windows_do_not_keep_other_keys(self, harness: Harness) -> None:
        store = harness.store
        for number in range(3):
            await accept_one(store, a_notification(dedup_key=f"long-{number}", dedup_window_ms=30 * DAY_MS))
        for number in range(3):
            await accept_one(store, a_notification(dedup_key=f"short-{number}", dedup_window_ms=HOUR_MS))
        await harness.advance(8 * DAY_MS)
        steps = [(await store.prune(RETENTION, 2))["keys"] for _ in range(3)]
        assert steps == [2, 1, 0]

    async def test_a_renewed_dedup_key_is_kept(self, harness: Harness) -> None:
        store = harness.store
        await accept_one(store, a_notification(dedup_key="d", dedup_window_ms=HOUR_MS))
        await harness.advance(5 * DAY_MS)
        renewed = a_notification(dedup_key="d", dedup_window_ms=20 * DAY_MS)
        # With a window of an hour, the key from five days ago does not count, so the notification is
        # accepted.
        id = await accept_one(store, replace(renewed, dedup_window_ms=HOUR_MS))
        await harness.advance(3 * DAY_MS)
        await store.prune(RETENTION, 10)
        assert await accept_one(store, replace(renewed, id=a_notification().id)) == id

    async def test_keys_are_deleted_in_bounded_steps(self, harness: Harness) -> None:
        store = harness.store
        await store.accept([a_submission(key=f"k-{number}") for number in range(5)])
        await harness.advance(8 * DAY_MS)
        steps = [(await store.prune(RETENTION, 2))["keys"] for _ in range(4)]
        assert steps == [2, 2, 1, 0]

    async def test_all_keys_and_all_statuses_share_the_bound_of_a_step(self, harness: Harness) -> None:
        store = harness.store
        await store.accept([a_submission(key=f"k-{number}") for number in range(2)])
        await accept(store, *(a_notification(dedup_key=f"d-{number}") for number in range(2)))
        claims = await claim_all(store)
        await store.settle([sent(claim) for claim in claims[:2]])
        await store.settle([dead(claim) for claim in claims[2:]])
        await harness.advance(40 * DAY_MS)
        steps = [await store.prune(RETENTION, 2) for _ in range(3)]
        assert [step["keys"] for step in steps] == [2, 2, 0]
        assert [step["notifications"] for step in steps] == [2, 2, 0]

    async def test_receipts_are_deleted_at_the_age_of_keys(self, harness: Harness) -> None:
        store = harness.store
        await accept_one(store, a_notification(max_age_ms=900 * DAY_MS))
        early = a_receipt("m-1")
        await store.receipt([early])
        await harness.advance(6 * DAY_MS)
        assert (await store.prune(RETENTION, 10))["receipts"] == 0
        await harness.advance(2 * DAY_MS)
        assert (await store.prune(RETENTION, 10))["receipts"] >= 1
        [claim] = (await store.claim(a_claim_request())).claims
        await store.settle([sent(claim, "m-1")])
        assert await status_of(store, claim.id) is Status.SENT
        assert (await store.receipt([early])).applied == (early.event_id,)
        assert await status_of(store, claim.id) is Status.DELIVERED

    async def test_a_recent_receipt_is_kept(self, harness: Harness) -> None:
        store = harness.store
        await accept_and_claim(store)
        await store.receipt([a_receipt("m-1", ReceiptEvent.OPEN), a_receipt("gone")])
        await harness.advance(6 * DAY_MS)
        await store.receipt([a_receipt("m-1", ReceiptEvent.CLICK)])
        await harness.advance(2 * DAY_MS)
        await store.prune(RETENTION, 10)
        [claim] = (await store.reclaim("w", 1, HOUR_MS)).claims
        await store.settle([sent(claim, "m-1")])
        assert (await get_notification(store, claim.id)).engagement == {"click": 1}

    async def test_receipts_are_deleted_in_bounded_steps(self, harness: Harness) -> None:
        store = harness.store
        await store.receipt([a_receipt(f"m-{number}") for number in range(5)])
        await harness.advance(8 * DAY_MS)
        steps = [(await store.prune(RETENTION, 2))["receipts"] for _ in range(6)]
        assert max(steps) <= 2
        assert sum(steps) >= 5
        assert steps[-1] == 0

    async def test_size_counts_the_notifications(self, harness: Harness) -> None:
        store = harness.store
        empty = await store.size()
        await accept(store, *(a_notification() for _ in range(20)))
        full = await store.size()
        assert _all_numbers(empty)
        assert _all_numbers(full)
        assert (empty["notifications"], full["notifications"]) == (0, 20)

    async def test_two_instances_read_the_same(self, harness: Harness) -> None:
        store, other = harness.store, await harness.second()
        id = await accept_and_send(store, "m-1")
        await _compare(store, other, id)
        await other.receipt([a_receipt("m-1")])
        await _compare(store, other, id)


async def _compare(one: Backend, other: Backend, id: str) -> None:
    assert await get_notification(one, id) == await get_notification(other, id)
    assert await one.tallies(None) == await other.tallies(None)


def _all_numbers(size: Mapping[str, int]) -> bool:
    return all(number >= 0 for number in size.values())
