"""What happens to a running process if the contents of its SQLite file go back to an earlier state."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from homing.core.lifecycle.commands import Command, CommandName
from homing.core.notifications import DEFAULT_TENANT, Status
from homing.stores.sqlite import SqliteStore
from homing.testing.builders import retry_in, sent
from homing.testing.store_suite.harness import accept_and_claim, accept_one, claim_all, claim_one, status_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "homing.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    await store.migrate()
    yield store
    await store.close()


class Snapshot:
    """The contents of a file in use, which can be restored into the same file as often as needed.

    The command `.restore` of the `sqlite3` shell does the same. Open connections are not disturbed, and no
    property of the file shows it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._copy = sqlite3.connect(":memory:")
        with closing(sqlite3.connect(path)) as live:
            live.backup(self._copy)

    def restore(self) -> None:
        with closing(sqlite3.connect(self._path)) as live:
            self._copy.backup(live)


async def test_a_settlement_is_not_written_to_another_notification_with_the_same_number(
    store: SqliteStore, path: Path
) -> None:
    before = Snapshot(path)
    lost = await accept_and_claim(store)
    before.restore()
    other = await accept_and_claim(store)
    result = await store.settle([sent(lost, "m-1")])
    assert (result.applied, result.missing) == ((), (lost.id,))
    history = await store.get(DEFAULT_TENANT, other.id)
    assert history is not None
    assert (history.notification.status, history.attempts) == (Status.SENDING, ())
    assert (await store.settle([sent(other, "m-2")])).applied == (other.id,)


async def test_a_whole_batch_is_settled_although_some_of_its_notifications_are_lost(
    store: SqliteStore, path: Path
) -> None:
    kept = [await accept_one(store) for _ in range(20)]
    before = Snapshot(path)
    lost = [await accept_one(store) for _ in range(20)]
    claims = await claim_all(store)
    before.restore()
    new = [await accept_one(store) for _ in range(20)]
    assert {claim.id for claim in await claim_all(store)} == {*kept, *new}
    result = await store.settle([sent(claim, f"m-{claim.id}") for claim in claims])
    assert set(result.missing) == set(lost)
    assert set(result.applied) == set(kept), "attempts of notifications that still exist count"
    assert {await status_of(store, id) for id in new} == {Status.SENDING}


async def test_a_cancelled_notification_is_not_revived_by_an_attempt_from_before(
    store: SqliteStore, path: Path
) -> None:
    await accept_one(store)
    before = Snapshot(path)
    claim = await claim_one(store)
    before.restore()
    await store.amend(DEFAULT_TENANT, [claim.id], Command(name=CommandName.CANCEL, who="operator"))
    result = await store.settle([retry_in(claim, 0)])
    assert (result.applied, result.stale) == ((), (claim.id,))
    assert await status_of(store, claim.id) is Status.CANCELLED


async def test_a_queue_that_was_lost_is_created_again(store: SqliteStore, path: Path) -> None:
    before = Snapshot(path)
    await accept_one(store, tenant="new")
    before.restore()
    id = await accept_one(store, tenant="new")
    assert [claim.id for claim in await claim_all(store)] == [id]
