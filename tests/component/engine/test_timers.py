"""Timers: due times after the commit, wake-ups of other processes, and the poll if a timer is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from homing import CommandName, Filter, Homing, Priority
from homing.core.errors import HomingError
from homing.core.lifecycle.due_times import DueTime
from homing.core.ports.timers import AssignedTimer, Wake
from homing.engine.delivery import timers as timers_module
from support.engine_harness import ADA, MINUTE, SECOND, EngineHarness, TimedProvider, steady
from support.heap_timer import HeapTimer, TimerServer

pytestmark = pytest.mark.usefixtures("poll_rarely")

EMAIL: dict[str, Any] = {"channel": "email", "subject": "Hi", "body": "Hello"}


async def sender_and_worker(
    harness: EngineHarness, provider: TimedProvider, server: TimerServer | None = None, **settings: Any
) -> tuple[Homing, HeapTimer, HeapTimer]:
    """Opens one process that only sends and one that only works. A timer connects them."""
    server = server or TimerServer()
    sending, working = HeapTimer(server), HeapTimer(server)
    await harness.open({"timed": provider}, timers={"heap": working}, **settings)
    sender = await harness.open({"timed": provider}, working=False, timers={"heap": sending}, **settings)
    await asyncio.sleep(1)
    return sender, sending, working


async def test_a_worker_that_polls_rarely_is_woken_for_what_another_process_accepts(
    harness: EngineHarness,
) -> None:
    provider = TimedProvider()
    sender, *_ = await sender_and_worker(harness, provider)
    began = asyncio.get_running_loop().time()
    await sender.send(ADA, **EMAIL)
    await asyncio.sleep(SECOND)
    assert provider.times == [pytest.approx(began, abs=0.05)]


async def test_a_worker_is_woken_at_the_due_time_of_a_later_notification(harness: EngineHarness) -> None:
    provider = TimedProvider()
    sender, *_ = await sender_and_worker(harness, provider)
    began = asyncio.get_running_loop().time()
    await sender.send(ADA, send_at=timedelta(seconds=90), **EMAIL)
    await asyncio.sleep(2 * MINUTE)
    assert provider.times == [pytest.approx(began + 90, abs=0.05)]


async def test_a_lost_hint_delays_a_notification_until_the_next_poll_and_no_longer(
    harness: EngineHarness,
) -> None:
    provider = TimedProvider()
    sender, sending, _ = await sender_and_worker(harness, provider)
    sending.loses = True
    began = asyncio.get_running_loop().time()
    sent = await sender.send(ADA, **EMAIL)
    await asyncio.sleep(5 * MINUTE)
    assert len(provider.times) == 1
    assert provider.times[0] <= began + 5 * MINUTE
    assert (await sender.get(sent.id)).status == "sent"


async def test_a_retry_is_scheduled_when_its_settlement_is_committed(harness: EngineHarness) -> None:
    timer = HeapTimer()
    provider = TimedProvider(script=["provider_fault"])
    engine = await harness.open({"timed": provider}, timers={"heap": timer}, rules=steady())
    sent = await engine.send(ADA, **EMAIL)
    await asyncio.sleep(SECOND)
    first, second = timer.server.scheduled
    assert (first.id, second.id) == (sent.id, sent.id)
    assert second.due_at - first.due_at == pytest.approx(10_000, abs=50)


async def test_a_hint_follows_the_commit(harness: EngineHarness) -> None:
    timer = HeapTimer()
    engine = await harness.open(timers={"heap": timer}, working=False)
    stored: list[bool] = []

    async def look(batch: Sequence[DueTime]) -> None:
        stored.extend([await harness.store.get(engine.tenant, one.id) is not None for one in batch])

    timer.on_schedule = look
    await engine.send(ADA, **EMAIL)
    await asyncio.sleep(0.1)
    assert stored == [True]


async def test_a_timer_gets_only_the_priorities_that_it_is_assigned(harness: EngineHarness) -> None:
    fast, slow = HeapTimer(), HeapTimer()
    urgent = frozenset({Priority.CRITICAL, Priority.HIGH})
    engine = await harness.open(
        working=False,
        timers={
            "fast": AssignedTimer(fast, urgent),
            "slow": AssignedTimer(slow, frozenset({Priority.LOW})),
        },
    )
    for priority in Priority:
        await engine.send(ADA, priority=priority, **EMAIL)
    await asyncio.sleep(0.1)
    assert {one.priority for one in fast.server.scheduled} == urgent
    assert [one.priority for one in slow.server.scheduled] == [Priority.LOW]


async def test_due_times_are_given_in_batches(harness: EngineHarness) -> None:
    timer = HeapTimer()
    engine = await harness.open(timers={"heap": timer}, working=False)
    requests = [{"recipient": ADA, "channel": "email", "content": {"body": "Hi"}} for _ in range(1_200)]
    results = [one async for one in engine.send_many(requests)]
    await asyncio.sleep(0.1)
    assert len(timer.server.scheduled) == len(results) == 1_200
    assert [len(batch) for batch in timer.server.batches] == [500, 500, 200]


async def test_a_repeated_request_is_not_scheduled_again(harness: EngineHarness) -> None:
    timer = HeapTimer()
    engine = await harness.open(timers={"heap": timer}, working=False)
    for _ in range(2):
        await engine.send(ADA, idempotency_key="k", **EMAIL)
    await asyncio.sleep(0.1)
    assert len(timer.server.scheduled) == 1


async def test_commands_schedule_what_they_make_due(harness: EngineHarness) -> None:
    timer = HeapTimer()
    engine = await harness.open(timers={"heap": timer}, working=False)
    sent = await engine.send(ADA, send_at=timedelta(hours=2), **EMAIL)
    await engine.reschedule(sent.id, timedelta(minutes=30))
    await engine.retry(sent.id)
    await asyncio.sleep(0.1)
    planned, later, now = (one.due_at for one in timer.server.scheduled)
    assert planned - later == pytest.approx(90 * 60_000, abs=50)
    assert later - now == pytest.approx(30 * 60_000, abs=50)


async def test_a_bulk_retry_schedules_what_it_has_changed(harness: EngineHarness) -> None:
    timer = HeapTimer()
    engine = await harness.open(timers={"heap": timer}, working=False)
    ids = {(await engine.send(ADA, send_at=timedelta(hours=2), **EMAIL)).id for _ in range(3)}
    async for _ in engine.bulk(CommandName.RETRY, Filter(), who="ops"):
        pass
    await asyncio.sleep(0.1)
    assert {one.id for one in timer.server.scheduled[3:]} == ids


# Timers that fail ------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["open", "schedule"])
async def test_a_failing_timer_delays_no_send_and_is_used_again_when_it_is_back(
    harness: EngineHarness, call: str
) -> None:
    timer = HeapTimer()
    engine = await harness.open(timers={"heap": timer}, working=False)
    timer.fails.add(call)
    began = asyncio.get_running_loop().time()
    await engine.send(ADA, **EMAIL)
    assert asyncio.get_running_loop().time() == began
    await asyncio.sleep(0.1)
    state = engine.snapshot().timers["heap"]
    assert (state.connected, state.scheduled, state.discarded) == (False, 0, 1)
    timer.fails.clear()
    await engine.send(ADA, **EMAIL)
    await asyncio.sleep(2)
    state = engine.snapshot().timers["heap"]
    assert (state.connected, state.scheduled, state.discarded) == (True, 1, 1)


async def test_a_failing_timer_delays_no_settlement(harness: EngineHarness) -> None:
    timer = HeapTimer()
    timer.fails |= {"open", "schedule", "listen"}
    provider = TimedProvider(script=["provider_fault"])
    engine = await harness.open({"timed": provider}, timers={"heap": timer}, rules=steady())
    sent = await engine.send(ADA, **EMAIL)
    await asyncio.sleep(11)
    assert provider.gaps == [10.0]
    assert (await engine.get(sent.id)).status == "sent"


async def test_a_timer_that_hangs_gets_a_bounded_queue(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers_module, "_QUEUE", 10)
    timer = HeapTimer()
    timer.hangs = True
    engine = await harness.open(timers={"heap": timer}, working=False)
    for _ in range(30):
        await engine.send(ADA, **EMAIL)
        await asyncio.sleep(0.01)
    assert engine.snapshot().timers["heap"].discarded == 19  # one is in the call that hangs, ten wait
    await asyncio.sleep(6)
    assert engine.snapshot().timers["heap"].discarded == 20


async def test_a_timer_that_stops_listening_is_asked_again_less_and_less_often(
    harness: EngineHarness,
) -> None:
    timer = HeapTimer()
    timer.fails.add("listen")
    engine = await harness.open(timers={"heap": timer})
    await asyncio.sleep(2 * MINUTE)
    assert timer.listens == 8  # after 0, 1, 3, 7, 15 and 31 s, then every 30 s
    assert not engine.snapshot().timers["heap"].connected
    timer.fails.clear()
    await asyncio.sleep(31)
    assert engine.snapshot().timers["heap"].connected


async def test_the_loss_and_the_return_of_a_timer_are_logged_once(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "homing.timers")
    timer = HeapTimer()
    engine = await harness.open(timers={"heap": timer}, working=False)
    timer.fails.add("schedule")
    for _ in range(4):
        await engine.send(ADA, **EMAIL)
        await asyncio.sleep(MINUTE)
    timer.fails.clear()
    for _ in range(2):
        await engine.send(ADA, **EMAIL)
        await asyncio.sleep(MINUTE)
    assert [record.message for record in caplog.records if record.name == "homing.timers"] == [
        "timer heap is unavailable, workers wait for their next poll: ConnectionError",
        "timer heap is available again",
    ]


async def test_one_bad_timer_does_not_disturb_another(harness: EngineHarness) -> None:
    good, bad = HeapTimer(), HeapTimer()
    bad.hangs = True
    engine = await harness.open(timers={"bad": bad, "good": good}, working=False)
    for _ in range(3):
        await engine.send(ADA, **EMAIL)
    await asyncio.sleep(0.1)
    assert len(good.server.scheduled) == 3


# Start and end ---------------------------------------------------------------------------------------


async def test_a_process_that_ends_right_after_a_send_still_schedules_it(harness: EngineHarness) -> None:
    timer = HeapTimer()
    engine = await harness.open(timers={"heap": timer}, working=False)
    sent = await engine.send(ADA, **EMAIL)
    await engine.close()
    assert [one.id for one in timer.server.scheduled] == [sent.id]
    assert (timer.opened, timer.closed) == (1, 1)


async def test_a_timer_that_was_never_used_does_not_delay_the_end_of_a_process(
    harness: EngineHarness,
) -> None:
    engine = await harness.open(timers={"heap": HeapTimer()}, working=False)
    began = asyncio.get_running_loop().time()
    await engine.close()
    assert asyncio.get_running_loop().time() - began == pytest.approx(0, abs=0.01)


async def test_a_timer_that_has_got_everything_does_not_delay_the_end_of_a_process(
    harness: EngineHarness,
) -> None:
    timer = HeapTimer()
    engine = await harness.open(timers={"heap": timer}, working=False)
    await engine.send(ADA, **EMAIL)
    await asyncio.sleep(SECOND)
    assert len(timer.server.scheduled) == 1
    began = asyncio.get_running_loop().time()
    await engine.close()
    assert asyncio.get_running_loop().time() - began == pytest.approx(0, abs=0.01)


async def test_a_timer_that_hangs_delays_the_end_of_a_process_by_a_second(harness: EngineHarness) -> None:
    timer = HeapTimer()
    timer.hangs = True
    engine = await harness.open(timers={"heap": timer}, working=False)
    await engine.send(ADA, **EMAIL)
    began = asyncio.get_running_loop().time()
    await engine.close()
    assert asyncio.get_running_loop().time() - began == pytest.approx(1, abs=0.01)
    assert timer.closed == 1


class _StubbornTimer(HeapTimer):
    """Ignores the first cancellation of `listen`, as clients do that confuse it with a timeout."""

    async def listen(self, wake: Wake) -> None:
        try:
            await super().listen(wake)
        except asyncio.CancelledError:
            await super().listen(wake)


class _StubbornStore:
    """Reports commits, with the same flaw."""

    hears = True

    async def listen(self, wake: Callable[[], None], wake_inbox: Callable[[], None]) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()


async def test_a_timer_that_ignores_its_cancellation_does_not_keep_the_worker_from_stopping(
    harness: EngineHarness,
) -> None:
    timer = _StubbornTimer()
    engine = await harness.open(timers={"heap": timer})
    await asyncio.sleep(1)
    assert timer.listens == 1
    async with asyncio.timeout(5):
        await engine.stop_worker()
        await engine.close()


async def test_wake_ups_of_the_store_that_ignore_their_cancellation_do_not_keep_the_worker_from_stopping(
    harness: EngineHarness,
) -> None:
    engine = await harness.open(working=False)
    engine._timers._store_timer = timers_module.StoreTimer(_StubbornStore(), lambda: None)
    engine.start_worker()
    await asyncio.sleep(1)
    async with asyncio.timeout(5):
        await engine.stop_worker()
    assert "homing-listen" not in {task.get_name() for task in asyncio.all_tasks()}


async def test_a_timer_that_could_not_be_opened_is_not_closed(harness: EngineHarness) -> None:
    timer = HeapTimer()
    timer.fails.add("open")
    engine = await harness.open(timers={"heap": timer})
    await asyncio.sleep(1)
    await engine.close()
    assert (timer.opened, timer.closed) == (0, 0)


async def test_a_timer_is_opened_again_with_its_process(harness: EngineHarness) -> None:
    timer = HeapTimer()
    engine = await harness.open(timers={"heap": timer}, working=False)
    for number in (1, 2):
        await engine.open()
        await engine.send(ADA, **EMAIL)
        await engine.close()
        assert (timer.opened, timer.closed) == (number, number)


async def test_a_timer_that_cannot_be_closed_does_not_disturb_the_end(harness: EngineHarness) -> None:
    class Stubborn(HeapTimer):
        async def close(self) -> None:
            raise OSError("no")

    timer = Stubborn()
    engine = await harness.open(timers={"heap": timer}, working=False)
    await engine.send(ADA, **EMAIL)
    await engine.close()
    assert timer.opened == 1


async def test_a_process_without_a_worker_does_not_listen(harness: EngineHarness) -> None:
    timer = HeapTimer()
    await harness.open(timers={"heap": timer}, working=False)
    await asyncio.sleep(1)
    assert timer.listens == 0


# The local timer -------------------------------------------------------------------------------------


async def test_the_local_timer_follows_the_interface() -> None:
    woken: list[int] = []

    def wake(due_at: int = 0) -> None:
        woken.append(due_at)

    timer = timers_module.LocalTimer(wake)
    due: Sequence[DueTime] = [DueTime("b", 20, Priority.LOW), DueTime("a", 10, Priority.HIGH)]
    await timer.open(lambda: 0)
    await timer.schedule(due)
    await timer.close()
    assert woken == [10]


async def test_an_error_while_scheduling_fails_neither_a_send_nor_a_settlement(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(timers_module, "accepted_due_times", fail)
    monkeypatch.setattr(timers_module, "settled_due_times", fail)
    provider = TimedProvider(script=["provider_fault"])
    engine = await harness.open({"timed": provider}, rules=steady())
    sent = await engine.send(ADA, **EMAIL)
    await asyncio.sleep(11 * MINUTE)
    assert (await engine.get(sent.id)).status == "sent"


async def test_wake_ups_of_the_store_that_fail_are_asked_for_again(harness: EngineHarness) -> None:
    class FailingStore:
        hears = True
        listens = 0

        async def listen(self, wake: Callable[[], None], wake_inbox: Callable[[], None]) -> None:
            self.listens += 1
            if self.listens == 1:
                raise SystemExit("the driver ended")
            if self.listens == 2:
                return
            wake()
            await asyncio.Event().wait()

    woken: list[int] = []

    def wake(due_at: int = 0) -> None:
        woken.append(due_at)

    timers = timers_module.Timers(
        {},
        wake=wake,
        store_timer=timers_module.StoreTimer(FailingStore(), lambda: None),
        store_now_ms=harness.clock.now_ms,
        clock=harness.clock,
    )
    listening = asyncio.create_task(timers.listen())
    await asyncio.sleep(2 * MINUTE)
    assert woken == [0]
    listening.cancel()


class _NamedFailure(HomingError):
    """The server at timer.example.org does not answer."""


async def test_the_text_of_an_error_of_our_own_is_logged(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    timer = HeapTimer()
    engine = await harness.open(timers={"heap": timer}, working=False)

    async def fail(batch: object) -> None:
        raise _NamedFailure

    timer.on_schedule = fail
    await engine.send(ADA, **EMAIL)
    await asyncio.sleep(SECOND)
    assert "next poll: The server at timer.example.org does not answer." in caplog.text
