"""Bridges and timers of all processes, with what waits for them, as any process reads them from the store."""

from __future__ import annotations

import logging

import pytest

from homing import Homing
from homing.core.lifecycle.due_times import DueTime
from homing.core.notifications import Priority
from homing.core.ports.stores import Entry
from homing.core.system_status import BridgeStatus, TimerStatus
from support.engine_harness import ADA, EngineHarness, mail, seconds
from support.heap_timer import HeapTimer
from support.local_broker import LocalBridge

MAIL = {"recipient": ADA, "channel": "email", "content": {"body": "Hello"}}


class MeasuredBridge(LocalBridge):
    """A bridge that knows its backlog."""

    async def backlog(self) -> int:
        await self._meet("backlog")
        return len(self.broker.ready)


async def bridges_of(engine: Homing) -> list[BridgeStatus]:
    return list((await engine.system()).bridges)


async def test_another_process_sees_a_bridge_and_how_much_waits_for_it(harness: EngineHarness) -> None:
    other = await harness.open(working=False)
    bridge = MeasuredBridge()
    engine = await harness.open(bridges={"local": bridge}, worker_name="host:7")
    engine.bridges.start()
    bridge.broker.publish("m1", MAIL)
    await seconds(15)
    (seen,) = await bridges_of(other)
    assert (seen.process, seen.name, seen.status, seen.live) == ("host:7", "local", "ok", True)
    assert (seen.accepted, seen.waiting) == (1, 0)
    bridge.fails["receive"] = OSError("no connection")
    bridge.hangs.add("open")
    for number in range(5):
        bridge.broker.publish(f"late{number}", MAIL)
    await seconds(45)
    (seen,) = await bridges_of(other)
    assert seen.status.startswith("failed")
    assert seen.waiting is None, "a figure from before the failure would be a lie"
    await engine.close()
    assert await bridges_of(other) == []


async def test_a_busy_bridge_is_measured_too_and_a_failed_question_has_no_other_consequence(
    harness: EngineHarness,
) -> None:
    bridge = MeasuredBridge()
    for number in range(1_200):
        bridge.broker.publish(f"m{number}", MAIL)
    engine = await harness.open(bridges={"local": bridge})
    engine.bridges.start()
    await seconds(1)
    (seen,) = await bridges_of(engine)
    assert seen.waiting == 700, "measured after the first batch of 500"
    bridge.fails["backlog"] = OSError("no answer")
    await seconds(15)
    (seen,) = await bridges_of(engine)
    assert (seen.waiting, seen.status, seen.accepted, seen.failures) == (None, "ok", 1_200, 0)


async def test_a_bridge_whose_backlog_hangs_is_not_asked_again_until_it_is_opened_again(
    harness: EngineHarness,
) -> None:
    bridge = MeasuredBridge()
    bridge.hangs.add("backlog")
    engine = await harness.open(bridges={"local": bridge})
    engine.bridges.start()
    for number in range(9):
        bridge.broker.publish(f"m{number}", MAIL)
        await seconds(20)
    assert bridge.calls.count("backlog") == 1
    (seen,) = await bridges_of(engine)
    assert (seen.waiting, seen.status, seen.accepted) == (None, "ok", 9)
    bridge.hangs.clear()
    bridge.fails["check"] = OSError("no connection")
    await seconds(15)
    bridge.fails.clear()
    await seconds(30)
    assert [one.waiting for one in await bridges_of(engine)] == [0]


async def test_a_bridge_that_does_not_know_its_backlog_is_listed_without_it(harness: EngineHarness) -> None:
    engine = await harness.open(bridges={"local": LocalBridge()})
    engine.bridges.start()
    await seconds(15)
    assert [one.waiting for one in await bridges_of(engine)] == [None]


async def test_a_process_that_died_is_shown_as_such_for_a_day(harness: EngineHarness) -> None:
    other = await harness.open(working=False)
    engine = await harness.open(timers={"heap": HeapTimer()}, worker_name="host:7")
    await mail(engine)
    await seconds(15)
    assert await timers_of(other) == [("host:7", "heap", True)]
    for task in engine._running:
        task.cancel()
    await seconds(61)
    assert await timers_of(other) == [("host:7", "heap", False)]
    await seconds(86_400)
    assert await timers_of(other) == []
    await harness.open(timers={"heap": HeapTimer()}, worker_name="host:8")
    await seconds(1)
    kept = await harness.store.list_entries("*", "process")
    assert [entry.key for entry in kept] == ["host:8"]


async def test_a_timer_that_hangs_is_listed_with_the_due_times_that_wait(harness: EngineHarness) -> None:
    timer = HeapTimer()
    engine = await harness.open(timers={"heap": timer})
    timer.hangs = True
    engine._timers.schedule([DueTime(f"n{number}", 0, Priority.HIGH) for number in range(3)])
    await seconds(1)
    engine._timers.schedule([DueTime("n4", 0, Priority.HIGH)])
    (seen,) = await timer_states(engine)
    assert (seen.name, seen.waiting, seen.scheduled) == ("heap", 4, 0)


async def test_a_process_without_bridges_and_timers_stores_no_report(harness: EngineHarness) -> None:
    await harness.open()
    await seconds(30)
    assert await harness.store.list_entries("*", "process") == ()


async def test_a_report_of_another_release_that_cannot_be_read_hides_no_others(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "homing.worker")
    other = await harness.open(working=False)
    await harness.open(timers={"heap": HeapTimer()}, worker_name="host:7")
    await seconds(15)
    strange = Entry(
        tenant="*", kind="process", key="host:8", value={"timers": {"heap": {"connected": "yes"}}}, version=-1
    )
    await harness.store.put([strange], who="homing")
    assert await timers_of(other) == [("host:7", "heap", True)]
    assert "the report of process host:8 cannot be read" in caplog.text


async def timer_states(engine: Homing) -> list[TimerStatus]:
    return list((await engine.system()).timers)


async def timers_of(engine: Homing) -> list[tuple[str, str, bool]]:
    return [(one.process, one.name, one.live) for one in await timer_states(engine)]
