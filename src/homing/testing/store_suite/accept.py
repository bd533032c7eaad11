"""Tests of `accept`: stored fields, due times, idempotency keys, deduplication and leases."""

from __future__ import annotations

import asyncio

import pytest

from homing.core.errors import StoreError
from homing.core.lifecycle.claims import NewNotification, StoredRequest, Submission
from homing.core.lifecycle.commands import Command, CommandName
from homing.core.lifecycle.events import STATUS_CHANGED
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.notifications import (
    Channel,
    Content,
    Filter,
    Message,
    Mode,
    OutcomeKind,
    Priority,
    Recipient,
    Status,
)
from homing.testing.builders import (
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
    sent,
)
from homing.testing.store_suite.harness import (
    Harness,
    accept,
    accept_one,
    claim_all,
    claim_one,
    close_to,
    count_by_status,
    get_notification,
    list_all,
    status_of,
    subscribe,
)


class AcceptTests:
    """Tests of `accept`."""

    bulk = 10_000
    """Number of notifications in the test of a large batch."""

    async def test_an_accepted_notification_reads_back_unchanged(self, harness: Harness) -> None:
        store = harness.store
        now = await store.now_ms()
        message = Message(
            recipient=Recipient(id="u-7", phone="+4930123456", locale="de-DE", time_zone="Europe/Berlin"),
            content=Content(body="Grüße ✓", data={"n": 1, "deep": {"list": [1, "two", None, True]}}),
            template_key="welcome",
            template_version="9f86d081",
            locale="de-DE",
            metadata={"entry_id": 42, "nested": {"a": [1.5]}},
        )
        new = a_notification(
            channel=Channel.SMS,
            mode=Mode.PRIORITY,
            type="alarm",
            category="safety",
            priority=Priority.CRITICAL,
            origin="auth",
            provider="twilio",
            pinned=True,
            address="+4930123456",
            message=message,
            expires_at=now + HOUR_MS,
        )
        answer = await accept(store, new, batch_id="b-1")
        assert answer.ids == (new.id,)
        found = await get_notification(store, new.id)
        assert (found.tenant, found.batch_id, found.status) == ("default", "b-1", Status.PENDING)
        assert (found.channel, found.mode, found.priority) == (Channel.SMS, Mode.PRIORITY, Priority.CRITICAL)
        assert (found.type, found.category, found.origin) == ("alarm", "safety", "auth")
        assert (found.provider, found.pinned, found.attempt_count) == ("twilio", True, 0)
        assert (found.recipient, found.content) == (message.recipient, message.content)
        assert (found.template_key, found.template_version) == ("welcome", "9f86d081")
        assert found.locale == "de-DE"
        assert found.metadata == message.metadata
        assert close_to(found.created_at, now)
        assert found.updated_at == found.next_retry_at == found.created_at
        assert close_to(found.expires_at, now + HOUR_MS)
        assert (found.sent_at, found.failed_at, found.reason) == (None, None, None)

    async def test_results_are_in_the_order_of_the_submissions(self, harness: Harness) -> None:
        batch = [a_submission(a_notification(), a_notification()), a_submission(), a_submission()]
        answers = await harness.store.accept(batch)
        assert [a.batch_id for a in answers] == [s.batch_id for s in batch]
        assert [a.ids for a in answers] == [tuple(n.id for n in s.notifications) for s in batch]
        assert not any(a.duplicates or a.conflict or a.claims for a in answers)

    async def test_an_empty_batch_has_an_empty_result(self, harness: Harness) -> None:
        assert await harness.store.accept([]) == ()

    async def test_ten_thousand_notifications_are_accepted_in_one_call(self, harness: Harness) -> None:
        store = harness.store
        news = tuple(a_notification() for _ in range(self.bulk))
        answer = await accept(store, *news)
        assert answer.ids == tuple(new.id for new in news)
        assert await count_by_status(store) == {Status.PENDING: self.bulk}

    async def test_a_notification_with_send_at_waits_until_then(self, harness: Harness) -> None:
        store = harness.store
        new = a_notification(send_at=await store.now_ms() + HOUR_MS)
        await accept(store, new)
        assert close_to((await get_notification(store, new.id)).next_retry_at, new.send_at or 0)
        await harness.advance(HOUR_MS - MINUTE_MS)
        assert await claim_all(store) == ()
        await harness.advance(2 * MINUTE_MS)
        assert (await claim_one(store)).id == new.id

    async def test_a_send_at_in_the_past_is_due_at_once(self, harness: Harness) -> None:
        store = harness.store
        now = await store.now_ms()
        new = a_notification(send_at=now - HOUR_MS)
        await accept(store, new)
        claim = await claim_one(store)
        assert claim.id == new.id
        assert claim.due_at >= now

    async def test_the_same_key_and_body_return_the_same_ids(self, harness: Harness) -> None:
        store = harness.store
        [first] = await store.accept([a_submission(a_notification(), a_notification(), key="k")])
        [again] = await store.accept([a_submission(a_notification(), a_notification(), key="k")])
        assert (again.batch_id, again.ids) == (first.batch_id, first.ids)
        assert again.duplicates == frozenset(first.ids)
        assert not again.conflict
        assert await count_by_status(store) == {Status.PENDING: 2}

    async def test_the_same_key_with_another_body_is_a_conflict(self, harness: Harness) -> None:
        store = harness.store
        await store.accept([a_submission(key="k", fingerprint="one")])
        [answer] = await store.accept([a_submission(key="k", fingerprint="two")])
        assert answer.conflict
        assert answer.ids == ()
        assert await count_by_status(store) == {Status.PENDING: 1}

    async def test_a_key_is_unique_within_one_batch_too(self, harness: Harness) -> None:
        store = harness.store
        first, again, other = await store.accept(
            [
                a_submission(key="k", fingerprint="one"),
                a_submission(key="k", fingerprint="one"),
                a_submission(key="k", fingerprint="two"),
            ]
        )
        assert (again.batch_id, again.ids) == (first.batch_id, first.ids)
        assert again.duplicates == frozenset(first.ids)
        assert not first.duplicates
        assert other.conflict
        assert await count_by_status(store) == {Status.PENDING: 1}

    async def test_a_conflict_does_not_affect_the_rest_of_its_batch(self, harness: Harness) -> None:
        store = harness.store
        await store.accept([a_submission(key="k", fingerprint="one")])
        before, conflict, after = await store.accept(
            [a_submission(), a_submission(key="k", fingerprint="two"), a_submission()]
        )
        assert conflict.conflict
        assert not before.conflict
        assert not after.conflict
        assert await count_by_status(store) == {Status.PENDING: 3}

    async def test_the_same_key_of_another_tenant_is_another_request(self, harness: Harness) -> None:
        store = harness.store
        [mine] = await store.accept([a_submission(tenant="a", key="k", fingerprint="one")])
        [theirs] = await store.accept([a_submission(tenant="b", key="k", fingerprint="two")])
        assert not theirs.conflict
        assert not theirs.duplicates
        assert theirs.ids != mine.ids

    async def test_a_key_returns_the_same_ids_after_the_notification_was_sent(self, harness: Harness) -> None:
        store = harness.store
        [first] = await store.accept([a_submission(key="k")])
        await store.settle([sent(await claim_one(store))])
        [again] = await store.accept([a_submission(key="k")])
        assert again.ids == first.ids
        assert await claim_all(store) == ()
        assert await count_by_status(store) == {Status.SENT: 1}

    async def test_one_key_used_at_two_instances_at_once_creates_one_set_of_rows(
        self, harness: Harness
    ) -> None:
        stores = (harness.store, await harness.second())
        submissions = [a_submission(a_notification(), a_notification(), key="k") for _ in range(6)]
        answers = await asyncio.gather(
            *(stores[number % 2].accept([submission]) for number, submission in enumerate(submissions))
        )
        assert len({(answer.batch_id, answer.ids) for (answer,) in answers}) == 1
        assert sum(not answer.duplicates for (answer,) in answers) == 1
        assert await count_by_status(harness.store) == {Status.PENDING: 2}

    async def test_known_requests_returns_what_was_accepted_under_a_key(self, harness: Harness) -> None:
        store = harness.store
        [first] = await store.accept([a_submission(a_notification(), a_notification(), key="k")])
        await store.accept([a_submission(key="k", tenant="other")])
        keys = [("default", "k"), ("default", "unknown"), ("unknown", "k")]
        known = await store.known_requests(keys)
        assert known == {("default", "k"): StoredRequest("body", first.batch_id, first.ids)}
        assert await store.known_requests([]) == {}

    async def test_accepting_the_same_submission_again_stores_nothing_twice(self, harness: Harness) -> None:
        """A caller that lost the response may repeat the call, even without an idempotency key."""
        store = harness.store
        submission = a_submission(a_notification(), a_notification())
        [first] = await store.accept([submission])
        [again] = await store.accept([submission])
        assert (again.batch_id, again.ids) == (first.batch_id, first.ids)
        assert again.duplicates == frozenset(first.ids)
        assert await count_by_status(store) == {Status.PENDING: 2}
        assert len(await claim_all(store)) == 2

    @pytest.mark.parametrize("tenant", ["default", "other"])
    @pytest.mark.parametrize("keys", [(None, None), ("k-1", None), (None, "k-2")])
    @pytest.mark.parametrize("events", [(), (STATUS_CHANGED,)])
    async def test_an_id_of_another_request_is_refused(
        self, harness: Harness, tenant: str, keys: tuple[str | None, str | None], events: tuple[str, ...]
    ) -> None:
        store = harness.store
        await subscribe(store, *events)
        first = a_notification()
        await store.accept([a_submission(first, key=keys[0])])
        second = a_submission(a_notification(id=first.id), tenant=tenant, key=keys[1])
        with pytest.raises(StoreError, match="already belongs to another"):
            await store.accept([second])
        assert await count_by_status(store, None) == {Status.PENDING: 1}

    async def test_a_dedup_key_inside_its_window_returns_the_earlier_id(self, harness: Harness) -> None:
        store = harness.store
        earlier = await accept_one(store, _once("d"))
        await harness.advance(HOUR_MS - 2 * MINUTE_MS)
        other = a_notification()
        answer = await accept(store, _once("d"), other)
        assert answer.ids == (earlier, other.id)
        assert answer.duplicates == frozenset({earlier})
        assert {n.id for n in await list_all(store)} == {earlier, other.id}

    async def test_a_dedup_key_works_within_one_submission(self, harness: Harness) -> None:
        store = harness.store
        first, second = _once("d"), _once("d")
        answer = await accept(store, first, second)
        assert answer.ids == (first.id, first.id)
        assert answer.duplicates == frozenset({first.id})
        assert await count_by_status(store) == {Status.PENDING: 1}

    async def test_a_dedup_key_works_between_the_submissions_of_a_batch(self, harness: Harness) -> None:
        store = harness.store
        one, two = a_submission(_once("d")), a_submission(_once("d"))
        first, second = await store.accept([one, two])
        assert second.ids == first.ids
        assert second.duplicates == frozenset(first.ids)
        assert not first.duplicates
        assert await count_by_status(store) == {Status.PENDING: 1}

    async def test_the_dedup_window_starts_at_the_acceptance_and_ends(self, harness: Harness) -> None:
        store = harness.store
        earlier = await accept_one(store, _once("d"))
        await harness.advance(40 * MINUTE_MS)
        assert await accept_one(store, _once("d")) == earlier
        await harness.advance(
            30 * MINUTE_MS
        )  # over an hour after the acceptance, but not after the duplicate
        later = await accept_one(store, _once("d"))
        assert later != earlier
        await harness.advance(30 * MINUTE_MS)
        assert await accept_one(store, _once("d")) == later

    async def test_a_dedup_key_of_a_cancelled_notification_does_not_count(self, harness: Harness) -> None:
        store = harness.store
        cancelled = await accept_one(store, _once("d"))
        await store.amend("default", [cancelled], Command(name=CommandName.CANCEL, who="ada"))
        assert await status_of(store, cancelled) is Status.CANCELLED
        first, second = _once("d"), _once("d")
        one, two = await store.accept([a_submission(first), a_submission(second)])
        assert (one.ids, two.ids) == ((first.id,), (first.id,))
        assert not one.duplicates
        assert two.duplicates == frozenset({first.id})
        assert await accept_one(store, _once("d")) == first.id
        assert await count_by_status(store) == {Status.CANCELLED: 1, Status.PENDING: 1}

    @pytest.mark.parametrize("outcome", [OutcomeKind.AMBIGUOUS, OutcomeKind.LOST, OutcomeKind.TRANSIENT])
    @pytest.mark.parametrize("while_sending", [True, False])
    async def test_a_dedup_key_counts_if_a_provider_may_have_taken_the_cancelled_notification(
        self, harness: Harness, outcome: OutcomeKind, while_sending: bool
    ) -> None:
        store = harness.store
        id = await accept_one(store, _once("d"))
        claim = await claim_one(store)
        cancel = Command(name=CommandName.CANCEL, who="ada")
        retry = a_settlement(claim, Status.RETRYING, attempt=an_attempt(claim, outcome), delay_ms=MINUTE_MS)
        if while_sending:
            await store.amend("default", [id], cancel)
        await store.settle([retry])
        if not while_sending:
            await store.amend("default", [id], cancel)
        assert await status_of(store, id) is Status.CANCELLED
        was_not_sent = outcome is OutcomeKind.TRANSIENT
        assert (await accept_one(store, _once("d")) != id) is was_not_sent

    @pytest.mark.parametrize("reported", [ReceiptEvent.FAILED, ReceiptEvent.SENT])
    @pytest.mark.parametrize("while_sending", [True, False])
    async def test_a_dedup_key_of_a_cancelled_notification_does_not_count_if_its_failure_was_reported(
        self, harness: Harness, reported: ReceiptEvent, while_sending: bool
    ) -> None:
        store = harness.store
        id = await accept_one(store, _once("d"))
        claim = await claim_one(store)
        cancel = Command(name=CommandName.CANCEL, who="ada")
        if while_sending:
            await store.amend("default", [id], cancel)
        await store.settle([sent(claim, "m-1")])
        await store.receipt([a_receipt("m-1", reported)])
        if not while_sending:
            await store.amend("default", [id], cancel)
        is_cancelled = reported is ReceiptEvent.FAILED
        assert (await status_of(store, id) is Status.CANCELLED) is is_cancelled
        assert (await accept_one(store, _once("d")) != id) is is_cancelled

    async def test_a_dedup_key_counts_if_the_failure_of_another_message_was_reported(
        self, harness: Harness
    ) -> None:
        store = harness.store
        id = await accept_one(store, _once("d"))
        claim = await claim_one(store)
        attempt = an_attempt(claim, OutcomeKind.AMBIGUOUS)
        await store.settle([a_settlement(claim, Status.RETRYING, attempt=attempt)])
        await store.settle([sent(await claim_one(store), "m-2")])
        await store.receipt([a_receipt("m-2", ReceiptEvent.FAILED)])
        await store.amend("default", [id], Command(name=CommandName.CANCEL, who="ada"))
        assert await status_of(store, id) is Status.CANCELLED
        assert await accept_one(store, _once("d")) == id

    async def test_a_dedup_key_counts_while_its_notification_may_still_be_sent(
        self, harness: Harness
    ) -> None:
        store = harness.store
        id = await accept_one(store, _once("d"))
        claim = await claim_one(store)
        await store.amend("default", [id], Command(name=CommandName.CANCEL, who="ada"))
        assert await status_of(store, id) is Status.SENDING
        assert await accept_one(store, _once("d")) == id
        await store.settle([sent(claim)])
        assert await accept_one(store, _once("d")) == id

    async def test_a_dedup_key_of_another_tenant_is_another_key(self, harness: Harness) -> None:
        store = harness.store
        mine = await accept_one(store, _once("d"), tenant="a")
        theirs = await accept_one(store, _once("d"), tenant="b")
        assert mine != theirs

    async def test_a_dedup_key_without_a_window_has_no_effect(self, harness: Harness) -> None:
        store = harness.store
        answer = await accept(store, a_notification(dedup_key="d"), a_notification(dedup_key="d"))
        assert len(set(answer.ids)) == 2
        assert not answer.duplicates

    async def test_a_repeated_key_returns_the_ids_that_dedup_returned(self, harness: Harness) -> None:
        store = harness.store
        earlier = await accept_one(store, _once("d"))
        [first] = await store.accept([a_submission(_once("d"), a_notification(), key="k")])
        [again] = await store.accept([a_submission(_once("d"), a_notification(), key="k")])
        assert first.ids[0] == earlier
        assert again.ids == first.ids
        assert again.duplicates == frozenset(first.ids)
        assert await count_by_status(store) == {Status.PENDING: 2}

    async def test_accepting_with_a_lease_returns_the_claim(self, harness: Harness) -> None:
        store = harness.store
        submission = _synchronous(lease_ms=HOUR_MS)
        [answer] = await store.accept([submission])
        [claim] = answer.claims
        now = await store.now_ms()
        assert claim.id == answer.ids[0] == submission.notifications[0].id
        assert (claim.worker, claim.attempt, claim.overdue) == ("caller", 1, False)
        assert claim.batch_id == submission.batch_id
        assert claim.message == submission.notifications[0].message
        assert close_to(claim.lease_until, now + HOUR_MS)
        assert close_to(claim.started_at, now)
        found = await get_notification(store, claim.id)
        assert (found.status, found.attempt_count) == (Status.SENDING, 1)
        assert await count_by_status(store) == {Status.SENDING: 1}

    async def test_a_row_accepted_with_a_lease_is_not_claimed_and_can_be_settled(
        self, harness: Harness
    ) -> None:
        store = harness.store
        [answer] = await store.accept([_synchronous(lease_ms=HOUR_MS)])
        claim = answer.claims[0]
        assert await claim_all(store, claim.lane) == ()
        assert (await store.reclaim("w-2", 10, HOUR_MS)).claims == ()
        assert (await store.settle([sent(claim)])).applied == (claim.id,)
        assert await status_of(store, claim.id) is Status.SENT

    async def test_a_repeated_submission_is_not_leased_again(self, harness: Harness) -> None:
        store = harness.store
        [first] = await store.accept([_synchronous(lease_ms=HOUR_MS, key="k")])
        [again] = await store.accept([_synchronous(lease_ms=HOUR_MS, key="k")])
        assert again.ids == first.ids
        assert again.claims == ()
        assert (await store.settle([sent(first.claims[0])])).applied == first.ids

    async def test_changing_the_message_after_accept_has_no_effect(self, harness: Harness) -> None:
        store = harness.store
        new = a_notification(message=a_message(order=1))
        await accept(store, new)
        new.message.metadata["order"] = 2
        assert (await get_notification(store, new.id)).metadata == {"order": 1}
        (await get_notification(store, new.id)).metadata["order"] = 3
        assert (await get_notification(store, new.id)).metadata == {"order": 1}
        assert (await claim_one(store)).message.metadata == {"order": 1}

    async def test_submissions_of_many_tenants_share_one_call(self, harness: Harness) -> None:
        store = harness.store
        await store.accept([a_submission(tenant=tenant) for tenant in ("a", "b", "a")])
        assert len((await store.list("a", Filter())).items) == 2
        assert len((await store.list("b", Filter())).items) == 1
        assert len((await store.claim(a_claim_request())).claims) == 3


def _once(key: str) -> NewNotification:
    return a_notification(dedup_key=key, dedup_window_ms=HOUR_MS)


def _synchronous(*, lease_ms: int, key: str | None = None) -> Submission:
    new = a_notification(id=an_id(), mode=Mode.SYNCHRONOUS, type="otp")
    return a_submission(new, key=key, lease_to="caller", lease_ms=lease_ms)
