"""Sinks that are added or removed while transactions that write events are open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import asyncpg
import pytest

from homing.core.lifecycle.events import STATUS_CHANGED
from homing.core.ports.stores import SinkRegistration, relay_task
from homing.stores.postgres import PostgresStore, sinks
from homing.testing.builders import a_submission

LATE = SinkRegistration(name="late", kind="callback", events=frozenset({STATUS_CHANGED}))


@pytest.fixture
async def caller(store: PostgresStore, postgres_url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


async def change_during_transaction(
    store: PostgresStore, caller: Any, change: Coroutine[Any, Any, Any], *, sinks_after: int
) -> Any:
    """Changes the sinks while a caller's transaction is open, which the change must wait for."""
    transaction = caller.transaction()
    await transaction.start()
    await store.accept([a_submission(key="open")], tx=caller)
    changing = asyncio.create_task(change)
    while len(await store.sinks()) != sinks_after:
        assert not changing.done()
    await store.accept([a_submission(key="another")])  # does not wait for the change
    assert not changing.done()
    await transaction.commit()
    return await changing


async def test_a_registration_waits_for_transactions_that_have_read_the_sinks(
    store: PostgresStore, caller: Any
) -> None:
    await change_during_transaction(store, caller, store.register_sink(LATE), sinks_after=1)
    await store.accept([a_submission(key="after")])
    events = await store.outbox(LATE.name, "w", 10, 1_000)
    assert len(events) == 2, "it gets what was accepted after it was visible, and not what was before"


async def test_a_removed_sink_leaves_no_events_of_open_transactions(
    store: PostgresStore, caller: Any
) -> None:
    await store.register_sink(LATE)
    removed = await change_during_transaction(store, caller, store.remove_sink(LATE.name), sinks_after=0)
    assert removed == 1, "the event of the open transaction"
    assert (await store.size())["outbox"] == 0


async def test_a_transaction_that_stays_open_delays_a_registration_only_for_a_while(
    store: PostgresStore, caller: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "_LONGEST_WAIT_S", 0.2)
    transaction = caller.transaction()
    await transaction.start()
    await store.accept([a_submission(key="open")], tx=caller)
    await store.register_sink(LATE)
    assert [one.name for one in await store.sinks()] == [LATE.name]
    await transaction.commit()
    assert await store.outbox(LATE.name, "w", 10, 1_000) == (), "it had read the sinks before"


async def test_no_relay_publishes_what_is_left_of_a_sink_that_is_being_removed(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that a transaction commits after the sink is gone are removed, not published."""
    await store.register_sink(LATE)
    published: list[Any] = []

    async def relay_meanwhile(database: Any) -> None:
        await database.do(
            lambda tx: tx.run(
                "INSERT INTO homing.sink_events (sink, id, name, tenant, at, notification_id, payload)"
                " VALUES ('late', 'e-1', 'n', 'default', 0, 'n-1', '{}')"
            )
        )
        published.extend(await store.outbox(LATE.name, "w-1", 10, 60_000))

    monkeypatch.setattr(sinks, "_wait_for_readers", relay_meanwhile)
    assert await store.remove_sink(LATE.name) == 1
    assert published == []
    assert await store.lead(relay_task(LATE.name), "w-1", 60_000)
