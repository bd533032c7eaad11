"""Tests of `resend`: a new notification with an old message, once."""

from __future__ import annotations

import pytest

from homing.core.model import (
    AmendResult,
    Command,
    CommandName,
    Filter,
    Mode,
    Reason,
    Status,
)
from homing.testing.builders import (
    HOUR_MS,
    a_message,
    a_notification,
    a_submission,
    an_id,
    dead,
    sent,
)
from homing.testing.store_suite.harness import Harness
from homing.testing.store_suite.steps import (
    bring_to,
    cells,
    claim_one,
    everyone,
    order,
    see,
    status_of,
    take,
)

NOBODY = "01890000-0000-7000-8000-000000000000"


class ResendTests:
    """Tests of `amend` with `resend`."""

    async def test_a_resend_is_a_new_notification_with_the_same_message(self, harness: Harness) -> None:
        store = harness.store
        new = a_notification(message=a_message("Hear me", entry_id=7), type="alarm", pinned=True)
        claim = await take(store, new)
        await store.settle([dead(claim)])
        fresh_id = an_id()
        command = Command(
            name=CommandName.RESEND, who="ada", new_ids={claim.id: fresh_id}, batch_id="b-again"
        )
        result = await store.amend("default", [claim.id], command)
        assert (result.applied, dict(result.resent)) == ((claim.id,), {claim.id: fresh_id})
        original, fresh = await see(store, claim.id), await see(store, fresh_id)
        assert (original.status, original.resent_as) == (Status.FAILED, fresh_id)
        assert original.acknowledged_by == "ada"
        assert (fresh.status, fresh.attempt_count, fresh.resend_of) == (Status.PENDING, 0, claim.id)
        assert (fresh.batch_id, fresh.type, fresh.acknowledged_by) == ("b-again", "alarm", None)
        assert (fresh.content, fresh.recipient) == (original.content, original.recipient)
        assert (fresh.metadata, fresh.provider_names) == ({"entry_id": 7}, ())
        assert cells(await store.tallies("default")) == {
            (Status.FAILED, 1): (1, 0),
            (Status.PENDING, 0): (1, 0),
        }
        again = await claim_one(store)
        assert (again.id, again.attempt, again.message) == (fresh_id, 1, new.message)
        assert (again.address, again.lane, again.pinned) == (new.address, new.lane, True)

    async def test_a_resend_outlives_its_original(self, harness: Harness) -> None:
        store = harness.store
        id = await bring_to(store, Status.FAILED)
        command = order(CommandName.RESEND, [id])
        await store.amend("default", [id], command)
        await store.settle([sent(await claim_one(store))])
        assert await status_of(store, command.new_ids[id]) is Status.SENT
        assert await status_of(store, id) is Status.FAILED

    async def test_a_second_resend_or_retry_of_the_same_one_is_refused(self, harness: Harness) -> None:
        store = harness.store
        id = await bring_to(store, Status.FAILED)
        await store.amend("default", [id], order(CommandName.RESEND, [id]))
        for name in (CommandName.RESEND, CommandName.RETRY):
            result = await store.amend("default", [id], order(name, [id]))
            assert (result.refused, dict(result.resent)) == ({id: Status.FAILED}, {})
            assert await store.amend("default", Filter(), order(CommandName.RESEND)) == AmendResult()
        assert len(await everyone(store)) == 2

    async def test_a_resend_without_new_ids_is_an_error_and_changes_nothing(self, harness: Harness) -> None:
        store = harness.store
        ids = [await bring_to(store, Status.FAILED) for _ in range(2)]
        before = await everyone(store)
        with pytest.raises(ValueError, match=ids[1]):
            await store.amend("default", ids, order(CommandName.RESEND, ids[:1]))
        with pytest.raises(ValueError, match=ids[0]):
            await store.amend("default", Filter(), order(CommandName.RESEND))
        assert await everyone(store) == before

    @pytest.mark.parametrize("name", [CommandName.RETRY, CommandName.RESEND])
    async def test_a_synchronous_one_is_never_sent_later(self, harness: Harness, name: CommandName) -> None:
        store = harness.store
        new = a_notification(mode=Mode.SYNCHRONOUS)
        [answer] = await store.accept([a_submission(new, lease_to="caller", lease_ms=HOUR_MS)])
        await store.settle([dead(answer.claims[0], reason=Reason.DELIVERY_FAILED)])
        result = await store.amend("default", [new.id], order(name, [new.id]))
        assert result.refused == {new.id: Status.FAILED}
        assert await store.amend("default", Filter(), order(name, [new.id])) == AmendResult()
        assert len(await everyone(store)) == 1
