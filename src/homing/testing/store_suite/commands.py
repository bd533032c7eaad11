"""Tests of commands: from which status each is possible, what it changes, and that it is recorded."""

from __future__ import annotations

import pytest

from homing.core.lifecycle.commands import AmendResult, Command, CommandName
from homing.core.lifecycle.states import after_command
from homing.core.notifications import Filter, Mode, Reason, Status
from homing.testing.builders import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    a_claim_request,
    a_message,
    a_notification,
    a_settlement,
    a_submission,
    an_attempt,
    an_id,
    dead,
    moved,
    retry_in,
    sent,
)
from homing.testing.store_suite.harness import (
    Harness,
    a_command,
    accept_and_claim,
    accept_one,
    bring_to,
    claim_all,
    claim_one,
    close_to,
    count_by_status,
    get_notification,
    list_all,
    make_in_doubt,
    status_of,
    tally_cells,
)

UNKNOWN_ID = "01890000-0000-7000-8000-000000000000"


class CommandTests:
    """Tests of `amend`, except `resend`."""

    @pytest.mark.parametrize("name", list(CommandName))
    @pytest.mark.parametrize("status", list(Status))
    async def test_each_command_is_possible_only_from_the_statuses_in_the_table(
        self, harness: Harness, status: Status, name: CommandName
    ) -> None:
        store = harness.store
        id = await bring_to(store, status)
        command = a_command(name, [id])
        expected = after_command(command, status, mode=Mode.STANDARD)
        before = await store.get("default", id)
        result = await store.amend("default", [id], command)
        if expected is None:
            assert result == AmendResult(refused={id: status})
            assert await store.get("default", id) == before
            assert len(await list_all(store)) == 1
            return
        assert (result.refused, result.missing) == ({}, ())
        if name is CommandName.CANCEL and status is Status.SENDING:
            assert (result.applied, result.requested) == ((), (id,))
        else:
            assert (result.applied, result.requested) == ((id,), ())
        history = await store.get("default", id)
        assert history is not None
        if name is not CommandName.RETRY:  # a retried row without an attempt becomes `pending`
            assert history.notification.status is expected
        cause = history.causes[-1]
        assert (cause.kind, cause.name, cause.who, cause.why) == ("command", name.value, "ada", "because")
        assert (cause.status_before, cause.status_after) == (status, history.notification.status)
        assert close_to(cause.at, await store.now_ms())

    @pytest.mark.parametrize("name", list(CommandName))
    async def test_an_unknown_id_is_reported_as_missing(self, harness: Harness, name: CommandName) -> None:
        store = harness.store
        id = await bring_to(store, Status.FAILED)
        result = await store.amend("default", [UNKNOWN_ID], a_command(name, [UNKNOWN_ID]))
        assert result == AmendResult(missing=(UNKNOWN_ID,))
        assert await status_of(store, id) is Status.FAILED

    @pytest.mark.parametrize("status", [Status.PENDING, Status.FAILED, Status.SENDING, Status.IN_DOUBT])
    @pytest.mark.parametrize("name", list(CommandName))
    async def test_another_tenants_notification_is_reported_as_missing(
        self, harness: Harness, name: CommandName, status: Status
    ) -> None:
        store = harness.store
        id = await bring_to(store, status)
        before = await store.get("default", id)
        command = a_command(name, [id])
        assert await store.amend("other", [id], command) == AmendResult(missing=(id,))
        assert await store.amend("other", Filter(), command) == AmendResult()
        assert await store.get("default", id) == before

    async def test_the_result_groups_ids_by_the_effect_of_the_command(self, harness: Harness) -> None:
        store = harness.store
        done = await bring_to(store, Status.SENT)
        waiting = await bring_to(store, Status.RETRYING)
        in_flight = (await accept_and_claim(store)).id
        result = await store.amend(
            "default", [done, waiting, UNKNOWN_ID, in_flight], a_command(CommandName.CANCEL)
        )
        assert result.applied == (waiting,)
        assert result.requested == (in_flight,)
        assert result.refused == {done: Status.SENT}
        assert result.missing == (UNKNOWN_ID,)
        assert (await get_notification(store, in_flight)).cancel_requested

    async def test_a_cancelled_notification_is_never_sent(self, harness: Harness) -> None:
        store = harness.store
        id = await accept_one(store)
        await store.amend("default", [id], a_command(CommandName.CANCEL))
        found = await get_notification(store, id)
        assert (found.status, found.reason, found.next_retry_at) == (
            Status.CANCELLED,
            Reason.OPERATOR,
            None,
        )
        await harness.advance(DAY_MS)
        assert await claim_all(store) == ()

    async def test_retry_makes_a_waiting_notification_due_now(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([retry_in(claim, DAY_MS, hold_ms=DAY_MS)])
        await store.amend("default", [claim.id], a_command(CommandName.RETRY))
        again = await claim_one(store)
        assert (again.id, again.attempt, dict(again.holds)) == (claim.id, 2, {})

    async def test_retry_clears_what_is_spent_and_forgets_a_move_that_was_not_made(
        self, harness: Harness
    ) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([moved(claim, "acs")])
        await store.amend("default", [claim.id], a_command(CommandName.RETRY))
        again = await claim_one(store)
        assert (again.attempt, dict(again.spent), again.moves, again.free_move) == (2, {}, 0, False)

    async def test_retry_of_a_dead_letter_grants_an_attempt_beyond_those_that_count(
        self, harness: Harness
    ) -> None:
        store = harness.store
        await store.settle([moved(await accept_and_claim(store), "acs")])
        claim = await claim_one(store)
        await store.settle([dead(claim)])
        await store.amend("default", [claim.id], a_command(CommandName.RETRY))
        again = await claim_one(store)
        assert (again.attempt, again.moves, again.attempt_floor, dict(again.spent)) == (3, 1, 2, {})

    async def test_a_resend_starts_without_moves_and_spent_providers(self, harness: Harness) -> None:
        store = harness.store
        await store.settle([moved(await accept_and_claim(store), "acs")])
        claim = await claim_one(store)
        await store.settle([dead(claim)])
        await store.amend("default", [claim.id], a_command(CommandName.RESEND, [claim.id]))
        fresh = await claim_one(store)
        assert (fresh.attempt, dict(fresh.spent), fresh.moves, fresh.free_move) == (1, {}, 0, False)

    async def test_retry_reopens_a_dead_letter_with_one_more_attempt(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        await store.settle([dead(claim)])
        await harness.advance(3 * DAY_MS)
        await store.amend("default", [claim.id], a_command(CommandName.RETRY))
        found = await get_notification(store, claim.id)
        assert (found.status, found.failed_at, found.reason) == (Status.RETRYING, None, None)
        again = await claim_one(store)
        assert (again.attempt, again.attempt_floor) == (2, 2)
        assert close_to(again.aged_from, await store.now_ms())

    async def test_retry_of_an_expired_notification_removes_the_expiry(self, harness: Harness) -> None:
        store = harness.store
        now = await store.now_ms()
        claim = await accept_and_claim(store, a_notification(expires_at=now + HOUR_MS))
        await harness.advance(2 * HOUR_MS)
        [claim] = (await store.reclaim("w", 1, HOUR_MS)).claims
        await store.settle([a_settlement(claim, Status.EXPIRED, attempt=an_attempt(claim))])
        await store.amend("default", [claim.id], a_command(CommandName.RETRY))
        assert (await store.reclaim("w", 1, HOUR_MS)).claims == ()
        assert (await claim_one(store)).expires_at is None

    async def test_retry_can_force_a_provider(self, harness: Harness) -> None:
        store = harness.store
        id = await bring_to(store, Status.FAILED)
        command = Command(name=CommandName.RETRY, who="ada", provider="acs", outlet="acs@eu")
        await store.amend("default", [id], command)
        claim = await claim_one(store)
        assert (claim.provider, claim.outlet, claim.pinned) == ("acs", "acs@eu", True)

    async def test_a_forced_provider_moves_a_waiting_notification_to_its_outlet(
        self, harness: Harness
    ) -> None:
        store = harness.store
        id = await accept_one(store)
        await store.amend("default", [id], Command(name=CommandName.RETRY, who="ada", provider="acs"))
        assert (await store.claim(a_claim_request(outlet_capacity={"acs": 0}))).claims == ()
        [claim] = (await store.claim(a_claim_request(outlet_capacity={"sendgrid": 0}))).claims
        assert (claim.id, claim.outlet) == (id, "acs")

    async def test_reschedule_changes_the_due_time(self, harness: Harness) -> None:
        store = harness.store
        id = await accept_one(store)
        command = Command(name=CommandName.RESCHEDULE, who="ada", delay_ms=HOUR_MS)
        await store.amend("default", [id], command)
        assert await claim_all(store) == ()
        assert close_to((await get_notification(store, id)).next_retry_at, await store.now_ms() + HOUR_MS)
        await harness.advance(HOUR_MS + MINUTE_MS)
        assert (await claim_one(store)).id == id

    async def test_the_age_of_a_rescheduled_notification_counts_from_its_new_time(
        self, harness: Harness
    ) -> None:
        store = harness.store
        id = await accept_one(store, a_notification(max_age_ms=DAY_MS))
        command = Command(name=CommandName.RESCHEDULE, who="ada", delay_ms=3 * DAY_MS)
        await store.amend("default", [id], command)
        await harness.advance(3 * DAY_MS + HOUR_MS)
        assert (await store.reclaim("w", 10, HOUR_MS)).claims == ()
        assert (await claim_one(store)).id == id

    async def test_acknowledge_records_who_when_and_why(self, harness: Harness) -> None:
        store = harness.store
        id = await bring_to(store, Status.FAILED)
        await store.amend("default", [id], a_command(CommandName.ACKNOWLEDGE))
        found = await get_notification(store, id)
        assert (found.status, found.acknowledged_by, found.acknowledged_why) == (
            Status.FAILED,
            "ada",
            "because",
        )
        assert close_to(found.acknowledged_at, await store.now_ms())

    async def test_a_retried_dead_letter_that_fails_again_is_not_acknowledged(self, harness: Harness) -> None:
        store = harness.store
        id = await bring_to(store, Status.FAILED)
        await store.amend("default", [id], a_command(CommandName.ACKNOWLEDGE))
        await store.amend("default", [id], a_command(CommandName.RETRY))
        await store.settle([dead(await claim_one(store))])
        found = await get_notification(store, id)
        assert (found.acknowledged_at, found.acknowledged_by, found.acknowledged_why) == (None, None, None)

    @pytest.mark.parametrize("resolution", [Status.SENT, Status.FAILED])
    async def test_resolve_sets_the_status_of_an_in_doubt_notification(
        self, harness: Harness, resolution: Status
    ) -> None:
        store = harness.store
        id = await make_in_doubt(store)
        command = Command(name=CommandName.RESOLVE, who="ada", resolution=resolution)
        assert (await store.amend("default", [id], command)).applied == (id,)
        found = await get_notification(store, id)
        assert found.status is resolution
        assert (found.sent_at is None) == (resolution is Status.FAILED)

    @pytest.mark.parametrize("status", [Status.PENDING, Status.RETRYING])
    async def test_fail_makes_a_waiting_notification_a_dead_letter(
        self, harness: Harness, status: Status
    ) -> None:
        store = harness.store
        id = await bring_to(store, status)
        assert (await store.amend("default", [id], a_command(CommandName.FAIL))).applied == (id,)
        found = await get_notification(store, id)
        assert (found.status, found.reason, found.next_retry_at) == (Status.FAILED, Reason.OPERATOR, None)
        assert found.failed_at is not None
        assert found.acknowledged_at is None
        await harness.advance(HOUR_MS)
        assert await claim_all(store) == ()
        assert (await store.amend("default", [id], a_command(CommandName.FAIL))).refused == {
            id: Status.FAILED
        }

    @pytest.mark.parametrize("resolution", [None, Status.DELIVERED, Status.PENDING])
    async def test_resolve_requires_the_status_sent_or_failed(
        self, harness: Harness, resolution: Status | None
    ) -> None:
        store = harness.store
        id = await make_in_doubt(store)
        command = Command(name=CommandName.RESOLVE, who="ada", resolution=resolution)
        assert (await store.amend("default", [id], command)).refused == {id: Status.IN_DOUBT}

    async def test_a_filter_selects_rows_for_which_the_command_is_possible(self, harness: Harness) -> None:
        store = harness.store
        dead_ids = [await bring_to(store, Status.FAILED) for _ in range(3)]
        await bring_to(store, Status.SENT)
        waiting = await bring_to(store, Status.PENDING)
        result = await store.amend("default", Filter(), a_command(CommandName.ACKNOWLEDGE))
        assert result == AmendResult(applied=tuple(dead_ids))
        result = await store.amend("default", Filter(), a_command(CommandName.CANCEL))
        assert result == AmendResult(applied=(waiting,))

    async def test_a_filter_selects_the_oldest_up_to_the_limit(self, harness: Harness) -> None:
        store = harness.store
        ids = [await bring_to(store, Status.FAILED) for _ in range(5)]
        command, open_ones = a_command(CommandName.ACKNOWLEDGE), Filter(acknowledged=False)
        steps = [await store.amend("default", open_ones, command, limit=2) for _ in range(4)]
        assert [step.applied for step in steps] == [tuple(ids[:2]), tuple(ids[2:4]), (ids[4],), ()]

    async def test_a_command_applies_only_to_rows_that_match_the_filter(self, harness: Harness) -> None:
        store = harness.store
        wanted = await bring_to(store, Status.FAILED, type="alarm")
        other = await bring_to(store, Status.FAILED, type="news")
        filter = Filter(statuses=(Status.FAILED,), type="alarm")
        result = await store.amend("default", filter, a_command(CommandName.RETRY))
        assert result.applied == (wanted,)
        assert await status_of(store, other) is Status.FAILED

    async def test_a_filtered_cancel_reports_rows_in_flight_as_requested(self, harness: Harness) -> None:
        store = harness.store
        claim = await accept_and_claim(store)
        result = await store.amend("default", Filter(), a_command(CommandName.CANCEL))
        assert result == AmendResult(requested=(claim.id,))
        await store.settle([retry_in(claim, 0)])
        assert await count_by_status(store) == {Status.CANCELLED: 1}


class ResendTests:
    """Tests of `amend` with `resend`, and that a synchronous notification is never resent or retried."""

    async def test_a_resend_is_a_new_notification_with_the_same_message(self, harness: Harness) -> None:
        store = harness.store
        new = a_notification(message=a_message("Hear me", entry_id=7), type="alarm", pinned=True)
        claim = await accept_and_claim(store, new)
        await store.settle([dead(claim)])
        fresh_id = an_id()
        command = Command(
            name=CommandName.RESEND, who="ada", new_ids={claim.id: fresh_id}, batch_id="b-again"
        )
        result = await store.amend("default", [claim.id], command)
        assert (result.applied, dict(result.resent)) == ((claim.id,), {claim.id: fresh_id})
        original, fresh = await get_notification(store, claim.id), await get_notification(store, fresh_id)
        assert (original.status, original.resent_as) == (Status.FAILED, fresh_id)
        assert original.acknowledged_by == "ada"
        assert (fresh.status, fresh.attempt_count, fresh.resend_of) == (Status.PENDING, 0, claim.id)
        assert (fresh.batch_id, fresh.type, fresh.acknowledged_by) == ("b-again", "alarm", None)
        assert (fresh.content, fresh.recipient) == (original.content, original.recipient)
        assert (fresh.metadata, fresh.provider_names) == ({"entry_id": 7}, ())
        assert tally_cells(await store.tallies("default")) == {
            (Status.FAILED, 1): (1, 0),
            (Status.PENDING, 0): (1, 0),
        }
        again = await claim_one(store)
        assert (again.id, again.attempt, again.message) == (fresh_id, 1, new.message)
        assert (again.address, again.lane, again.pinned) == (new.address, new.lane, True)

    async def test_a_resend_outlives_its_original(self, harness: Harness) -> None:
        store = harness.store
        id = await bring_to(store, Status.FAILED)
        command = a_command(CommandName.RESEND, [id])
        await store.amend("default", [id], command)
        await store.settle([sent(await claim_one(store))])
        assert await status_of(store, command.new_ids[id]) is Status.SENT
        assert await status_of(store, id) is Status.FAILED

    async def test_a_second_resend_or_retry_of_a_dead_letter_is_refused(self, harness: Harness) -> None:
        store = harness.store
        id = await bring_to(store, Status.FAILED)
        await store.amend("default", [id], a_command(CommandName.RESEND, [id]))
        for name in (CommandName.RESEND, CommandName.RETRY):
            result = await store.amend("default", [id], a_command(name, [id]))
            assert (result.refused, dict(result.resent)) == ({id: Status.FAILED}, {})
            assert await store.amend("default", Filter(), a_command(CommandName.RESEND)) == AmendResult()
        assert len(await list_all(store)) == 2

    async def test_a_resend_without_new_ids_is_an_error_and_changes_nothing(self, harness: Harness) -> None:
        store = harness.store
        ids = [await bring_to(store, Status.FAILED) for _ in range(2)]
        before = await list_all(store)
        with pytest.raises(ValueError, match=ids[1]):
            await store.amend("default", ids, a_command(CommandName.RESEND, ids[:1]))
        with pytest.raises(ValueError, match=ids[0]):
            await store.amend("default", Filter(), a_command(CommandName.RESEND))
        assert await list_all(store) == before

    @pytest.mark.parametrize("name", [CommandName.RETRY, CommandName.RESEND])
    async def test_a_synchronous_notification_is_never_sent_later(
        self, harness: Harness, name: CommandName
    ) -> None:
        store = harness.store
        new = a_notification(mode=Mode.SYNCHRONOUS)
        [answer] = await store.accept([a_submission(new, lease_to="caller", lease_ms=HOUR_MS)])
        await store.settle([dead(answer.claims[0], reason=Reason.DELIVERY_FAILED)])
        result = await store.amend("default", [new.id], a_command(name, [new.id]))
        assert result.refused == {new.id: Status.FAILED}
        assert await store.amend("default", Filter(), a_command(name, [new.id])) == AmendResult()
        assert len(await list_all(store)) == 1
