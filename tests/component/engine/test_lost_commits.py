"""The engine's report of the notifications that a store has lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from homing import Homing
from homing.core.lifecycle.claims import Acceptance, Submission
from homing.core.ports.stores import Retention
from support.engine_harness import MINUTE, SECOND, EngineHarness, WatchedStore, mail, seconds


class ForgetfulStore(WatchedStore):
    """A store that can be taken back to an earlier state."""

    history = "first"

    def lose(self, *ids: str) -> None:
        of = "seq = (SELECT seq FROM homing_notifications WHERE id = ?)"
        for id in ids:
            for table in ("homing_messages", "homing_notifications"):
                self.connection.execute(f"DELETE FROM {table} WHERE {of}", (id,))
        self.history += "'"

    def lose_sinks(self) -> None:
        self.connection.execute("DELETE FROM homing_sinks")
        self.history += "'"


@pytest.fixture
def store(harness: EngineHarness) -> ForgetfulStore:
    harness.store = ForgetfulStore(harness.clock)
    return harness.store


async def send_later(engine: Homing) -> str:
    """Sends a notification that no worker claims during the test."""
    return await mail(engine, send_at=timedelta(days=1))


async def test_lost_notifications_are_counted_with_the_time_in_which_they_were_acknowledged(
    harness: EngineHarness, store: ForgetfulStore, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await harness.open()
    kept = await send_later(engine)
    first = await send_later(engine)
    await seconds(30)
    second = await send_later(engine)
    store.lose(first, second)
    await seconds(10)
    [alert] = harness.alerts("NotificationsLost")
    assert alert["lost"] == 2
    assert set(alert["notificationIds"]) == {first, second}
    first_at, last_at = (datetime.fromisoformat(alert[name]) for name in ("firstAt", "lastAt"))
    assert last_at - first_at == timedelta(seconds=30)
    [line] = [one for one in caplog.records if one.name == "homing.store"]
    assert line.message == alert["message"]
    await send_later(engine)
    store.lose(kept)
    await seconds(10)
    assert [alert["lost"] for alert in harness.alerts("NotificationsLost")] == [2, 1]


async def test_a_history_that_has_changed_without_a_loss_raises_no_alert(
    harness: EngineHarness, store: ForgetfulStore
) -> None:
    engine = await harness.open()
    await send_later(engine)
    store.lose()
    await seconds(10)
    assert harness.alerts("NotificationsLost") == []
    assert store.calls["find_missing"] == 1
    await seconds(10)
    assert store.calls["find_missing"] == 1


async def test_what_an_operator_has_purged_is_not_reported_as_lost(
    harness: EngineHarness, store: ForgetfulStore
) -> None:
    engine = await harness.open()
    purged = await mail(engine)
    await seconds(10)
    operator = await harness.open(working=False)
    assert (await operator.purge(Retention(delivered_ms=0, sent_ms=0, others_ms=0)))["notifications"] == 1
    await operator.purge(Retention())
    await seconds(10)
    lost = await send_later(engine)
    store.lose(purged, lost)
    await seconds(10)
    assert [alert["notificationIds"] for alert in harness.alerts("NotificationsLost")] == [[lost]]


async def test_what_a_caller_has_yet_to_commit_is_not_reported(harness: EngineHarness) -> None:
    class CallersStore(ForgetfulStore):
        """Stores in the caller's transaction, which the test rolls back."""

        async def accept(self, batch: Sequence[Submission], *, tx: Any = None) -> tuple[Acceptance, ...]:
            assert tx is not None, "the connection of the caller is passed on"
            return await super().accept(batch)

    store = harness.store = CallersStore(harness.clock)
    engine = await harness.open()
    rolled_back = await mail(engine, send_at=timedelta(days=1), connection=object())
    store.lose(rolled_back)
    await seconds(10)
    assert harness.alerts("NotificationsLost") == []


async def test_only_the_ids_of_the_last_ten_minutes_are_looked_up(
    harness: EngineHarness, store: ForgetfulStore
) -> None:
    engine = await harness.open()
    old = await send_later(engine)
    await seconds(10 * MINUTE + SECOND)
    new = await send_later(engine)
    store.lose(old, new)
    await seconds(10)
    [alert] = harness.alerts("NotificationsLost")
    assert alert["notificationIds"] == [new]


async def test_a_repeated_request_does_not_make_its_old_ids_recent(
    harness: EngineHarness, store: ForgetfulStore
) -> None:
    engine = await harness.open()
    tomorrow: dict[str, Any] = {"send_at": timedelta(days=1), "idempotency_key": "order-1"}
    old = await mail(engine, **tomorrow)
    await seconds(10 * MINUTE + SECOND)
    assert await mail(engine, **tomorrow) == old
    new = await send_later(engine)
    store.lose(old, new)
    await seconds(10)
    [alert] = harness.alerts("NotificationsLost")
    assert alert["notificationIds"] == [new]


async def test_the_last_ids_before_a_long_outage_are_looked_up(
    harness: EngineHarness, store: ForgetfulStore
) -> None:
    engine = await harness.open(working=False)
    lost = await send_later(engine)
    store.away.add("everything")
    await seconds(30 * MINUTE)
    store.away.clear()
    store.lose(lost)
    await send_later(engine)
    await seconds(1)
    await engine.process()
    assert [alert["notificationIds"] for alert in harness.alerts("NotificationsLost")] == [[lost]]


async def test_a_report_waits_until_the_store_is_available(
    harness: EngineHarness, store: ForgetfulStore, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await harness.open()
    lost = await send_later(engine)
    store.lose(lost)
    store.away.add("find_missing")
    with caplog.at_level(logging.INFO, "homing"):
        await seconds(20)
    assert "lost commits cannot be looked up yet, the store is unavailable" in caplog.text
    assert harness.alerts("NotificationsLost") == []
    store.away.clear()
    await seconds(10)
    assert [alert["notificationIds"] for alert in harness.alerts("NotificationsLost")] == [[lost]]


async def test_closing_the_engine_ends_a_report_that_waits_for_the_store(
    harness: EngineHarness, store: ForgetfulStore
) -> None:
    engine = await harness.open(working=False)
    lost = await send_later(engine)

    async def hang(operation: str) -> None:
        if operation == "find_missing":
            await asyncio.Event().wait()

    store.on_call = hang
    store.lose(lost)
    await send_later(engine)
    await seconds(1)
    assert store.calls["find_missing"] == 1
    before = asyncio.all_tasks()
    await engine.close()
    assert [task for task in before if not task.done()] == [asyncio.current_task()]


async def test_a_process_without_a_worker_reports_with_its_next_send(
    harness: EngineHarness, store: ForgetfulStore
) -> None:
    engine = await harness.open(working=False)
    lost = await send_later(engine)
    store.lose(lost)
    await send_later(engine)
    await seconds(1)
    await engine.process()
    assert [alert["notificationIds"] for alert in harness.alerts("NotificationsLost")] == [[lost]]


async def test_a_sink_whose_registration_is_lost_registers_again(
    harness: EngineHarness, store: ForgetfulStore
) -> None:
    engine = await harness.open()
    lost = await send_later(engine)
    store.lose_sinks()
    store.lose(lost)
    await seconds(20)
    assert harness.alerts("NotificationsLost") != []


async def test_a_report_that_had_to_wait_has_all_that_a_loss_took_meanwhile(
    harness: EngineHarness, store: ForgetfulStore
) -> None:
    """A server is restarted, and restored from a backup before the ids could be looked up."""
    engine = await harness.open(working=False)
    store.lose()
    store.away.add("find_missing")
    lost = [await send_later(engine) for _ in range(3)]  # the first one notices the restart
    await seconds(1)
    store.lose(*lost)
    store.away.clear()
    await send_later(engine)
    await seconds(1)
    await engine.process()
    assert [alert["notificationIds"] for alert in harness.alerts("NotificationsLost")] == [sorted(lost)]


async def test_a_report_has_what_was_acknowledged_and_lost_during_its_look_up(
    harness: EngineHarness, store: ForgetfulStore
) -> None:
    engine = await harness.open(working=False)
    lost = [await send_later(engine)]

    async def lose_during_look_up(operation: str) -> None:
        if operation == "find_missing" and len(lost) == 1:
            lost.append(await send_later(engine))
            store.lose(*lost)

    store.on_call = lose_during_look_up
    store.lose()
    await send_later(engine)
    await seconds(1)
    await engine.process()
    assert [alert["notificationIds"] for alert in harness.alerts("NotificationsLost")] == [sorted(lost)]


async def test_what_an_operator_purges_during_a_look_up_is_not_reported_as_lost(
    harness: EngineHarness, store: ForgetfulStore
) -> None:
    engine = await harness.open()
    purged = await mail(engine)
    await seconds(10)
    operator = await harness.open(working=False)

    async def purge_before_look_up(operation: str) -> None:
        if operation == "find_missing":
            await operator.purge(Retention(delivered_ms=0, sent_ms=0, others_ms=0))

    store.on_call = purge_before_look_up
    store.lose()
    await seconds(10)
    assert await store.find_missing([purged]) == {purged}
    assert harness.alerts("NotificationsLost") == []
