"""The database goes back to an earlier state behind an open process: nothing may be mixed up or get lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from homing.core.lifecycle.claims import Claim, Lease
from homing.core.lifecycle.commands import Command, CommandName
from homing.core.notifications import Status
from homing.stores.postgres import PostgresStore
from homing.testing.builders import (
    HOUR_MS,
    STANDARD_EMAIL,
    a_claim_request,
    a_notification,
    a_submission,
    an_id,
    retry_in,
    sent,
)
from support.rewound_postgres import SavedTables

OLD = an_id()
"""Id of a notification that every test finds, and that is never lost."""


@pytest.fixture
async def saved(store: PostgresStore, postgres_url: str) -> SavedTables:
    """The state of the database before the test."""
    tables = SavedTables(postgres_url)
    await store.accept([a_submission(a_notification(id=OLD))])
    await tables.save()
    return tables


@pytest.fixture
async def other(postgres_url: str, store: PostgresStore) -> AsyncIterator[PostgresStore]:
    """The store of another process."""
    other = PostgresStore(postgres_url)
    await other.open()
    yield other
    await other.close()


async def _claims(store: PostgresStore, worker: str = "w-1") -> dict[str, Claim]:
    request = a_claim_request(STANDARD_EMAIL, worker=worker)
    return {claim.id: claim for claim in (await store.claim(request)).claims}


async def _status(store: PostgresStore, id: str, tenant: str = "default") -> Status:
    found = await store.get(tenant, id)
    assert found is not None, "the notification cannot be read"
    return found.notification.status


async def test_the_outcome_of_a_lost_notification_is_written_onto_no_other(
    store: PostgresStore, other: PostgresStore, saved: SavedTables
) -> None:
    lost, new = an_id(), an_id()
    await store.accept([a_submission(a_notification(id=lost))])
    claims = await _claims(store)
    await saved.restore()
    await other.accept([a_submission(a_notification(id=new))])
    assert new in await _claims(other, "w-2")
    result = await store.settle([sent(claims[lost])])
    assert (result.applied, result.missing) == ((), (lost,))
    assert await _status(store, new) is Status.SENDING


async def test_a_retry_of_a_lost_notification_is_written_onto_no_other(
    store: PostgresStore, other: PostgresStore, saved: SavedTables
) -> None:
    lost, new = an_id(), an_id()
    await store.accept([a_submission(a_notification(id=lost))])
    claims = await _claims(store)
    await saved.restore()
    await other.accept([a_submission(a_notification(id=new))])
    assert new in await _claims(other, "w-2")
    assert (await store.settle([retry_in(claims[lost], HOUR_MS)])).missing == (lost,)
    assert await _status(store, new) is Status.SENDING


async def test_a_notification_is_readable_and_claimed_although_its_queue_was_lost(
    store: PostgresStore, saved: SavedTables
) -> None:
    await store.accept([a_submission(tenant="new")])
    await saved.restore()
    kept = an_id()
    await store.accept([a_submission(a_notification(id=kept), tenant="new")])
    assert await _status(store, kept, "new") is Status.PENDING
    assert (await _claims(store))[kept].tenant == "new"


@pytest.mark.parametrize("key", [None, "key-1"])
async def test_a_notification_does_not_end_up_in_the_queue_that_has_its_number_now(
    store: PostgresStore, other: PostgresStore, saved: SavedTables, key: str | None
) -> None:
    """With a key, the rows are written by another statement."""
    await store.accept([a_submission(tenant="first")])
    await saved.restore()
    await other.accept([a_submission(tenant="second")])
    kept = an_id()
    await store.accept([a_submission(a_notification(id=kept), tenant="first", key=key)])
    assert await _status(store, kept, "first") is Status.PENDING
    assert (await _claims(other))[kept].tenant == "first"


async def test_a_claim_has_the_tenant_of_its_notification_although_the_queue_has_another_number(
    store: PostgresStore, other: PostgresStore, saved: SavedTables
) -> None:
    await store.accept([a_submission(tenant="first")])
    await _claims(store)
    await saved.restore()
    kept = an_id()
    await other.accept([a_submission(a_notification(id=kept), tenant="second")])
    assert (await _claims(store))[kept].tenant == "second"


async def test_a_settlement_moves_its_row_to_the_right_queue_although_that_was_lost(
    store: PostgresStore, other: PostgresStore, saved: SavedTables
) -> None:
    await store.accept([a_submission(a_notification(provider="standby"))])
    await saved.restore()
    await other.accept([a_submission(tenant="second")])  # gets the number that the lost queue had
    claim = (await _claims(store))[OLD]
    assert (await store.settle([retry_in(claim, 0, provider="standby")])).applied == (claim.id,)
    assert (await _claims(other))[claim.id].outlet == "standby"


async def test_an_extended_lease_moves_its_row_to_the_right_queue_although_that_was_lost(
    store: PostgresStore, other: PostgresStore, saved: SavedTables
) -> None:
    await store.accept([a_submission(a_notification(provider="standby"))])
    await saved.restore()
    await other.accept([a_submission(tenant="second")])
    [claim] = [claim for claim in (await store.claim(a_claim_request(lease_ms=0))).claims if claim.id == OLD]
    assert await store.extend([Lease(OLD, claim.token, "standby", "standby")], 0) == {OLD}
    outlets = {claim.id: claim.outlet for claim in (await other.reclaim("w-2", 10, HOUR_MS)).claims}
    assert outlets[OLD] == "standby"


async def test_a_command_moves_its_row_to_the_right_queue_although_that_was_lost(
    store: PostgresStore, other: PostgresStore, saved: SavedTables
) -> None:
    await store.accept([a_submission(a_notification(provider="standby"))])
    await saved.restore()
    await other.accept([a_submission(tenant="second")])
    command = Command(name=CommandName.RETRY, who="ada", provider="standby", outlet="standby")
    assert (await store.amend("default", [OLD], command)).applied == (OLD,)
    assert (await _claims(other))[OLD].outlet == "standby"


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read"])
async def test_a_send_in_a_callers_transaction_is_readable_although_its_queue_was_lost(
    store: PostgresStore, other: PostgresStore, saved: SavedTables, postgres_url: str, isolation: Any
) -> None:
    await store.accept([a_submission(tenant="first")])
    await saved.restore()
    await other.accept([a_submission(tenant="second")])
    kept = an_id()
    connection = await asyncpg.connect(postgres_url)
    try:
        async with connection.transaction(isolation=isolation):
            await connection.fetchval("SELECT count(*) FROM homing.queues")  # takes the snapshot
            await store.accept([a_submission(a_notification(id=kept), tenant="first")], tx=connection)
    finally:
        await connection.close()
    assert await _status(store, kept, "first") is Status.PENDING
    assert (await _claims(other))[kept].tenant == "first"
