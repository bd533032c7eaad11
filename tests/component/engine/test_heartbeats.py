"""Workers tell the store that they are alive, and overdue work without a live worker is noticed."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from homing import Homing, Status, __version__
from homing.core.ports.stores import WorkerHeartbeat
from homing.core.routing.breaker import Phase
from homing.core.system_status import WorkerState
from homing.providers.local.scripted import HANG, ScriptedProvider
from support.engine_harness import EngineHarness, mail, seconds, serving, status, text

DEAD = WorkerHeartbeat(name="gone", version="0.1.0", lanes={"standard.sms": 128}, providers=("twilio",))


async def states(engine: Homing) -> dict[str, WorkerState]:
    return {worker.name: worker.state for worker in await engine.workers()}


async def test_a_worker_is_listed_with_its_lanes_and_providers_until_it_stops(harness: EngineHarness) -> None:
    other = await harness.open(working=False)
    engine = await harness.open({"mail": ScriptedProvider()}, worker_name="host:7", slots={"bulk": 5})
    await seconds(95)
    [worker] = await other.workers()
    assert (worker.name, worker.state, worker.version) == ("host:7", WorkerState.LIVE, __version__)
    assert worker.providers == ("mail",)
    assert worker.lanes["bulk.email"] == 5
    assert (worker.seen_at - worker.started_at).total_seconds() == 90
    await engine.stop_worker()
    assert await other.workers() == ()
    engine.start_worker()
    await seconds(1)
    assert await states(other) == {"host:7": WorkerState.LIVE}


async def test_a_worker_that_drains_says_so(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider(script=[HANG])}, worker_name="w")
    await mail(engine)
    await seconds(1)
    stopping = asyncio.create_task(engine.stop_worker())
    await seconds(15)
    assert await states(engine) == {"w": WorkerState.DRAINING}
    await stopping
    assert await engine.workers() == ()


async def test_a_worker_that_dies_is_dead_after_a_minute(harness: EngineHarness) -> None:
    engine = await harness.open(worker_name="w")
    await harness.store.worker_seen(DEAD)
    await seconds(59)
    assert await states(engine) == {"gone": WorkerState.LIVE, "w": WorkerState.LIVE}
    await seconds(1)
    assert await states(engine) == {"gone": WorkerState.DEAD, "w": WorkerState.LIVE}


async def test_heartbeats_that_fail_do_not_harm_the_worker(harness: EngineHarness) -> None:
    harness.store.away |= {"worker_seen", "worker_gone"}
    engine = await harness.open(worker_name="w")
    id = await mail(engine)
    await seconds(30)
    assert await status(engine, id) is Status.SENT
    assert await engine.workers() == ()
    harness.store.away.clear()
    await seconds(11)
    assert await states(engine) == {"w": WorkerState.LIVE}
    harness.store.away.add("worker_gone")
    await engine.stop_worker()
    assert await states(engine) == {"w": WorkerState.LIVE}, "until a minute has passed"


async def test_overdue_work_without_a_live_worker_is_a_finding(harness: EngineHarness) -> None:
    engine = await harness.open(working=False)
    await harness.store.worker_seen(DEAD)
    id = await mail(engine)
    await seconds(59)
    assert await engine.unattended_ms() == 0, "a worker is still believed to be alive"
    assert (await engine.readiness()).worker == "ok"
    await seconds(31)
    assert await engine.unattended_ms() == 90_000
    assert "no worker is live" in (await engine.explain(id)).next_step
    readiness = await engine.readiness()
    assert readiness.worker == "none is live, and work is overdue"
    assert readiness.ready, "requests are still accepted"
    await harness.open()
    await seconds(5)
    assert await engine.unattended_ms() == 0
    assert (await engine.readiness()).worker == "ok"
    assert "no worker is live" not in (await engine.explain(id)).next_step


async def test_overdue_work_is_explained_by_the_provider_that_no_live_worker_has(
    harness: EngineHarness,
) -> None:
    sender = await harness.open({"twilio": serving("twilio", ScriptedProvider(), "sms")}, working=False)
    id = await text(sender)
    await harness.open({"mail": serving("mail", ScriptedProvider(), "email")})
    await seconds(100)
    assert "no live worker has the provider twilio" in (await sender.explain(id)).next_step
    await harness.store.worker_seen(replace(DEAD, name="cron:process", providers=("mail",)))
    assert "no live worker has the provider twilio" in (await sender.explain(id)).next_step
    await harness.store.worker_seen(DEAD)
    assert "overdue" not in (await sender.explain(id)).next_step


async def test_overdue_work_without_a_live_worker_is_explained_by_the_last_run_from_cron(
    harness: EngineHarness,
) -> None:
    engine = await harness.open(working=False)
    for number in range(2):
        await harness.store.worker_seen(replace(DEAD, name=f"cron{number}:process"))
        await seconds(20)
    last = max(one.seen_at for one in await engine.workers())
    id = await mail(engine)
    await seconds(100)
    text = f"the last run of homing process was at {last.isoformat(timespec='seconds')}"
    assert text in (await engine.explain(id)).next_step


async def test_work_that_a_run_from_cron_has_left_to_a_breaker_counts_from_that_run(
    harness: EngineHarness,
) -> None:
    engine = await harness.open(
        {"mail": ScriptedProvider()}, working=False, thresholds={"unattended_ms": "6m"}
    )
    await engine.force_breaker("mail", Phase.OPEN, who="ada")
    await mail(engine)
    for _ in range(6):
        await engine.process()
        await seconds(300)
        assert 299_000 <= await engine.unattended_ms() <= 301_000, "although it has been due for longer"
        assert (await engine.readiness()).worker == "ok"
    await seconds(120)
    assert (await engine.readiness()).worker == "none is live, and work is overdue"


async def test_an_alert_tells_of_overdue_work_that_only_dead_workers_served(harness: EngineHarness) -> None:
    sender = await harness.open({"twilio": serving("twilio", ScriptedProvider(), "sms")}, working=False)
    await harness.store.worker_seen(DEAD)
    await text(sender)
    await harness.open({"mail": serving("mail", ScriptedProvider(), "email")})
    await seconds(100)
    assert harness.alerts("NoLiveWorker") == []
    await seconds(60)
    [alert] = harness.alerts("NoLiveWorker")
    assert alert["lane"] == "standard.sms"
    await harness.open({"twilio": serving("twilio", ScriptedProvider(), "sms")})
    await seconds(600)
    assert len(harness.alerts("NoLiveWorker")) == 1
