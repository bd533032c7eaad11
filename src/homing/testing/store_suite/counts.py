"""Tests of counts by status, by cause of failure and by hour, which must be exact after every call."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from homing.core.lifecycle.commands import Command, CommandName
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.lifecycle.views import optional_moment
from homing.core.notifications import Channel, OutcomeKind, Reason, Status
from homing.core.statistics import RollUp
from homing.testing.builders import (
    DAY_MS,
    HOUR_MS,
    a_notification,
    a_receipt,
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
    get_notification,
    tally_cells,
)


class CountTests:
    """Tests of `tallies`, `error_groups`, `roll_ups`, `oldest_retry_at` and `tenants`."""

    async def test_tallies_count_by_status_and_attempts(self, harness: Harness) -> None:
        store = harness.store
        await accept(store, *(a_notification() for _ in range(6)), tenant="a")
        claims = await claim_all(store)
        await store.settle([retry_in(claims[0], 0), retry_in(claims[1], HOUR_MS), sent(claims[2])])
        await store.settle([postponed(claims[3], HOUR_MS), dead(claims[4])])
        await claim_one(store)
        await accept_one(store, tenant="b")
        mine = {
            (Status.SENDING, 2): (1, 0),
            (Status.RETRYING, 1): (1, 0),
            (Status.SENT, 1): (1, 0),
            (Status.PENDING, 0): (1, 0),
            (Status.FAILED, 1): (1, 0),
            (Status.SENDING, 1): (1, 0),
        }
        assert tally_cells(await store.tallies("a")) == mine
        assert tally_cells(await store.tallies("b")) == {(Status.PENDING, 0): (1, 0)}
        assert tally_cells(await store.tallies(None)) == {**mine, (Status.PENDING, 0): (2, 0)}

    async def test_dead_letters_are_grouped_by_their_error(self, harness: Harness) -> None:
        store = harness.store
        await accept(store, *(a_notification() for _ in range(6)))
        claims = await claim_all(store)
        same = [dead(claim, error="full", error_code="552") for claim in claims[:3]]
        text = [dead(claim, error="over quota", error_code=None) for claim in claims[3:5]]
        await store.settle([*same, *text, sent(claims[5])])
        await harness.advance(HOUR_MS)
        claim = await accept_and_claim(store)
        await store.settle([dead(claim, reason=Reason.BAD_RECIPIENT, error="full", error_code="552")])
        acknowledge = Command(name=CommandName.ACKNOWLEDGE, who="ada")
        await store.amend("default", [claims[0].id], acknowledge)
        groups = await store.error_groups("default")
        assert [(g.reason, g.error_code, g.last_error, g.count, g.unacknowledged) for g in groups] == [
            (Reason.RETRIES_EXHAUSTED, "552", "full", 3, 2),
            (Reason.RETRIES_EXHAUSTED, None, "over quota", 2, 2),
            (Reason.BAD_RECIPIENT, "552", "full", 1, 1),
        ]
        assert groups[0].example_id in {claim.id for claim in claims[:3]}
        assert groups[2].newest_at == (await get_notification(store, claim.id)).failed_at
        assert await store.error_groups("default", limit=1) == groups[:1]

    async def test_errors_with_the_same_code_form_one_group(self, harness: Harness) -> None:
        store = harness.store
        for name in ("ada", "bob"):
            claim = await accept_and_claim(store)
            await store.settle([dead(claim, error=f"no mailbox {name}", error_code="550")])
            await harness.advance(HOUR_MS)
        [group] = await store.error_groups("default")
        assert (group.error_code, group.last_error, group.count) == ("550", "no mailbox bob", 2)

    async def test_a_group_has_the_time_of_its_newest_dead_letter(self, harness: Harness) -> None:
        store = harness.store
        for _ in range(2):
            claim = await accept_and_claim(store)
            await store.settle([dead(claim)])
            await harness.advance(HOUR_MS)
        [group] = await store.error_groups("default")
        assert group.newest_at == (await get_notification(store, claim.id)).failed_at

    async def test_a_resolved_dead_letter_is_in_no_group(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([dead(claim)])
        await store.amend("default", [claim.id], Command(name=CommandName.RETRY, who="ada"))
        assert await store.error_groups("default") == ()

    async def test_the_oldest_retry_has_waited_longest_since_its_first_failure(
        self, harness: Harness
    ) -> None:
        store = harness.store
        first = await accept_and_claim(store, tenant="a")
        await store.settle([retry_in(first, HOUR_MS)])
        second = await accept_and_claim(store, tenant="b")
        failed = (await get_notification(store, first.id, "a")).last_attempt_at
        await harness.advance(HOUR_MS)
        again = await claim_one(store)
        assert (again.id, again.attempt) == (first.id, 2)
        await store.settle([retry_in(again, DAY_MS)])
        await store.settle([retry_in(second, DAY_MS)])
        found = await get_notification(store, first.id, "a")
        assert found.last_attempt_at is not None
        assert failed is not None
        assert (found.first_failed_at, found.last_attempt_at > failed) == (failed, True)
        assert await store.oldest_retry_at(None) == await store.oldest_retry_at("a") == failed
        assert (
            await store.oldest_retry_at("b")
            == (await get_notification(store, second.id, "b")).last_attempt_at
        )
        assert await store.oldest_retry_at("c") is None
        await store.amend("a", [first.id], Command(name=CommandName.CANCEL, who="ada"))
        assert await store.oldest_retry_at("a") is None
        assert await store.oldest_retry_at(None) == await store.oldest_retry_at("b")

    async def test_a_reported_failure_is_the_first_failure_of_a_sent_notification(
        self, harness: Harness
    ) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([sent(claim, "m-1")])
        assert (await get_notification(store, claim.id)).first_failed_at is None
        await harness.advance(HOUR_MS)
        await store.receipt([a_receipt("m-1", ReceiptEvent.FAILED, outcome=OutcomeKind.TRANSIENT)])
        found = await get_notification(store, claim.id)
        assert found.status is Status.RETRYING
        assert found.first_failed_at == found.updated_at
        assert await store.oldest_retry_at("default") == found.first_failed_at

    async def test_the_failures_of_a_reopened_dead_letter_count_from_the_command(
        self, harness: Harness
    ) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([dead(claim)])
        failed = (await get_notification(store, claim.id)).first_failed_at
        assert failed is not None
        await harness.advance(HOUR_MS)
        await store.amend("default", [claim.id], Command(name=CommandName.RETRY, who="ada"))
        found = await get_notification(store, claim.id)
        assert found.first_failed_at is not None
        assert found.first_failed_at > failed
        assert await store.oldest_retry_at("default") == found.first_failed_at

    async def test_roll_ups_count_by_hour(self, harness: Harness) -> None:
        store = harness.store
        claims = [await accept_and_claim(store, tenant="a") for _ in range(4)]
        settlements = [sent(claims[0], "m-1"), dead(claims[1]), postponed(claims[2], DAY_MS)]
        await store.settle([*settlements, retry_in(claims[3], HOUR_MS, provider="acs")])
        await store.receipt([a_receipt("m-1")])
        await harness.advance(3 * HOUR_MS)
        await store.settle([sent(await claim_one(store))])
        sums = _sum_up(await store.roll_ups("a", since_ms=DAY_MS))
        assert sums["sendgrid"] == {
            "accepted": 4,
            "sent": 1,
            "delivered": 1,
            "failed": 1,
            "retried": 1,
            "attempts": 3,
        }
        assert sums["acs"] == {
            "accepted": 0,
            "sent": 1,
            "delivered": 0,
            "failed": 0,
            "retried": 0,
            "attempts": 1,
        }

    async def test_roll_ups_cover_the_requested_time_range(self, harness: Harness) -> None:
        store = harness.store
        await accept_one(store, tenant="a")
        await harness.advance(5 * HOUR_MS)
        await accept(store, a_notification(), a_notification(), tenant="a")
        await accept_one(store, tenant="b")
        recent = await store.roll_ups("a", since_ms=HOUR_MS)
        assert sum(hour.accepted for hour in recent) == 2
        assert all(hour.tenant == "a" and hour.channel is Channel.EMAIL for hour in recent)
        everything = await store.roll_ups(None, since_ms=DAY_MS)
        assert sum(hour.accepted for hour in everything) == 4
        assert [hour.hour_at for hour in everything] == sorted(hour.hour_at for hour in everything)
        assert all(
            hour.hour_at == hour.hour_at.replace(minute=0, second=0, microsecond=0) for hour in everything
        )
        now = optional_moment(await store.now_ms())
        assert timedelta(0) <= now - everything[-1].hour_at < timedelta(hours=1, minutes=1)

    async def test_an_hour_in_which_nothing_was_counted_has_no_roll_up(self, harness: Harness) -> None:
        """A claim is not counted in any sum."""
        store = harness.store
        await accept_one(store)
        await harness.advance(5 * HOUR_MS)
        await claim_one(store)
        assert [hour.accepted for hour in await store.roll_ups(None, since_ms=DAY_MS)] == [1]

    async def test_tenants_lists_all_tenants(self, harness: Harness) -> None:
        store = harness.store
        for tenant in ("b", "a", "b"):
            await accept_one(store, tenant=tenant)
        assert sorted(await store.tenants()) == ["a", "b"]


def _sum_up(roll_ups: Sequence[RollUp]) -> dict[str, dict[str, int]]:
    """Sums the roll-ups by provider over all hours, because a test may run across a full hour."""
    sums: dict[str, dict[str, int]] = {}
    for hour in roll_ups:
        total = sums.setdefault(hour.provider, {})
        for name in ("accepted", "sent", "delivered", "failed", "retried", "attempts"):
            total[name] = total.get(name, 0) + getattr(hour, name)
    return sums
