"""Tests of notifications with attempts in another system or with their own maximum of attempts."""

from __future__ import annotations

import msgspec

from homing.core.lifecycle.commands import CommandName
from homing.core.notifications import Filter, Status
from homing.testing.builders import HOUR_MS, a_notification, dead, retry_in, sent
from homing.testing.store_suite.harness import (
    Harness,
    a_command,
    accept_one,
    claim_all,
    claim_one,
    close_to,
    get_notification,
    tally_cells,
)


class PriorAttemptTests:
    """Tests of `accept` with `attempts_before` and `max_attempts`."""

    async def test_a_notification_attempted_elsewhere_waits_for_its_next_attempt(
        self, harness: Harness
    ) -> None:
        store = harness.store
        new = a_notification(attempts_before=2, delay_ms=HOUR_MS, max_attempts=4)
        now = await store.now_ms()
        await accept_one(store, new)
        found = await get_notification(store, new.id)
        assert (found.status, found.attempt_count) == (Status.RETRYING, 2)
        assert (found.attempts_before, found.max_attempts) == (2, 4)
        assert close_to(found.next_retry_at, now + HOUR_MS)
        assert found.last_attempt_at is None
        assert tally_cells(await store.tallies("default")) == {(Status.RETRYING, 2): (1, 0)}

    async def test_the_error_of_an_attempt_made_elsewhere_is_kept(self, harness: Harness) -> None:
        new = msgspec.structs.replace(a_notification(attempts_before=1), last_error="no such mailbox")
        await accept_one(harness.store, new)
        assert (await get_notification(harness.store, new.id)).last_error == "no such mailbox"

    async def test_a_notification_that_is_invalid_from_the_start_says_when_and_why_it_failed(
        self, harness: Harness
    ) -> None:
        new = msgspec.structs.replace(a_notification(), refused=True, last_error="no recipient")
        await accept_one(harness.store, new)
        found = await get_notification(harness.store, new.id)
        assert (found.status, found.last_error) == (Status.FAILED, "no recipient")
        assert found.reason is not None
        assert found.failed_at is not None

    async def test_it_is_not_claimed_before_its_delay_has_elapsed(self, harness: Harness) -> None:
        store = harness.store
        await accept_one(store, a_notification(attempts_before=1, delay_ms=HOUR_MS))
        await harness.advance(HOUR_MS // 2)
        assert await claim_all(store) == ()
        await harness.advance(HOUR_MS)
        claim = await claim_one(store)
        assert (claim.attempt, claim.attempts_before, claim.last_delay_ms) == (2, 1, HOUR_MS)

    async def test_the_delay_counts_from_the_failure_elsewhere(self, harness: Harness) -> None:
        store = harness.store
        failed_at = await store.now_ms() - HOUR_MS // 2
        new = a_notification(attempts_before=1, delay_ms=HOUR_MS)
        await accept_one(store, msgspec.structs.replace(new, delay_from=failed_at))
        found = await get_notification(store, new.id)
        assert close_to(found.next_retry_at, failed_at + HOUR_MS)
        await harness.advance(HOUR_MS // 4)
        assert await claim_all(store) == ()
        await harness.advance(HOUR_MS // 2)
        assert (await claim_one(store)).last_delay_ms == HOUR_MS

    async def test_a_send_at_after_the_delay_takes_precedence(self, harness: Harness) -> None:
        store = harness.store
        send_at = await store.now_ms() + 2 * HOUR_MS
        await accept_one(store, a_notification(attempts_before=1, delay_ms=HOUR_MS, send_at=send_at))
        await harness.advance(HOUR_MS + HOUR_MS // 2)
        assert await claim_all(store) == ()
        await harness.advance(HOUR_MS)
        assert (await claim_one(store)).attempt == 2

    async def test_attempt_numbers_continue_after_those_made_elsewhere(self, harness: Harness) -> None:
        store = harness.store
        new = a_notification(attempts_before=2, max_attempts=9)
        await accept_one(store, new)
        await store.settle([retry_in(await claim_one(store), 0)])
        claim = await claim_one(store)
        assert (claim.attempt, claim.attempts_before, claim.max_attempts) == (4, 2, 9)
        await store.settle([sent(claim, "m-4")])
        history = await store.get("default", new.id)
        assert history is not None
        assert [attempt.number for attempt in history.attempts] == [3, 4]
        assert history.notification.attempt_count == 4
        assert history.notification.provider_names == ("", "", "sendgrid", "sendgrid")
        assert history.notification.provider_message_ids == (None, None, None, "m-4")

    async def test_attempts_made_elsewhere_are_not_in_the_statistics(self, harness: Harness) -> None:
        store = harness.store
        await accept_one(store, a_notification(attempts_before=3))
        [hour] = await store.roll_ups("default", since_ms=HOUR_MS)
        assert (hour.accepted, hour.retried, hour.attempts) == (1, 0, 0)
        [listed] = (await store.list("default", Filter())).items
        assert (listed.attempt_count, listed.provider_names) == (3, ())
        assert await store.oldest_retry_at("default") is None

    async def test_a_resend_starts_at_zero_attempts_and_keeps_the_maximum(self, harness: Harness) -> None:
        store = harness.store
        new = a_notification(attempts_before=2, max_attempts=3)
        await accept_one(store, new)
        await store.settle([dead(await claim_one(store))])
        answer = await store.amend("default", [new.id], a_command(CommandName.RESEND, [new.id]))
        again = await get_notification(store, answer.resent[new.id])
        assert (again.status, again.attempt_count, again.attempts_before) == (Status.PENDING, 0, 0)
        assert again.max_attempts == 3
        claim = await claim_one(store)
        assert (claim.id, claim.attempt, claim.max_attempts) == (again.id, 1, 3)
