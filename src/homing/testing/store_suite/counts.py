"""Tests of counts by status, by cause of failure and by hour, which must be exact after every call."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from msgspec.structs import replace

from homing.core.lifecycle.claims import Claim
from homing.core.lifecycle.commands import Command, CommandName
from homing.core.lifecycle.outcomes import Settlement
from homing.core.lifecycle.receipts import ReceiptEvent
from homing.core.lifecycle.views import optional_moment
from homing.core.notifications import DEFAULT_TENANT, Channel, Mode, OutcomeKind, Reason, Status
from homing.core.ports.stores import Retention
from homing.core.statistics import LATENESS_BOUNDS_MS, DeliveryCounts, Unacknowledged, WaitingGroups
from homing.testing.builders import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
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
    """Tests of `count_due`, `tallies`, `error_groups`, the roll-ups and other counts."""

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

    async def test_due_notifications_are_counted_by_status(self, harness: Harness) -> None:
        store = harness.store
        await accept(store, *(a_notification() for _ in range(5)), tenant="a")
        claims = await claim_all(store)
        await store.settle([retry_in(claims[0], 0), retry_in(claims[1], HOUR_MS), sent(claims[2])])
        await store.settle([postponed(claims[3], HOUR_MS)])  # the fifth is still being sent
        await accept_one(store, a_notification(send_at=await store.now_ms() + HOUR_MS), tenant="a")
        await accept_one(store, tenant="a")
        await accept_one(store, tenant="b")
        assert await store.count_due("a") == {Status.PENDING: 1, Status.RETRYING: 1}
        assert await store.count_due("b") == {Status.PENDING: 1}
        assert await store.count_due(None) == {Status.PENDING: 2, Status.RETRYING: 1}
        await harness.advance(HOUR_MS)
        assert await store.count_due("a") == {Status.PENDING: 3, Status.RETRYING: 2}

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

    async def test_retries_are_grouped_by_their_last_error(self, harness: Harness) -> None:
        store = harness.store
        await accept(store, *(a_notification() for _ in range(5)))
        claims = await claim_all(store)
        busy = [retry_in(claim, HOUR_MS, error="busy", error_code="503") for claim in claims[:2]]
        await store.settle([*busy, dead(claims[2], error="busy", error_code="503"), sent(claims[3])])
        await harness.advance(MINUTE_MS)
        await store.settle([retry_in(claims[4], HOUR_MS, error="slow down", error_code="429")])
        groups = await store.error_groups("default", status=Status.RETRYING)
        found = [(g.error_code, g.last_error, g.count, g.unacknowledged) for g in groups]
        assert found == [("503", "busy", 2, 0), ("429", "slow down", 1, 0)]
        assert groups[1].newest_at == (await get_notification(store, claims[4].id)).last_attempt_at
        assert groups[0].example_id in {claims[0].id, claims[1].id}
        (dead_group,) = await store.error_groups("default")
        assert (dead_group.count, dead_group.unacknowledged) == (1, 1)
        assert await store.error_groups("other", status=Status.RETRYING) == ()

    async def test_retries_are_listed_by_their_last_attempt(self, harness: Harness) -> None:
        store = harness.store
        await accept(store, *(a_notification() for _ in range(3)))
        ids = []
        for claim, delay_ms in zip(await claim_all(store), (DAY_MS, 0, HOUR_MS), strict=True):
            await store.settle([retry_in(claim, delay_ms)])
            ids.append(claim.id)
            await harness.advance(MINUTE_MS)
        await accept_one(store, a_notification(send_at=await store.now_ms() + DAY_MS))
        assert [n.id for n in (await store.retrying("default")).items] == ids
        assert [n.id for n in (await store.retrying("default", limit=2)).items] == ids[:2]
        assert (await store.retrying("other")).items == ()

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

    async def test_goal_roll_ups_count_what_was_sent_in_time_and_late_by_mode(self, harness: Harness) -> None:
        store = harness.store
        goals = {Mode.PRIORITY: 5_000, Mode.STANDARD: 30_000, Mode.BULK: 300_000}
        for mode, goal_ms in goals.items():
            early, late, failed = [
                await accept_and_claim(store, a_notification(mode=mode), tenant="a") for _ in range(3)
            ]
            await store.settle([_sent_after(early, goal_ms), _sent_after(late, goal_ms + 1), dead(failed)])
        await store.settle([_sent_after(await accept_and_claim(store, tenant="b"), 0)])
        found = await store.goal_roll_ups("a", since_ms=DAY_MS)
        assert {(one.mode, one.met, one.missed) for one in found} == {(mode, 1, 1) for mode in goals}
        everything = await store.goal_roll_ups(None, since_ms=DAY_MS)
        assert sum(one.met for one in everything) == 4
        assert all(one.hour_at.minute == 0 for one in everything)
        await store.prune(Retention(), 1)
        assert await store.goal_roll_ups(None, since_ms=DAY_MS) == everything

    async def test_minute_roll_ups_count_like_hours_and_add_lateness_and_duration(
        self, harness: Harness
    ) -> None:
        store = harness.store
        late_ms = (1, LATENESS_BOUNDS_MS[0], LATENESS_BOUNDS_MS[0] + 1, LATENESS_BOUNDS_MS[-1] + 1)
        claims = [await accept_and_claim(store, tenant="a") for _ in late_ms]
        settled = [_sent_after(claim, ms) for claim, ms in zip(claims, late_ms, strict=True)]
        await store.settle([*settled, dead(await accept_and_claim(store, tenant="a"))])
        await store.settle([_sent_after(await accept_and_claim(store, tenant="b"), 0)])
        minutes = await store.minute_roll_ups("a", since_ms=HOUR_MS)
        assert {(one.tenant, one.channel) for one in minutes} == {("a", Channel.EMAIL)}
        assert all(one.minute_at.second == one.minute_at.microsecond == 0 for one in minutes)
        hours = await store.roll_ups("a", since_ms=HOUR_MS)
        assert _sum_up(minutes) == _sum_up(hours)
        buckets = [sum(numbers) for numbers in zip(*(one.lateness for one in minutes), strict=True)]
        assert buckets == [2, 1, *[0] * (len(buckets) - 3), 1]
        attempts = [one.attempt for one in settled if one.attempt is not None]
        assert sum(one.attempt_ms for one in minutes) >= sum(one.latency_ms for one in attempts)
        everything = await store.minute_roll_ups(None, since_ms=HOUR_MS)
        assert {one.tenant for one in everything} == {"a", "b"}
        await store.prune(Retention(), 100)
        assert await store.minute_roll_ups(None, since_ms=HOUR_MS) == everything

    async def test_the_last_attempts_of_each_provider_are_bounded_and_the_latest_first(
        self, harness: Harness
    ) -> None:
        store = harness.store
        made = []
        for provider in ("mail", "post", "mail", "mail"):
            claim = await accept_and_claim(store, a_notification(provider=provider), tenant="a")
            await store.settle([dead(claim)])
            made.append((claim.id, provider))
            await harness.advance(1_000)
        await store.settle([dead(await accept_and_claim(store, tenant="b"))])
        found = await store.last_attempts("a", per_provider=2, scan=100)
        assert [(id, one.provider) for id, one in found] == [made[3], made[2], made[1]]
        assert all(one.number == 1 for _, one in found)
        newest = await store.last_attempts("a", per_provider=2, scan=2)
        assert [id for id, _ in newest] == [made[3][0], made[2][0]]
        assert await store.last_attempts("c", per_provider=2, scan=2) == ()

    async def test_minute_roll_ups_are_summed_up_in_steps_and_cover_the_requested_time(
        self, harness: Harness
    ) -> None:
        store = harness.store
        await accept_one(store)
        await harness.advance(2 * HOUR_MS)
        for _ in range(4):
            await accept_one(store)
            await harness.advance(MINUTE_MS)
        each = await store.minute_roll_ups(None, since_ms=HOUR_MS)
        assert [one.accepted for one in each] == [1, 1, 1, 1]
        assert [one.minute_at for one in each] == sorted({one.minute_at for one in each})
        steps = await store.minute_roll_ups(None, since_ms=DAY_MS, step_ms=DAY_MS)
        assert sum(one.accepted for one in steps) == 5
        assert all(one.minute_at.hour == one.minute_at.minute == 0 for one in steps)

    async def test_minute_roll_ups_are_kept_for_48_hours(self, harness: Harness) -> None:
        store = harness.store
        await accept_one(store)
        await harness.advance(47 * HOUR_MS)
        await store.prune(Retention(), 100)
        assert sum(one.accepted for one in await store.minute_roll_ups(None, since_ms=3 * DAY_MS)) == 1
        await harness.advance(2 * HOUR_MS)
        await store.prune(Retention(), 100)
        assert await store.minute_roll_ups(None, since_ms=3 * DAY_MS) == ()
        assert sum(one.accepted for one in await store.roll_ups(None, since_ms=3 * DAY_MS)) == 1

    async def test_error_groups_show_what_is_new_and_can_be_limited_to_the_newest(
        self, harness: Harness
    ) -> None:
        store = harness.store
        for wait_ms in (90 * MINUTE_MS, 75 * MINUTE_MS, 0):
            await store.settle([dead(await accept_and_claim(store), error_code="500")])
            await harness.advance(wait_ms)
        await store.settle([dead(await accept_and_claim(store), error_code="400")])
        (mine, other) = await store.error_groups(DEFAULT_TENANT)
        assert (mine.error_code, mine.count, mine.last_hour, mine.hour_before) == ("500", 3, 1, 1)
        assert (other.error_code, other.last_hour, other.hour_before) == ("400", 1, 0)
        newest = await store.error_groups(DEFAULT_TENANT, newest=2)
        assert {one.error_code: one.count for one in newest} == {"500": 1, "400": 1}

    async def test_waiting_notifications_are_grouped_by_lane_provider_reason_and_due_time(
        self, harness: Harness
    ) -> None:
        store = harness.store
        quiet, retried = [await accept_and_claim(store, tenant="a") for _ in range(2)]
        await accept(store, a_notification(), a_notification(delay_ms=3 * HOUR_MS), tenant="a")
        await store.settle(
            [postponed(quiet, 2 * HOUR_MS, reason=Reason.QUIET_HOURS), retry_in(retried, 2 * HOUR_MS)]
        )
        await accept_one(store, tenant="b")
        plain = await store.waiting_groups("a")
        assert plain.complete
        assert all(one.due_from is None and one.channel is Channel.EMAIL for one in plain.groups)
        assert sum(one.count for one in plain.groups) == 4
        assert {one.reason: one.count for one in plain.groups} == {None: 3, Reason.QUIET_HOURS: 1}
        assert sum(one.late for one in plain.groups if one.reason is None) >= 2
        oldest = min(one.oldest_at for one in plain.groups if one.oldest_at is not None)
        assert oldest <= optional_moment(await store.now_ms())
        steps = await store.waiting_groups("a", step_ms=HOUR_MS)
        times = [one.due_from for one in steps.groups]
        assert times[0] is None
        assert len({at for at in times if at is not None}) >= 2
        assert all(at.minute == 0 for at in times if at is not None)
        assert sum(one.count for one in steps.groups) == 4
        assert await store.waiting_groups("nobody") == WaitingGroups(groups=(), complete=True)

    async def test_waiting_notifications_beyond_the_limit_are_not_counted(self, harness: Harness) -> None:
        store = harness.store
        await accept(store, *(a_notification() for _ in range(5)))
        assert (await store.waiting_groups(DEFAULT_TENANT, limit=5)).complete
        assert not (await store.waiting_groups(DEFAULT_TENANT, limit=4)).complete

    async def test_a_wait_on_purpose_and_an_attempt_elsewhere_do_not_count_against_the_goal(
        self, harness: Harness
    ) -> None:
        store = harness.store
        quiet = await accept_and_claim(store)
        await store.settle([postponed(quiet, HOUR_MS, reason=Reason.QUIET_HOURS)])
        await harness.advance(HOUR_MS)
        await store.settle([sent(await claim_one(store))])
        elsewhere = a_notification(attempts_before=1, delay_ms=HOUR_MS)
        await accept(store, elsewhere)
        await harness.advance(HOUR_MS)
        await store.settle([sent(await claim_one(store))])
        found = await store.goal_roll_ups(None, since_ms=DAY_MS)
        assert [(one.met, one.missed) for one in found] == [(1, 0)]

    async def test_opens_and_clicks_are_summed_up_and_outlive_a_purge(self, harness: Harness) -> None:
        store = harness.store
        claims = [await accept_and_claim(store) for _ in range(2)]
        await store.settle([sent(claims[0], "m-1"), sent(claims[1], "m-2")])
        opened = [
            a_receipt(f"m-{n}", ReceiptEvent.OPEN, event_id=f"o-{n}-{k}") for n in (1, 2) for k in (1, 2)
        ]
        await store.receipt([*opened, opened[0], a_receipt("m-1", ReceiptEvent.CLICK)])
        await store.receipt([opened[0], a_receipt("m-1"), a_receipt("m-2")])
        await harness.advance(2 * DAY_MS)
        assert (await store.prune(Retention(), 100))["notifications"] == 2
        hours = await store.roll_ups(None, since_ms=3 * DAY_MS)
        assert [sum(getattr(h, name) for h in hours) for name in ("opened", "clicked")] == [4, 1]

    async def test_unacknowledged_dead_letters_are_counted_with_the_time_of_the_oldest(
        self, harness: Harness
    ) -> None:
        store = harness.store
        assert await store.unacknowledged(None) == Unacknowledged(count=0, oldest_at=None)
        ids = []
        for tenant in ("a", "a", "b"):
            claim = await accept_and_claim(store, tenant=tenant)
            await store.settle([dead(claim)])
            ids.append(claim.id)
            await harness.advance(HOUR_MS)
        times = [(await get_notification(store, ids[n], t)).failed_at for n, t in enumerate("aab")]
        assert await store.unacknowledged(None) == Unacknowledged(count=3, oldest_at=times[0])
        assert await store.unacknowledged("b") == Unacknowledged(count=1, oldest_at=times[2])
        await store.amend("a", [ids[0]], Command(name=CommandName.ACKNOWLEDGE, who="ada"))
        assert await store.unacknowledged("a") == Unacknowledged(count=1, oldest_at=times[1])
        assert (await store.unacknowledged(None)).count == 2
        assert (await store.unacknowledged("nobody")).count == 0

    async def test_tenants_lists_all_tenants(self, harness: Harness) -> None:
        store = harness.store
        for tenant in ("b", "a", "b"):
            await accept_one(store, tenant=tenant)
        assert sorted(await store.tenants()) == ["a", "b"]


def _sent_after(claim: Claim, took_ms: int) -> Settlement:
    """Returns the settlement of a claim that was sent this long after its acceptance."""
    settlement = sent(claim)
    assert settlement.attempt is not None
    latency_ms = claim.aged_from + took_ms - settlement.attempt.started_at
    return replace(settlement, attempt=replace(settlement.attempt, latency_ms=latency_ms))


def _sum_up(roll_ups: Sequence[DeliveryCounts]) -> dict[str, dict[str, int]]:
    """Sums the roll-ups by provider over all hours, because a test may run across a full hour."""
    sums: dict[str, dict[str, int]] = {}
    for hour in roll_ups:
        total = sums.setdefault(hour.provider, {})
        for name in ("accepted", "sent", "delivered", "failed", "retried", "attempts"):
            total[name] = total.get(name, 0) + getattr(hour, name)
    return sums
