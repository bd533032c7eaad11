"""Tests of receipts: deliveries, failures, failover after a failure, and repeated events."""

from __future__ import annotations

import pytest

from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.lifecycle.views import optional_moment
from homing.core.notifications import Mode, OutcomeKind, Reason, Status
from homing.core.routing.failover import RouteStep
from homing.testing.builders import (
    DAY_MS,
    FAILURE_CLASSES,
    HOUR_MS,
    MAIL_ROUTE,
    MINUTE_MS,
    a_notification,
    a_receipt,
    a_submission,
    postponed,
    retry_in,
    sent,
    unsure,
)
from homing.testing.store_suite.harness import (
    MARGIN_MS,
    Harness,
    accept_and_claim,
    accept_and_send,
    claim_all,
    claim_one,
    close_to,
    count_by_status,
    get_notification,
    make_in_doubt,
    status_of,
)

E, K = ReceiptEvent, OutcomeKind


class ReceiptTests:
    """Tests of `receipt` for attempts that are settled."""

    async def test_a_delivery_receipt_sets_the_status_delivered(self, harness: Harness) -> None:
        store = harness.store
        id = await accept_and_send(store, "m-1")
        receipt = a_receipt("m-1")
        result = await store.receipt([receipt])
        assert (result.applied, result.unchanged, result.orphaned) == ((receipt.event_id,), (), ())
        history = await store.get("default", id)
        assert history is not None
        assert history.notification.status is Status.DELIVERED
        assert close_to(history.notification.delivered_at, await store.now_ms())
        [cause] = history.causes
        assert (cause.kind, cause.name, cause.who) == ("receipt", "delivered", "sendgrid")
        assert (cause.status_before, cause.status_after) == (Status.SENT, Status.DELIVERED)
        assert await count_by_status(store) == {Status.DELIVERED: 1}

    async def test_a_repeated_event_changes_nothing(self, harness: Harness) -> None:
        store = harness.store
        id = await accept_and_send(store, "m-1")
        for event in (E.OPEN, E.DELIVERED):
            receipt = a_receipt("m-1", event)
            await store.receipt([receipt])
            before = await store.get("default", id)
            result = await store.receipt([receipt, receipt])
            assert result.unchanged == (receipt.event_id, receipt.event_id)
            assert not result.applied
            assert await store.get("default", id) == before

    async def test_a_repeated_event_within_one_batch_changes_nothing(self, harness: Harness) -> None:
        store = harness.store
        id = await accept_and_send(store, "m-1")
        receipt = a_receipt("m-1", E.CLICK)
        result = await store.receipt([receipt, receipt])
        assert (result.applied, result.unchanged) == ((receipt.event_id,), (receipt.event_id,))
        assert (await get_notification(store, id)).engagement == {"click": 1}

    async def test_providers_may_use_the_same_event_id(self, harness: Harness) -> None:
        store = harness.store
        one = await accept_and_send(store, "m-1")
        other = await accept_and_send(store, "m-1", a_notification(provider="acs"))
        await store.receipt([a_receipt("m-1", event_id="e")])
        result = await store.receipt([a_receipt("m-1", event_id="e", provider="acs")])
        assert result.applied == ("e",)
        assert await status_of(store, one) is await status_of(store, other) is Status.DELIVERED

    async def test_a_lower_rank_never_undoes_a_higher_one(self, harness: Harness) -> None:
        store = harness.store
        id = await accept_and_send(store, "m-1")
        await store.receipt([a_receipt("m-1", E.DELIVERED)])
        late = [a_receipt("m-1", event) for event in (E.QUEUED, E.SENT, E.FAILED)]
        result = await store.receipt(late)
        assert result.unchanged == tuple(receipt.event_id for receipt in late)
        assert await status_of(store, id) is Status.DELIVERED

    @pytest.mark.parametrize("event", [E.QUEUED, E.SENT])
    async def test_a_report_that_the_message_was_taken_ends_the_waiting_retry(
        self, harness: Harness, event: ReceiptEvent
    ) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([unsure(claim, MINUTE_MS)])
        receipt = a_receipt("m-1", event, notification_id=claim.id)
        assert (await store.receipt([receipt])).applied == (receipt.event_id,)
        found = await get_notification(store, claim.id)
        assert (found.status, found.next_retry_at) == (Status.SENT, None)
        assert await count_by_status(store) == {Status.SENT: 1}
        await harness.advance(2 * MINUTE_MS)
        assert await claim_all(store) == ()

    async def test_a_report_during_the_repeated_attempt_prevents_a_third_one(self, harness: Harness) -> None:
        store = harness.store
        await store.settle([unsure(await accept_and_claim(store), 0)])
        again = await claim_one(store)
        receipt = a_receipt("m-1", E.SENT, notification_id=again.id, attempt=1)
        assert (await store.receipt([receipt])).orphaned == (receipt.event_id,)
        assert await status_of(store, again.id) is Status.SENDING
        await store.settle([unsure(again, 0)])
        assert await status_of(store, again.id) is Status.SENT
        assert await claim_all(store) == ()

    async def test_a_report_that_the_attempt_failed_replaces_its_waiting_retry(
        self, harness: Harness
    ) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([unsure(claim, HOUR_MS)])
        await store.receipt([a_receipt("m-1", E.FAILED, notification_id=claim.id)])
        again = await claim_one(store)
        assert (again.provider, again.attempt, again.moves, again.bounce_floor) == ("acs", 2, 1, 1)

    async def test_the_result_has_what_follows_from_each_new_failure(self, harness: Harness) -> None:
        store = harness.store
        moved = await accept_and_send(store, "m-1")
        stays = await accept_and_send(store, "m-2")
        ends = await accept_and_send(store, "m-3")
        batch = [
            a_receipt("m-1", E.FAILED, error_code="30005"),
            a_receipt("m-2", E.FAILED, route=MAIL_ROUTE[:1], backoff_ms=MINUTE_MS),
            a_receipt("m-3", E.FAILED, outcome=K.BAD_CONTENT),
            a_receipt("m-3", E.SPAM_REPORT),
        ]
        first, second, third, fourth = (await store.receipt(batch)).failures
        assert (first.id, first.provider, first.event) == (moved, "sendgrid", "failed")
        assert (first.outcome, first.error_code) == (K.TRANSIENT, "30005")
        assert 0 <= first.elapsed_ms < MARGIN_MS
        assert (first.status, first.next_provider, first.delay_ms) == (Status.RETRYING, "acs", 0)
        assert (second.id, second.next_provider) == (stays, "sendgrid")
        assert second.delay_ms > 0
        assert (third.id, third.status, third.next_provider) == (ends, Status.FAILED, "")
        assert (fourth.id, fourth.event, fourth.status) == (ends, "spam_report", Status.FAILED)
        assert (await store.receipt(batch)).failures == ()
        assert (await store.receipt([a_receipt("m-1", E.OPEN)])).failures == ()

    async def test_a_failure_fails_over_to_the_next_provider_at_once(self, harness: Harness) -> None:
        store = harness.store
        id = await accept_and_send(store, "m-1")
        receipt = a_receipt("m-1", E.FAILED, error="bounced", error_code="5.1.1")
        await store.receipt([receipt])
        found = await get_notification(store, id)
        assert (found.status, found.provider, found.sent_at) == (Status.RETRYING, "acs", None)
        assert (found.last_error, found.error_code) == ("bounced", "5.1.1")
        claim = await claim_one(store)
        assert (claim.provider, claim.outlet) == ("acs", "acs")
        assert (claim.attempt, claim.bounce_floor, claim.failures_here) == (2, 1, 0)
        assert (dict(claim.spent), claim.moves, claim.free_move) == ({"sendgrid": 1}, 1, True)
        assert dict(claim.holds) == {}
        assert claim.last_delay_ms == 0  # a move at once has no backoff

    async def test_after_failures_at_all_providers_a_new_round_begins_after_the_backoff(
        self, harness: Harness
    ) -> None:
        store = harness.store
        await accept_and_send(store, "m-1", bounce_ms=(2 * HOUR_MS, 2 * HOUR_MS))
        await store.receipt([a_receipt("m-1", E.FAILED)])
        await store.settle([sent(await claim_one(store), "m-2", bounce_ms=(HOUR_MS, HOUR_MS))])
        await store.receipt([a_receipt("m-2", E.FAILED, provider="acs")])
        assert await claim_all(store) == ()
        await harness.advance(HOUR_MS + MARGIN_MS)
        third = await claim_one(store)
        assert (third.provider, third.attempt, third.moves) == ("sendgrid", 3, 1)
        assert (dict(third.spent), third.free_move, third.bounce_floor) == ({}, False, 2)
        await store.settle([sent(third, "m-3", bounce_ms=(3 * HOUR_MS, 3 * HOUR_MS))])
        await store.receipt([a_receipt("m-3", E.FAILED)])
        assert (await claim_one(store)).provider == "acs"

    async def test_a_failure_of_the_only_provider_is_retried_after_the_backoff(
        self, harness: Harness
    ) -> None:
        store = harness.store
        id = await accept_and_send(store, "m-1", bounce_ms=(HOUR_MS, 2 * HOUR_MS))
        await store.receipt([a_receipt("m-1", E.FAILED, route=(RouteStep("sendgrid"),))])
        due_at, now = (await get_notification(store, id)).next_retry_at, await store.now_ms()
        assert due_at is not None
        assert optional_moment(now + HOUR_MS - MARGIN_MS) <= due_at <= optional_moment(now + 2 * HOUR_MS)
        assert await claim_all(store) == ()
        await harness.advance(2 * HOUR_MS)
        claim = await claim_one(store)
        assert (claim.provider, claim.attempt) == ("sendgrid", 2)
        assert HOUR_MS <= claim.last_delay_ms <= 2 * HOUR_MS

    async def test_a_failure_of_the_only_provider_waits_as_the_error_table_asks(
        self, harness: Harness
    ) -> None:
        store = harness.store
        id = await accept_and_send(store, "m-1")
        receipt = a_receipt("m-1", E.FAILED, retry_after_ms=HOUR_MS, route=(RouteStep("sendgrid"),))
        await store.receipt([receipt])
        assert close_to((await get_notification(store, id)).next_retry_at, await store.now_ms() + HOUR_MS)

    async def test_a_failure_of_a_forced_provider_is_retried_there_after_a_wait(
        self, harness: Harness
    ) -> None:
        store = harness.store
        id = await accept_and_send(store, "m-1", a_notification(pinned=True))
        await store.receipt([a_receipt("m-1", E.FAILED)])
        assert close_to((await get_notification(store, id)).next_retry_at, await store.now_ms() + MINUTE_MS)
        await harness.advance(MINUTE_MS + MARGIN_MS)
        claim = await claim_one(store)
        assert (claim.provider, claim.pinned) == ("sendgrid", True)

    @pytest.mark.parametrize("start", [Status.SENT, Status.IN_DOUBT])
    @pytest.mark.parametrize("kind", FAILURE_CLASSES)
    async def test_the_class_of_a_failure_decides_what_follows(
        self, harness: Harness, kind: OutcomeKind | None, start: Status
    ) -> None:
        store = harness.store
        id = (
            await accept_and_send(store, "m-1") if start is Status.SENT else await make_in_doubt(store, "m-1")
        )
        await store.receipt([a_receipt("m-1", E.FAILED, outcome=kind, error_code="e")])
        found = await get_notification(store, id)
        if kind in (K.BAD_CONTENT, K.BAD_RECIPIENT, K.DEAD_ADDRESS, K.OPTED_OUT):
            assert (found.status, found.reason) == (Status.FAILED, Reason.RECEIPT_FAILED)
            assert await claim_all(store) == ()
        else:
            assert (found.status, found.provider, found.error_code) == (Status.RETRYING, "acs", "e")
            assert (await claim_one(store)).provider == "acs"

    @pytest.mark.parametrize("pinned", [True, False])
    async def test_a_fault_of_the_only_provider_is_final(self, harness: Harness, pinned: bool) -> None:
        store = harness.store
        id = await accept_and_send(store, "m-1", a_notification(pinned=pinned))
        route = MAIL_ROUTE if pinned else (RouteStep("sendgrid"),)
        await store.receipt([a_receipt("m-1", E.FAILED, outcome=K.PROVIDER_FAULT, route=route)])
        found = await get_notification(store, id)
        assert (found.status, found.reason) == (Status.FAILED, Reason.RECEIPT_FAILED)

    async def test_after_a_provider_fault_the_row_waits_for_another_provider(self, harness: Harness) -> None:
        store = harness.store
        await accept_and_send(store, "m-1", bounce_ms=(2 * HOUR_MS, 2 * HOUR_MS))
        await store.receipt([a_receipt("m-1", E.FAILED)])
        await store.settle([sent(await claim_one(store), "m-2")])
        await store.receipt([a_receipt("m-2", E.FAILED, provider="acs", outcome=K.PROVIDER_FAULT)])
        assert await claim_all(store) == ()
        await harness.advance(2 * HOUR_MS + MARGIN_MS)
        assert (await claim_one(store)).provider == "sendgrid"

    async def test_an_unknown_failure_is_retried_once(self, harness: Harness) -> None:
        store = harness.store
        id = await accept_and_send(store, "m-1")
        unknown = a_receipt("m-1", E.FAILED, outcome=None)
        await store.receipt([unknown])
        again = a_receipt("m-1", E.FAILED, outcome=None)
        assert (await store.receipt([again])).unchanged == (again.event_id,)
        claim = await claim_one(store)
        await store.settle([sent(claim, "m-2")])
        await store.receipt([a_receipt("m-2", E.FAILED, provider="acs", outcome=None, error_code="?")])
        found = await get_notification(store, id)
        assert (found.status, found.reason, found.error_code) == (Status.FAILED, Reason.RECEIPT_FAILED, "?")
        assert found.attempt_count == 2

    async def test_a_postponement_keeps_everything_that_a_receipt_needs(self, harness: Harness) -> None:
        """A claim lacks the stored values that a receipt needs, so its settlement must not overwrite them."""
        store = harness.store
        id = await accept_and_send(store, "m-1", bounce_always=True)
        await store.receipt([a_receipt("m-1", E.FAILED, outcome=None)])
        await store.settle([postponed(await claim_one(store), 0)])
        await store.receipt([a_receipt("m-1", E.FAILED, outcome=K.BAD_RECIPIENT)])
        assert await status_of(store, id) is Status.RETRYING
        await store.settle([sent(await claim_one(store), "m-2")])
        await store.receipt([a_receipt("m-2", E.FAILED, provider="acs", outcome=None)])
        assert await status_of(store, id) is Status.FAILED

    async def test_the_error_tables_wait_also_applies_to_a_waiting_retry(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([retry_in(claim, 0, message_id="m-1")])
        await store.receipt([a_receipt("m-1", E.FAILED, retry_after_ms=HOUR_MS)])
        assert close_to((await claim_one(store)).holds["sendgrid"], await store.now_ms() + HOUR_MS)

    async def test_a_row_stored_by_an_older_version_uses_the_policy_in_the_receipt(
        self, harness: Harness
    ) -> None:
        store = harness.store
        always, never = [
            await accept_and_send(store, message, bounce_always=None, bounce_ms=None)
            for message in ("m-1", "m-2")
        ]
        route = (RouteStep("sendgrid"),)
        for message, failover in (("m-1", True), ("m-2", False)):
            receipt = a_receipt(
                message,
                E.FAILED,
                outcome=K.BAD_RECIPIENT,
                always_failover=failover,
                backoff_ms=HOUR_MS,
                route=route,
            )
            await store.receipt([receipt])
        found = await get_notification(store, always)
        assert found.status is Status.RETRYING
        assert close_to(found.next_retry_at, await store.now_ms() + HOUR_MS)
        assert await status_of(store, never) is Status.FAILED

    async def test_the_age_of_a_row_restarts_when_a_late_failure_reopens_it(self, harness: Harness) -> None:
        store = harness.store
        await accept_and_send(store, "m-1", a_notification(max_age_ms=DAY_MS))
        await harness.advance(3 * DAY_MS)
        await store.receipt([a_receipt("m-1", E.FAILED)])
        assert (await store.reclaim("w", 10, HOUR_MS)).claims == ()
        assert close_to((await claim_one(store)).aged_from, await store.now_ms())

    async def test_a_failure_that_is_the_recipients_fault_is_final(self, harness: Harness) -> None:
        store = harness.store
        id = await accept_and_send(store, "m-1")
        receipt = a_receipt("m-1", E.FAILED, outcome=K.BAD_RECIPIENT, always_failover=True)
        await store.receipt([receipt])
        found = await get_notification(store, id)
        assert (found.status, found.reason) == (Status.FAILED, Reason.RECEIPT_FAILED)
        assert await claim_all(store) == ()

    async def test_a_recipient_fault_fails_over_if_the_policy_allows_it(self, harness: Harness) -> None:
        store = harness.store
        await accept_and_send(store, "m-1", bounce_always=True)
        await store.receipt([a_receipt("m-1", E.FAILED, outcome=K.BAD_RECIPIENT)])
        assert (await claim_one(store)).provider == "acs"

    async def test_a_failed_synchronous_send_is_not_sent_later(self, harness: Harness) -> None:
        store = harness.store
        new = a_notification(mode=Mode.SYNCHRONOUS)
        [answer] = await store.accept([a_submission(new, lease_to="caller", lease_ms=HOUR_MS)])
        await store.settle([sent(answer.claims[0], "m-1")])
        await store.receipt([a_receipt("m-1", E.FAILED)])
        assert await status_of(store, new.id) is Status.FAILED

    async def test_a_spam_report_is_never_retried(self, harness: Harness) -> None:
        store = harness.store
        id = await accept_and_send(store, "m-1")
        await store.receipt([a_receipt("m-1", E.DELIVERED), a_receipt("m-1", E.SPAM_REPORT)])
        found = await get_notification(store, id)
        assert (found.status, found.reason) == (Status.FAILED, Reason.SPAM_REPORT)

    async def test_opens_and_clicks_are_counted(self, harness: Harness) -> None:
        store = harness.store
        id = await accept_and_send(store, "m-1")
        events = (E.OPEN, E.CLICK, E.OPEN, E.DELIVERED, E.OPEN)
        await store.receipt([a_receipt("m-1", event) for event in events])
        found = await get_notification(store, id)
        assert found.engagement == {"open": 3, "click": 1}
        assert found.status is Status.DELIVERED
        assert isinstance(found.engagement, dict)
        found.engagement["open"] = 99
        assert (await get_notification(store, id)).engagement["open"] == 3

    async def test_a_delivered_retry_is_not_sent_again(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([retry_in(claim, 0, message_id="m-1")])
        await store.receipt([a_receipt("m-1", E.DELIVERED)])
        assert await status_of(store, claim.id) is Status.DELIVERED
        assert await claim_all(store) == ()
        await harness.advance(2 * DAY_MS)
        assert (await store.reclaim("w", 10, HOUR_MS)).claims == ()

    async def test_a_failure_of_an_older_message_reopens_nothing(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([retry_in(claim, 0, message_id="m-1")])
        await store.settle([sent(await claim_one(store), "m-2")])
        await store.receipt([a_receipt("m-1", E.FAILED)])
        assert await status_of(store, claim.id) is Status.SENT
        assert await claim_all(store) == ()

    async def test_a_message_id_matches_only_at_its_provider(self, harness: Harness) -> None:
        store = harness.store
        id = await accept_and_send(store, "m-1")
        receipt = a_receipt("m-1", E.DELIVERED, provider="acs")
        assert (await store.receipt([receipt])).orphaned == (receipt.event_id,)
        assert await status_of(store, id) is Status.SENT

    async def test_one_unknown_message_never_fails_its_batch(self, harness: Harness) -> None:
        store = harness.store
        one, two = await accept_and_send(store, "m-1"), await accept_and_send(store, "m-2")
        batch = [a_receipt("m-1"), a_receipt("who?"), a_receipt("m-2")]
        result = await store.receipt(batch)
        assert result.applied == (batch[0].event_id, batch[2].event_id)
        assert result.orphaned == (batch[1].event_id,)
        assert await status_of(store, one) is await status_of(store, two) is Status.DELIVERED

    @pytest.mark.parametrize(
        ("event", "status"),
        [(E.QUEUED, Status.SENT), (E.SENT, Status.SENT), (E.DELIVERED, Status.DELIVERED)],
    )
    async def test_a_receipt_resolves_an_in_doubt_notification(
        self, harness: Harness, event: ReceiptEvent, status: Status
    ) -> None:
        store = harness.store
        id = await make_in_doubt(store, "m-1")
        await store.receipt([a_receipt("m-1", event)])
        assert await status_of(store, id) is status

    async def test_a_failure_reopens_an_in_doubt_notification(self, harness: Harness) -> None:
        store = harness.store
        id = await make_in_doubt(store, "m-1")
        await store.receipt([a_receipt("m-1", E.FAILED)])
        assert (await claim_one(store)).id == id

    async def test_each_message_has_its_own_rank(self, harness: Harness) -> None:
        store = harness.store
        first = await accept_and_claim(store)
        await store.settle([sent(first, "m-1")])
        await store.receipt([a_receipt("m-1", E.FAILED)])
        await store.settle([sent(await claim_one(store), "m-2")])
        await store.receipt([a_receipt("m-2", E.SENT, provider="acs")])
        assert await status_of(store, first.id) is Status.SENT
        await store.receipt([a_receipt("m-2", E.FAILED, provider="acs")])
        assert await status_of(store, first.id) is Status.RETRYING
