"""`process`: one claim for all lanes, the most urgent lane first, at most `limit` notifications."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from homing import Delivery, Event, Homing, Priority
from homing.core.errors import NotFound
from homing.engine.delivery.worker import Processed
from homing.engine.operations.queue_overview import read_queue_overview
from homing.engine.system_runtime import SystemClock, SystemRandomSource
from homing.engine.upkeep.alerts import Alerts
from homing.stores.sqlite import SqliteStore
from homing.testing.builders import a_message, a_notification, a_submission


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The SQL statements that SQLite runs, of all connections."""
    seen: list[str] = []
    connect = sqlite3.connect

    def traced(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.set_trace_callback(seen.append)
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    return seen


def begun(statements: list[str]) -> int:
    """Returns the number of write transactions."""
    return sum(statement.strip().upper().startswith("BEGIN IMMEDIATE") for statement in statements)


async def test_one_transaction_claims_all_lanes_if_nothing_is_due(
    tmp_path: Path, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = []
    async with Homing(tmp_path / "homing.db", providers={"any": lambda delivery: None}) as homing:
        claim = homing._backend.claim

        async def counted(request: Any) -> Any:
            claims.append(request)
            return await claim(request)

        monkeypatch.setattr(homing._backend, "claim", counted)
        await homing.process()  # the first one also reads breakers and rules
        claims.clear()
        statements.clear()
        await homing.process()
        assert [len(request.lanes) for request in claims] == [18]
        assert 1 <= begun(statements) <= 3  # reclaim, claim, and the lease of events


async def test_the_most_urgent_lane_is_served_first_and_the_limit_holds() -> None:
    order: list[str] = []

    def record(delivery: Delivery) -> None:
        order.append(f"{delivery.channel}:{delivery.priority}")

    async with Homing("memory:", providers={"any": record}) as homing:
        for number in range(3):
            await homing.send(f"a{number}@example.org", channel="email", body="x")
            await homing.send("+14155550123", channel="sms", body="x", priority=Priority.CRITICAL)
        assert (await homing.process(4)).processed == 4
        assert sorted(order) == ["email:medium", "sms:critical", "sms:critical", "sms:critical"]
        assert (await homing.process(4)).processed == 2
        assert (await homing.process(4)).processed == 0


async def test_more_than_fits_into_a_lane_is_processed_in_several_claims() -> None:
    async with Homing("memory:", providers={"any": lambda delivery: None}, slots={"standard": 3}) as homing:
        for number in range(10):
            await homing.send(f"a{number}@example.org", channel="email", body="x")
        assert (await homing.process(8)).succeeded == 8
        assert (await homing.process()).succeeded == 2


class CronJob:
    """Runs `process` in a new engine each time, as a cron job does, and keeps the alerts."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._folder = folder
        self._settings = settings
        self.alerts: list[str] = []
        self.down = True

    def _note(self, event: Event) -> None:
        self.alerts.append(event.payload["alert"])

    def _provider(self, delivery: Delivery) -> None:
        if self.down:
            raise OSError("down")

    def engine(self) -> Homing:
        return Homing(
            self._folder / "homing.db",
            providers={"mail": self._provider},
            preset="simple",
            worker_name="host",
            on_event=self._note,
            events=["Alert"],
            sinks={},
            **self._settings,
        )

    async def send(self) -> str:
        async with self.engine() as homing:
            return (await homing.send("ada@example.org", channel="email", body="x")).id

    async def run(self, **chosen: Any) -> Processed:
        async with self.engine() as homing:
            return await homing.process(**chosen)


async def test_runs_from_cron_raise_each_alert_once_until_its_value_is_good_again(tmp_path: Path) -> None:
    job = CronJob(tmp_path, thresholds={"retry_backlog": 0})
    id = await job.send()
    assert (await job.run()).retried == 1
    assert job.alerts == ["RetryBacklog"]
    await job.run()
    assert job.alerts == ["RetryBacklog"], "the run before has raised it"
    job.down = False
    await job.run(ids=[id])
    await job.run()
    job.down = True
    await job.send()
    await job.run()
    assert job.alerts == ["RetryBacklog", "RetryBacklog"]


async def test_a_run_from_cron_purges_and_sends_a_heartbeat(tmp_path: Path) -> None:
    job = CronJob(tmp_path, retention={"sent_ms": 0})
    job.down = False
    id = await job.send()
    assert (await job.run(tenant="default")).succeeded == 1
    async with job.engine() as homing:
        assert await homing.workers() == (), "a run for one tenant does nothing else"
        assert (await homing.get(id)).status == "sent"
        await homing.process()
        with pytest.raises(NotFound):
            await homing.get(id)
        (worker,) = await homing.workers()
    await job.run()
    async with job.engine() as homing:
        assert [(one.name, one.state) for one in await homing.workers()] == [("host:process", "live")]
    assert worker.providers == ("mail",)


async def test_a_run_beside_a_worker_leaves_the_upkeep_to_the_worker(tmp_path: Path) -> None:
    async with Homing(
        tmp_path / "homing.db", providers={"mail": lambda delivery: None}, worker=True
    ) as homing:
        worker = homing.worker
        await homing.process()
        assert homing.worker is worker
        assert not any(one.name.endswith(":process") for one in await homing.workers())


async def test_an_alert_is_not_repeated_by_the_next_process(tmp_path: Path) -> None:
    async def add(key: str) -> int:
        async with Homing(tmp_path / "homing.db") as homing:
            alerts = Alerts(homing._backend, SystemClock(), SystemRandomSource())
            await alerts.load_memory()
            alerts.add_once(key, "SinkUnseen", "a sink is not used")
            await alerts.save_memory()
            return len(alerts._waiting)

    assert [await add("sink:a"), await add("sink:a"), await add("sink:b")] == [1, 0, 1]


async def test_a_run_without_a_new_alert_keeps_what_another_process_has_raised_meanwhile(
    tmp_path: Path,
) -> None:
    async with Homing(tmp_path / "homing.db") as homing:
        quiet, other, next_one = (
            Alerts(homing._backend, SystemClock(), SystemRandomSource()) for _ in range(3)
        )
        await quiet.load_memory()
        await other.load_memory()
        other.add_once("sink:a", "SinkUnseen", "a sink is not used")
        await other.save_memory()
        await quiet.save_memory()
        await next_one.load_memory()
        next_one.add_once("sink:a", "SinkUnseen", "a sink is not used")
        assert next_one._waiting == []


async def test_the_overview_counts_notifications_that_do_not_fit_on_one_page() -> None:
    large = a_message("x" * 1_000_000)
    store = SqliteStore(":memory:")
    await store.open()
    try:
        await store.migrate()
        for _ in range(10):
            await store.accept([a_submission(a_notification(message=large))])
            await store.accept(
                [a_submission(a_notification(message=large, attempts_before=1, delay_ms=3_600_000))]
            )
        overview = await read_queue_overview(store, None, 50)
        assert (overview.pending, overview.in_backoff, overview.found) == (20, 10, 10)
        assert len(overview.due) == 8
        assert (await read_queue_overview(store, None, 3)).found == 3
        assert (await read_queue_overview(store, "nobody", 50)).found == 0
    finally:
        await store.close()
