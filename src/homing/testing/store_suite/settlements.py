"""Tests that `settle` applies a settlement once, completely, and only with the current lease's token.

Also tests that a call changes nothing if a part of its input cannot be stored.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from homing.core.errors import StoreError
from homing.core.lifecycle.commands import Command, CommandName
from homing.core.lifecycle.events import ALERT, Event
from homing.core.lifecycle.outcomes import RegistryPut, Settlement
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.lifecycle.states import FINAL
from homing.core.notifications import OutcomeKind, Reason, Status
from homing.core.ports.stores import Entry
from homing.testing.builders import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    a_claim_request,
    a_message,
    a_notification,
    a_receipt,
    a_settlement,
    a_submission,
    an_attempt,
    an_id,
    dead,
    in_doubt,
    postponed,
    retry_in,
    sent,
)
from homing.testing.store_suite.harness import (
    Harness,
    accept_and_claim,
    claim_all,
    claim_one,
    close_to,
    count_by_status,
    get_notification,
    status_of,
    subscribe,
)

CANCEL = Command(name=CommandName.CANCEL, who="ada", why="changed my mind")


class SettleTests:
    """Tests of `settle`."""

    async def test_a_sent_notification_has_its_attempt(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        assert (await store.settle([sent(claim, "m-1")])).applied == (claim.id,)
        history = await store.get("default", claim.id)
        assert history is not None
        found = history.notification
        assert (found.status, found.attempt_count, found.next_retry_at) == (Status.SENT, 1, None)
        assert close_to(found.sent_at, claim.started_at)
        assert close_to(found.last_attempt_at, claim.started_at)
        assert (found.provider_names, found.provider_message_ids) == (("sendgrid",), ("m-1",))
        [attempt] = history.attempts
        assert (attempt.number, attempt.provider, attempt.outcome) == (1, "sendgrid", OutcomeKind.ACCEPTED)
        assert (attempt.worker, attempt.latency_ms, attempt.provider_message_id) == ("w-1", 120, "m-1")
        assert close_to(attempt.started_at, claim.started_at)
        assert (attempt.ended_at - attempt.started_at).total_seconds() == pytest.approx(0.12)
        assert await count_by_status(store) == {Status.SENT: 1}

    async def test_a_failed_attempt_whose_device_is_inactive_is_skipped_with_its_attempt(
        self, harness: Harness
    ) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        record = an_attempt(claim, OutcomeKind.TRANSIENT, error="try later", error_code="503")
        skipped = a_settlement(claim, Status.SKIPPED, attempt=record, reason=Reason.DEVICE_INACTIVE)
        assert (await store.settle([skipped])).applied == (claim.id,)
        history = await store.get("default", claim.id)
        assert history is not None
        found = history.notification
        assert (found.status, found.reason) == (Status.SKIPPED, Reason.DEVICE_INACTIVE)
        assert (found.attempt_count, found.next_retry_at, found.last_error) == (1, None, "try later")
        assert [attempt.outcome for attempt in history.attempts] == [OutcomeKind.TRANSIENT]
        assert history.causes == ()
        assert await count_by_status(store) == {Status.SKIPPED: 1}

    async def test_a_settlement_with_an_old_token_changes_nothing(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([retry_in(claim, 0)])
        fresh = await claim_one(store)
        put = RegistryPut(tenant="default", kind="device", key="d", value={"active": False})
        before = await store.get("default", claim.id), await store.tallies("default")
        for late in (
            sent(claim, "late"),
            dead(claim, puts=(put,)),
            replace(sent(fresh), token=fresh.token + 1),
        ):
            assert (await store.settle([late])).stale == (claim.id,)
        assert (await store.get("default", claim.id), await store.tallies("default")) == before
        assert await store.get_many("default", "device", ["d"]) == {}
        assert (await store.settle([sent(fresh)])).applied == (claim.id,)

    async def test_the_same_settlement_again_changes_nothing(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        settlement = retry_in(claim, HOUR_MS)
        assert (await store.settle([settlement])).applied == (claim.id,)
        before = await store.get("default", claim.id)
        assert (await store.settle([settlement])).stale == (claim.id,)
        assert await store.get("default", claim.id) == before

    async def test_two_settlements_of_one_claim_in_one_batch_apply_once(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        result = await store.settle([sent(claim, "m-1"), dead(claim)])
        assert (result.applied, result.stale) == ((claim.id,), (claim.id,))
        found = await get_notification(store, claim.id)
        assert (found.status, found.provider_message_ids) == (Status.SENT, ("m-1",))

    async def test_an_attempt_under_another_lease_with_the_same_token_is_stale(
        self, harness: Harness
    ) -> None:
        """It was made before the store went back to an earlier state."""
        store = harness.store
        claim = await accept_and_claim(store)
        for other in (replace(claim, worker="w-9"), replace(claim, started_at=claim.started_at - 1)):
            assert (await store.settle([sent(other)])).stale == (claim.id,)
        assert (await store.settle([sent(claim)])).applied == (claim.id,)

    async def test_the_result_groups_settlements_into_applied_stale_and_missing(
        self, harness: Harness
    ) -> None:
        store = harness.store
        claims = [await accept_and_claim(store) for _ in range(5)]
        await store.settle([sent(claims[1])])
        unknown = replace(sent(claims[0]), id="01890000-0000-7000-8000-000000000000")
        batch = [sent(claims[0]), sent(claims[1]), unknown, dead(claims[2]), retry_in(claims[3], 0)]
        old = replace(sent(claims[4]), token=claims[4].token - 1)
        result = await store.settle([*batch, old])
        assert result.applied == (claims[0].id, claims[2].id, claims[3].id)
        assert result.stale == (claims[1].id, claims[4].id)
        assert result.missing == (unknown.id,)
        assert await count_by_status(store) == {
            Status.SENT: 2,
            Status.FAILED: 1,
            Status.RETRYING: 1,
            Status.SENDING: 1,
        }

    async def test_an_empty_batch_settles_nothing(self, harness: Harness) -> None:
        result = await harness.store.settle([])
        assert (result.applied, result.stale, result.missing) == ((), (), ())

    async def test_a_retry_waits_for_its_delay(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        now = await store.now_ms()
        await store.settle([retry_in(claim, HOUR_MS, error="busy", error_code="429")])
        found = await get_notification(store, claim.id)
        assert (found.status, found.attempt_count) == (Status.RETRYING, 1)
        assert close_to(found.next_retry_at, now + HOUR_MS)
        assert (found.last_error, found.error_code) == ("busy", "429")

    async def test_a_postponement_gives_the_attempt_back(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([postponed(claim, MINUTE_MS, Reason.QUIET_HOURS)])
        found = await get_notification(store, claim.id)
        assert (found.status, found.attempt_count, found.reason) == (
            Status.PENDING,
            0,
            Reason.QUIET_HOURS,
        )
        assert (found.provider_names, found.last_attempt_at) == ((), None)
        assert await count_by_status(store) == {Status.PENDING: 1}
        await harness.advance(2 * MINUTE_MS)
        again = await claim_one(store)
        assert (again.attempt, again.last_delay_ms) == (1, 0)
        assert again.token > claim.token

    async def test_a_dead_letter_has_its_reason_and_error(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([dead(claim, reason=Reason.BAD_RECIPIENT, error="no such user", error_code="511")])
        found = await get_notification(store, claim.id)
        assert (found.status, found.reason) == (Status.FAILED, Reason.BAD_RECIPIENT)
        assert (found.last_error, found.error_code) == ("no such user", "511")
        assert close_to(found.failed_at, claim.started_at)
        assert found.next_retry_at is None

    async def test_attempts_are_stored_in_order(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        for message_id, provider in (("m-1", "acs"), (None, "sendgrid"), ("m-3", "acs")):
            await store.settle([retry_in(claim, 0, provider=provider, message_id=message_id)])
            claim = await claim_one(store)
        await store.settle([sent(claim, "m-4")])
        history = await store.get("default", claim.id)
        assert history is not None
        assert history.notification.provider_names == ("sendgrid", "acs", "sendgrid", "acs")
        assert history.notification.provider_message_ids == ("m-1", None, "m-3", "m-4")
        assert [attempt.number for attempt in history.attempts] == [1, 2, 3, 4]
        assert history.notification.provider == "acs"
        error = (history.notification.last_error, history.notification.error_code)
        assert error == ("try later", "503"), "the error of the last failed attempt stays"

    async def test_a_row_ended_by_the_guard_has_the_guard_as_its_cause(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        ended = a_settlement(claim, Status.SKIPPED, attempt=None, reason=Reason.SUPPRESSED, give_back=True)
        await store.settle([ended])
        history = await store.get("default", claim.id)
        assert history is not None
        assert (history.notification.status, history.notification.attempt_count) == (Status.SKIPPED, 0)
        assert history.notification.reason is Reason.SUPPRESSED
        assert history.attempts == ()
        [cause] = history.causes
        assert (cause.kind, cause.status_before, cause.status_after) == (
            "guard",
            Status.SENDING,
            Status.SKIPPED,
        )
        assert cause.why == Reason.SUPPRESSED.value

    async def test_a_delivered_outcome_needs_no_receipt(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([a_settlement(claim, Status.DELIVERED, attempt=an_attempt(claim))])
        found = await get_notification(store, claim.id)
        assert found.status is Status.DELIVERED
        assert close_to(found.delivered_at, claim.started_at)
        assert close_to(found.sent_at, claim.started_at)

    @pytest.mark.parametrize("status", sorted(FINAL | {Status.IN_DOUBT}))
    async def test_a_settled_final_status_ends_all_work(self, harness: Harness, status: Status) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([_ending(status, a_settlement(claim, status, attempt=an_attempt(claim)))])
        assert await status_of(store, claim.id) is status
        await harness.advance(3 * DAY_MS)
        batch = await store.claim(a_claim_request())
        assert (batch.claims, batch.next_due_at) == ((), None)
        assert (await store.reclaim("w", 10, HOUR_MS)).claims == ()
        assert (await store.waiting("default")).items == ()

    async def test_a_requested_cancel_takes_effect_instead_of_a_retry(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.amend("default", [claim.id], CANCEL)
        await store.settle([retry_in(claim, 0)])
        history = await store.get("default", claim.id)
        assert history is not None
        assert history.notification.status is Status.CANCELLED
        assert not history.notification.cancel_requested
        assert len(history.attempts) == 1
        assert [cause.name for cause in history.causes] == ["cancel", "cancel"]
        assert history.causes[-1].status_after is Status.CANCELLED
        assert await claim_all(store) == ()
        assert await count_by_status(store) == {Status.CANCELLED: 1}

    async def test_a_requested_cancel_takes_effect_instead_of_a_postponement(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.amend("default", [claim.id], CANCEL)
        await store.settle([postponed(claim, 0)])
        found = await get_notification(store, claim.id)
        assert (found.status, found.attempt_count, found.reason) == (Status.CANCELLED, 0, Reason.OPERATOR)

    async def test_a_requested_cancel_replaces_in_doubt_so_that_nothing_reopens_it(
        self, harness: Harness
    ) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.amend("default", [claim.id], CANCEL)
        await store.settle([in_doubt(claim)])
        found = await get_notification(store, claim.id)
        assert (found.status, found.reason, found.attempt_count) == (Status.CANCELLED, Reason.OPERATOR, 1)

    @pytest.mark.parametrize("status", [Status.SENT, Status.FAILED])
    async def test_a_requested_cancel_does_not_undo_a_final_outcome(
        self, harness: Harness, status: Status
    ) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.amend("default", [claim.id], CANCEL)
        match status:
            case Status.SENT:
                settlement = sent(claim)
            case _:
                settlement = dead(claim)
        await store.settle([settlement])
        found = await get_notification(store, claim.id)
        assert (found.status, found.cancel_requested) == (status, status is Status.SENT)

    @pytest.mark.parametrize("outcome", [None, OutcomeKind.TRANSIENT, OutcomeKind.BAD_RECIPIENT])
    async def test_a_receipt_after_a_requested_cancel_never_reopens(
        self, harness: Harness, outcome: OutcomeKind | None
    ) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.amend("default", [claim.id], CANCEL)
        await store.settle([sent(claim, "m-1")])
        bounce = a_receipt("m-1", ReceiptEvent.FAILED, outcome=outcome)
        assert (await store.receipt([bounce])).applied == (bounce.event_id,)
        found = await get_notification(store, claim.id)
        assert (found.status, found.reason, found.cancel_requested) == (
            Status.CANCELLED,
            Reason.OPERATOR,
            False,
        )
        assert await claim_all(store) == ()
        delivered = a_receipt("m-1", ReceiptEvent.DELIVERED)
        await store.receipt([delivered])
        assert await status_of(store, claim.id) is Status.DELIVERED

    async def test_a_message_that_was_taken_counts_after_a_requested_cancel_and_another_failure(
        self, harness: Harness
    ) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        unsure = an_attempt(claim, OutcomeKind.AMBIGUOUS, message_id="m-1")
        await store.settle([a_settlement(claim, Status.RETRYING, attempt=unsure)])
        (claim,) = await claim_all(store)
        await store.amend("default", [claim.id], CANCEL)
        await store.settle([sent(claim, "m-2")])
        found = []
        for message, event in (("m-2", ReceiptEvent.FAILED), ("m-1", ReceiptEvent.SENT)):
            await store.receipt([a_receipt(message, event)])
            found.append(await status_of(store, claim.id))
        await store.receipt([a_receipt("m-1", ReceiptEvent.FAILED)])
        found.append(await status_of(store, claim.id))
        assert found == [Status.CANCELLED, Status.SENT, Status.CANCELLED]

    async def test_an_early_receipt_after_a_requested_cancel_never_reopens(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.amend("default", [claim.id], CANCEL)
        await store.receipt([a_receipt("m-1", ReceiptEvent.FAILED, outcome=OutcomeKind.TRANSIENT)])
        await store.settle([sent(claim, "m-1")])
        assert await status_of(store, claim.id) is Status.CANCELLED

    async def test_reference_data_is_written_with_the_settlement(self, harness: Harness) -> None:
        store = harness.store
        values = ({"active": True, "platform": "ios"}, {"active": False})
        for value in values:
            claim = await accept_and_claim(store)
            put = RegistryPut(tenant="default", kind="device", key="tok", value=value)
            await store.settle([dead(claim, reason=Reason.DEAD_ADDRESS, puts=(put,))])
        entry = (await store.get_many("default", "device", ["tok"]))["tok"]
        assert (entry.value, entry.version, entry.updated_by) == (
            {"active": False, "platform": "ios"},
            2,
            "homing",
        )
        assert close_to(entry.updated_at, await store.now_ms())

    async def test_a_hold_lasts_until_its_time(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([retry_in(claim, 0, provider="acs", hold_ms=HOUR_MS)])
        claim = await claim_one(store)
        await store.settle([retry_in(claim, 0, provider="sns", hold_ms=DAY_MS)])
        claim = await claim_one(store)
        assert sorted(claim.holds) == ["acs", "sendgrid"]
        await harness.advance(2 * HOUR_MS)
        [claim] = (await store.reclaim("w", 10, HOUR_MS)).claims
        await store.settle([retry_in(claim, 0)])
        assert list((await claim_one(store)).holds) == ["acs"]


def _ending(status: Status, settlement: Settlement) -> Settlement:
    reason = {Status.EXPIRED: Reason.EXPIRED, Status.SKIPPED: Reason.SUPPRESSED}.get(status)
    return replace(settlement, reason=reason)


UNWRITABLE: dict[str, Any] = {"value": object()}

REFUSAL = (TypeError, ValueError, StoreError)


class AtomicityTests:
    """Tests that a call changes nothing if any part of its input cannot be stored."""

    async def test_a_batch_with_a_message_that_cannot_be_stored_is_not_accepted(
        self, harness: Harness
    ) -> None:
        store = harness.store
        good = a_submission(key="k")
        bad = a_submission(a_notification(message=a_message(**UNWRITABLE)))
        with pytest.raises(REFUSAL):
            await store.accept([good, bad])
        assert await count_by_status(store, None) == {}
        [answer] = await store.accept([good])
        assert not answer.duplicates

    async def test_a_batch_with_an_unwritable_settlement_can_be_settled_again(self, harness: Harness) -> None:
        store = harness.store
        await subscribe(store, "StatusChanged")
        good, bad = await accept_and_claim(store), await accept_and_claim(store)
        put = RegistryPut(tenant="default", kind="device", key="d", value=UNWRITABLE)
        before = await store.tallies("default")
        with pytest.raises(REFUSAL):
            await store.settle([sent(good), dead(bad, puts=(put,))])
        assert await store.tallies("default") == before
        assert (
            len(await store.outbox("sink", "relay", 100, HOUR_MS)) == 2
        )  # the events of the two acceptances
        assert (await store.settle([sent(good)])).applied == (good.id,)
        assert await status_of(store, bad.id) is Status.SENDING

    async def test_a_batch_with_an_unwritable_event_stores_no_event(self, harness: Harness) -> None:
        store = harness.store
        await subscribe(store, ALERT)
        good = Event(id=an_id(), name=ALERT, tenant="default", at=1)
        bad = Event(id=an_id(), name=ALERT, tenant="default", at=1, payload=UNWRITABLE)
        with pytest.raises(REFUSAL):
            await store.emit([good, bad])
        assert await store.outbox("sink", "relay", 10, HOUR_MS) == ()

    async def test_a_put_with_an_unwritable_entry_stores_no_entry(self, harness: Harness) -> None:
        store = harness.store
        good = Entry(tenant="default", kind="device", key="a", value={})
        bad = Entry(tenant="default", kind="device", key="b", value=UNWRITABLE)
        with pytest.raises(REFUSAL):
            await store.put([good, bad], who="ada")
        assert await store.get_many("default", "device", ["a", "b"]) == {}
