"""Bridges: accepted in one commit, acknowledged after it, opened again after a failure, stopped in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from homing import ConfigError, Homing, Reason, Status
from homing.core.errors import HomingError, StoreUnavailable
from homing.core.notifications import Recipient
from homing.core.ports.bridges import HandledMessage
from homing.engine.intake.requests import Intake
from support.engine_harness import ADA, MINUTE, EngineHarness, RecipientHook, TimedProvider, steady
from support.local_broker import LocalBridge, LocalBroker


def mail(body: str = "Hello", **fields: Any) -> dict[str, Any]:
    return {"recipient": ADA, "channel": "email", "content": {"body": body}, **fields}


async def bridged(
    harness: EngineHarness, bridge: LocalBridge, *, working: bool = False, **settings: Any
) -> Homing:
    """Opens an engine and starts its only bridge."""
    engine = await harness.open(bridges={"local": bridge}, working=working, **settings)
    engine.bridges.start()
    await asyncio.sleep(0.1)
    return engine


async def count(engine: Homing) -> int:
    return len((await engine.list(limit=1_000)).items)


async def test_a_message_becomes_a_notification_and_is_delivered(harness: EngineHarness) -> None:
    bridge, provider = LocalBridge(), TimedProvider()
    engine = await harness.open({"timed": provider}, bridges={"local": bridge})
    engine.bridges.start("local")
    bridge.broker.publish("m1", mail())
    await asyncio.sleep(1)
    [notification] = (await engine.list()).items
    assert notification.status == "sent"
    assert bridge.broker.acknowledged == ["m1"]
    state = engine.snapshot().bridges["local"]
    assert (state.status, state.accepted, state.failures) == ("ok", 1, 0)


async def test_messages_that_wait_share_a_commit(harness: EngineHarness) -> None:
    bridge = LocalBridge()
    for number in range(700):
        bridge.broker.publish(f"m{number}", mail())
    engine = await bridged(harness, bridge)
    assert await count(engine) == 700
    assert harness.store.calls["accept"] == 2
    assert bridge.broker.acknowledged == [f"m{number}" for number in range(700)]


async def test_a_message_is_acknowledged_after_its_commit(harness: EngineHarness) -> None:
    bridge = LocalBridge()
    stored: list[bool] = []

    async def look(handled: Sequence[HandledMessage]) -> None:
        stored.extend([await harness.store.get("default", one.ids[0]) is not None for one in handled])

    bridge.before_acknowledge = look
    engine = await bridged(harness, bridge)
    bridge.broker.publish("m1", mail())
    await asyncio.sleep(0.1)
    assert stored == [True]
    assert engine.tenant == "default"


async def test_a_message_that_comes_again_is_acknowledged_and_changes_nothing(harness: EngineHarness) -> None:
    bridge = LocalBridge()
    engine = await bridged(harness, bridge)
    bridge.fails["acknowledge"] = ConnectionError("lost after the commit")
    bridge.broker.publish("m1", mail())
    await asyncio.sleep(0.5)
    assert (await count(engine), bridge.broker.acknowledged) == (1, [])
    bridge.fails.clear()
    await asyncio.sleep(2)
    assert (await count(engine), bridge.broker.acknowledged) == (1, ["m1"])
    state = engine.snapshot().bridges["local"]
    assert (state.accepted, state.duplicates, state.failures) == (0, 1, 1)


async def test_a_message_whose_due_time_is_computed_again_is_still_the_same(harness: EngineHarness) -> None:
    bridge = LocalBridge()
    engine = await bridged(harness, bridge)
    for minute in (1, 2):
        bridge.broker.publish("m1", mail(send_at=f"2030-01-01T00:0{minute}:00Z"))
        await asyncio.sleep(0.1)
    assert await count(engine) == 1
    assert engine.snapshot().bridges["local"].duplicates == 1
    assert bridge.broker.quarantined == {}


async def test_the_same_key_with_another_message_is_rejected(harness: EngineHarness) -> None:
    bridge = LocalBridge()
    engine = await bridged(harness, bridge)
    for body in ("one", "two"):
        bridge.broker.publish("m1", mail(body))
        await asyncio.sleep(0.1)
    assert await count(engine) == 1
    assert bridge.broker.quarantined == {"m1": "idempotencyKey: already belongs to a different request"}


@pytest.mark.parametrize("key", ["x" * 300, "schlüssel", "a\nb", "\udc80", ""])
async def test_any_text_can_be_the_key_of_a_message(harness: EngineHarness, key: str) -> None:
    bridge = LocalBridge()
    engine = await bridged(harness, bridge)
    for _ in range(2):
        bridge.broker.publish(key, mail())
        await asyncio.sleep(0.1)
    assert (await count(engine), bridge.broker.quarantined) == (1, {})


async def test_attempts_and_tenant_of_a_message_are_kept(harness: EngineHarness) -> None:
    bridge = LocalBridge()
    engine = await bridged(harness, bridge, rules=steady())
    bridge.broker.publish(
        "m1", mail(tenant="acme", attempts=2, max_attempts=3, last_error="503 from the old system")
    )
    await asyncio.sleep(0.1)
    [notification] = (await engine.of("acme").list()).items
    assert notification.status is Status.RETRYING
    assert (notification.attempt_count, notification.last_error) == (2, "503 from the old system")


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        ("503\x00\r\nfrom \ud800", "503 from \\ud800"),
        ("x" * 200_000, "x" * 2_000),
        (503, "503"),
        (b"no", "b'no'"),
    ],
    ids=["control characters", "long", "number", "bytes"],
)
async def test_the_error_of_another_system_is_stored_as_one_line_of_limited_length(
    harness: EngineHarness, error: Any, kept: str
) -> None:
    bridge = LocalBridge()
    engine = await bridged(harness, bridge, rules=steady())
    bridge.broker.publish("m1", mail(attempts=1, last_error=error))
    await asyncio.sleep(0.1)
    [notification] = (await engine.list()).items
    assert (notification.last_error, bridge.broker.quarantined) == (kept, {})


@pytest.mark.parametrize("most", [None, 3])
async def test_a_message_whose_attempts_are_used_up_becomes_a_dead_letter_at_once(
    harness: EngineHarness, most: int | None
) -> None:
    bridge, provider = LocalBridge(), TimedProvider()
    engine = await harness.open({"timed": provider}, bridges={"local": bridge}, rules=steady(max_attempts=3))
    engine.bridges.start("local")
    later = datetime.fromtimestamp(harness.clock.now_ms() / 1000, UTC) + timedelta(hours=1)
    for number, fields in enumerate(({}, {"sendAt": later.isoformat()})):
        bridge.broker.publish(f"m{number}", mail(attempts=3, max_attempts=most, last_error="503", **fields))
    await asyncio.sleep(1)
    found = (await engine.list()).items
    assert [(one.status, one.reason, one.last_error) for one in found] == [
        (Status.FAILED, Reason.RETRIES_EXHAUSTED, "503")
    ] * 2
    assert not provider.times
    assert {one.attempt_count for one in found} == {3}


async def test_the_reason_of_a_failure_is_shown_if_it_is_meant_for_operators(harness: EngineHarness) -> None:
    bridge = LocalBridge()
    bridge.fails["open"] = HomingError("the queue 'requests' does not exist")
    engine = await bridged(harness, bridge)
    status = (await engine.readiness()).bridges["local"]
    assert status == "failed (the queue 'requests' does not exist) and is opened again"


@pytest.mark.parametrize("call", ["open", "receive", "acknowledge"])
async def test_a_bridge_that_needs_the_store_itself_is_not_shown_as_working_while_the_store_is_away(
    harness: EngineHarness, call: str
) -> None:
    bridge = LocalBridge()
    bridge.fails[call] = StoreUnavailable()
    bridge.broker.publish("m1", mail())
    engine = await bridged(harness, bridge)
    await asyncio.sleep(MINUTE)
    assert (await engine.readiness()).bridges == {"local": "waits for the store"}
    bridge.fails.clear()
    await asyncio.sleep(MINUTE)
    assert (await engine.readiness()).bridges == {"local": "ok"}
    assert bridge.broker.acknowledged == ["m1"]


async def test_bad_messages_are_rejected_and_hold_up_no_others(harness: EngineHarness) -> None:
    bridge = LocalBridge()
    bridge.broker.publish("unreadable", "not an object")
    bridge.broker.publish("incomplete", {"channel": "email"})
    bridge.broker.publish("synchronous", mail(synchronous=True))
    bridge.broker.publish("good", mail())
    engine = await bridged(harness, bridge)
    assert await count(engine) == 1
    assert set(bridge.broker.quarantined) == {"unreadable", "incomplete", "synchronous"}
    assert bridge.broker.quarantined["unreadable"] == "message: is not an object"
    assert "synchronous" in bridge.broker.quarantined["synchronous"]
    assert bridge.broker.unacknowledged == {}


async def test_a_message_that_breaks_intake_is_rejected_alone(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = Intake.prepare

    async def broken(self: Intake, tenant: str, request: Any, **options: Any) -> Any:
        if request.content.body == "poison":
            raise ZeroDivisionError
        return await prepare(self, tenant, request, **options)

    monkeypatch.setattr(Intake, "prepare", broken)
    bridge = LocalBridge()
    for number in range(9):
        bridge.broker.publish(f"m{number}", mail("poison" if number == 5 else "fine"))
    engine = await bridged(harness, bridge)
    assert await count(engine) == 8
    assert bridge.broker.quarantined == {"m5": "the message could not be processed (ZeroDivisionError)"}


# The recipient directory fails -------------------------------------------------------------------------


class FailingFor(RecipientHook):
    """A user's directory that fails for some ids, always or at first. After some calls, it fails for all."""

    def __init__(self, *failing: str, calls: int | None = None, times: int = 10**6) -> None:
        super().__init__(lambda claims: {})
        self.failing = set(failing)
        self.calls_left = calls
        self.failures_left = times

    async def resolve(self, tenant: str, ids: Collection[str]) -> Mapping[str, Recipient]:
        if self.calls_left is not None:
            self.calls_left -= 1
        if self.calls_left is not None and self.calls_left < 0:
            raise ValueError("badly formed UUID")
        if self.failing & set(ids) and self.failures_left:
            self.failures_left -= 1
            raise ValueError("badly formed UUID")
        return {}


def to(id: str) -> dict[str, Any]:
    return mail(recipient={"id": id, "email": ADA})


async def test_a_message_for_which_the_directory_fails_is_rejected_and_holds_up_no_others(
    harness: EngineHarness,
) -> None:
    bridge, directory = LocalBridge(), FailingFor("u0", "u5")
    for number in range(9):
        bridge.broker.publish(f"m{number}", to(f"u{number}"))
    engine = await bridged(harness, bridge, directory=directory)
    assert await count(engine) == 7
    why = "the recipient directory failed (ValueError) for this message"
    assert bridge.broker.quarantined == {"m0": why, "m5": why}
    state = engine.snapshot().bridges["local"]
    assert (state.accepted, state.rejected, state.failures) == (7, 2, 0)


async def test_a_message_is_not_rejected_if_the_directory_fails_for_it_now_and_then(
    harness: EngineHarness,
) -> None:
    bridge, directory = LocalBridge(), FailingFor("u5", times=3)
    for number in range(9):
        bridge.broker.publish(f"m{number}", to(f"u{number}"))
    engine = await bridged(harness, bridge, directory=directory)
    assert (await count(engine), bridge.broker.quarantined) == (9, {})


async def test_a_directory_that_drops_one_call_in_seven_holds_up_no_bridge(harness: EngineHarness) -> None:
    class Dropping(FailingFor):
        calls = 0

        async def resolve(self, tenant: str, ids: Collection[str]) -> Mapping[str, Recipient]:
            self.calls += 1
            if not self.calls % 7:
                raise ConnectionError("dropped")
            return {}

    bridge, directory = LocalBridge(), Dropping()
    for number in range(300):
        bridge.broker.publish(f"m{number}", to(f"u{number}"))
    engine = await bridged(harness, bridge, directory=directory)
    assert (await count(engine), bridge.broker.quarantined) == (300, {})
    assert directory.calls == 349, "49 were dropped, and each of them was made again, and no other"


async def test_many_such_messages_in_front_hold_up_no_others(harness: EngineHarness) -> None:
    bridge, directory = LocalBridge(), FailingFor(*(f"u{number}" for number in range(80)))
    for number in range(100):
        bridge.broker.publish(f"m{number}", to(f"u{number}"))
    engine = await bridged(harness, bridge, directory=directory)
    assert await count(engine) == 20
    assert set(bridge.broker.quarantined) == {f"m{number}" for number in range(80)}


class HangingFor(FailingFor):
    """A user's directory that never returns for some ids, nor for any other while `hangs` is set."""

    hangs = False

    async def resolve(self, tenant: str, ids: Collection[str]) -> Mapping[str, Recipient]:
        if self.hangs or self.failing & set(ids):
            await asyncio.Event().wait()
        return {}


@pytest.mark.parametrize("hanging", [range(5), range(3, 60), range(0, 100, 4), [99]], ids=str)
async def test_messages_for_which_the_directory_hangs_are_rejected_and_hold_up_no_others(
    harness: EngineHarness, hanging: Sequence[int]
) -> None:
    bridge, directory = LocalBridge(), HangingFor(*(f"u{number}" for number in hanging))
    for number in range(100):
        bridge.broker.publish(f"m{number}", to(f"u{number}"))
    engine = await bridged(harness, bridge, directory=directory)
    await asyncio.sleep(180)
    why = "the recipient directory failed (TimeoutError) for this message"
    assert bridge.broker.quarantined == {f"m{number}": why for number in hanging}
    assert await count(engine) == 100 - len(hanging)


async def test_while_the_directory_hangs_for_everybody_nothing_is_rejected(harness: EngineHarness) -> None:
    bridge, directory = LocalBridge(), HangingFor()
    directory.hangs = True
    for number in range(100):
        bridge.broker.publish(f"m{number}", to(f"u{number}"))
    engine = await bridged(harness, bridge, directory=directory)
    await asyncio.sleep(180)
    assert (await count(engine), bridge.broker.quarantined) == (0, {})
    directory.hangs = False
    await asyncio.sleep(60)
    assert (await count(engine), bridge.broker.quarantined) == (100, {})


async def test_a_directory_that_fails_for_everybody_is_asked_a_bounded_number_of_times(
    harness: EngineHarness,
) -> None:
    bridge, directory = LocalBridge(), FailingFor(calls=0)
    for number in range(500):
        bridge.broker.publish(f"m{number}", to(f"u{number}"))
    await bridged(harness, bridge, directory=directory)
    asked = -(directory.calls_left or 0)
    assert asked > 0
    assert asked % 19 == 0, "three of the first messages and sixteen others, each time"


@pytest.mark.parametrize("calls", [0, 4], ids=["from the start", "during a batch"])
async def test_while_the_directory_fails_for_everybody_nothing_is_rejected(
    harness: EngineHarness, calls: int
) -> None:
    bridge, directory = LocalBridge(), FailingFor(calls=calls)
    for number in range(9):
        bridge.broker.publish(f"m{number}", to(f"u{number}"))
    engine = await bridged(harness, bridge, directory=directory)
    await asyncio.sleep(30)
    assert (await count(engine), bridge.broker.quarantined) == (0, {})
    directory.calls_left = None
    await asyncio.sleep(30)
    assert (await count(engine), bridge.broker.quarantined) == (9, {})


# The store is unavailable ----------------------------------------------------------------------------


async def test_while_the_store_is_away_nothing_more_is_received(harness: EngineHarness) -> None:
    bridge = LocalBridge()
    engine = await bridged(harness, bridge)
    harness.store.away.add("accept")
    bridge.broker.publish("m1", mail())
    await asyncio.sleep(1)
    bridge.broker.publish("m2", mail())
    await asyncio.sleep(3)
    assert list(bridge.broker.unacknowledged) == ["m1"]
    assert [key for key, _ in bridge.broker.ready] == ["m2"]
    assert (await engine.readiness()).bridges == {"local": "waits for the store"}
    harness.store.away.clear()
    await asyncio.sleep(2)
    assert bridge.broker.acknowledged == ["m1", "m2"]
    assert bridge.calls.count("open") == 1
    assert (await engine.readiness()).ready


async def test_a_bridge_that_is_started_while_the_store_is_away_waits_for_it_and_says_so(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    bridge = LocalBridge()
    engine = await harness.open(bridges={"local": bridge}, working=False)

    async def away() -> int:
        raise StoreUnavailable

    with monkeypatch.context() as patched:
        patched.setattr(engine.bridges._runners["local"], "_probe_store", away)
        engine.bridges.start()
        await asyncio.sleep(MINUTE)
        assert (await engine.readiness()).bridges == {"local": "waits for the store"}
        assert "open" not in bridge.calls
    await asyncio.sleep(MINUTE)
    assert (await engine.readiness()).bridges == {"local": "ok"}


async def test_during_a_long_outage_the_messages_go_back_to_the_broker(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    bridge = LocalBridge()
    engine = await bridged(harness, bridge)

    async def away() -> int:
        raise StoreUnavailable

    with monkeypatch.context() as patched:
        patched.setattr(engine.bridges._runners["local"], "_probe_store", away)
        harness.store.away.add("accept")
        bridge.broker.publish("m1", mail())
        await asyncio.sleep(10 * MINUTE)
        assert [key for key, _ in bridge.broker.ready] == ["m1"]
        assert (bridge.calls.count("open"), bridge.calls.count("close")) == (1, 1)
    harness.store.away.clear()
    await asyncio.sleep(MINUTE)
    assert (await count(engine), bridge.broker.acknowledged) == (1, ["m1"])


# A bridge that fails ---------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["open", "receive", "acknowledge", "check"])
@pytest.mark.parametrize("error", [ConnectionError("gone"), asyncio.CancelledError()])
async def test_a_bridge_that_fails_is_closed_and_opened_again(
    harness: EngineHarness, call: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "homing.bridges")
    bridge = LocalBridge()
    bridge.fails[call] = error
    engine = await bridged(harness, bridge)
    bridge.broker.publish("m1", mail())
    await asyncio.sleep(1)
    if call != "check":  # which is called only while no message arrives
        found = await engine.readiness()
        assert not found.ready
        assert found.bridges["local"].startswith("failed (")
    await asyncio.sleep(30)
    bridge.fails.clear()
    await asyncio.sleep(31)
    assert caplog.messages[-1] == "bridge local works again"
    assert (await engine.readiness()).bridges == {"local": "ok"}
    assert bridge.broker.acknowledged == ["m1"]
    assert bridge.calls.count("close") == engine.snapshot().bridges["local"].failures >= 1


@pytest.mark.parametrize("call", ["open", "acknowledge", "check"])
async def test_a_bridge_that_hangs_is_opened_again(harness: EngineHarness, call: str) -> None:
    bridge = LocalBridge()
    bridge.hangs.add(call)
    engine = await bridged(harness, bridge)
    bridge.broker.publish("m1", mail())
    await asyncio.sleep(20)
    bridge.hangs.clear()
    await asyncio.sleep(40)
    assert bridge.broker.acknowledged == ["m1"]
    assert engine.snapshot().bridges["local"].failures == 1


async def test_the_pauses_between_the_tries_grow_to_two_seconds(harness: EngineHarness) -> None:
    bridge = LocalBridge()
    bridge.fails["open"] = OSError("refused")
    await bridged(harness, bridge)
    await asyncio.sleep(10)
    assert bridge.calls.count("open") == 7  # after 0, 0.5 and 1.5 s, then every 2 s


async def test_a_bad_bridge_does_not_disturb_another(harness: EngineHarness) -> None:
    good, bad = LocalBridge(), LocalBridge()
    bad.fails["receive"] = ValueError("?")
    engine = await harness.open(bridges={"bad": bad, "good": good}, working=False)
    engine.bridges.start()
    for number in range(20):
        good.broker.publish(f"m{number}", mail())
        await asyncio.sleep(1)
    assert len(good.broker.acknowledged) == 20
    found = await engine.readiness()
    assert found.bridges["good"] == "ok" != found.bridges["bad"]


async def test_a_bridge_that_returns_nothing_is_asked_again(harness: EngineHarness) -> None:
    class Empty(LocalBridge):
        empty = 3

        async def receive(self, limit: int) -> Any:
            self.empty -= 1
            return [] if self.empty >= 0 else await super().receive(limit)

    bridge = Empty()
    bridge.broker.publish("m1", mail())
    await bridged(harness, bridge)
    assert bridge.broker.acknowledged == ["m1"]


# Start and end ---------------------------------------------------------------------------------------


async def test_a_bridge_runs_only_if_it_is_started(harness: EngineHarness) -> None:
    bridge = LocalBridge()
    engine = await harness.open(bridges={"local": bridge})
    bridge.broker.publish("m1", mail())
    await asyncio.sleep(1)
    assert bridge.calls == []
    found = await engine.readiness()
    assert found.ready
    assert found.bridges == {}


async def test_a_bridge_that_does_not_exist_cannot_be_started(harness: EngineHarness) -> None:
    engine = await harness.open(bridges={"local": LocalBridge()}, working=False)
    with pytest.raises(ConfigError, match="there is no bridge 'other'; the settings have local"):
        engine.bridges.start("other")


async def test_a_stop_ends_consuming_then_stores_then_acknowledges_then_closes(
    harness: EngineHarness,
) -> None:
    bridge = LocalBridge()
    engine = await bridged(harness, bridge)
    stopping: list[asyncio.Task[None]] = []

    async def stop_now(call: str) -> None:
        if call == "accept" and not stopping:
            bridge.broker.publish("m2", mail())
            stopping.append(asyncio.create_task(engine.bridges.stop()))
            await asyncio.sleep(0.5)

    harness.store.on_call = stop_now
    bridge.broker.publish("m1", mail())
    await asyncio.sleep(1)
    await stopping[0]
    assert bridge.calls == ["open", "receive", "acknowledge", "close"]
    assert bridge.broker.acknowledged == ["m1"]
    assert [key for key, _ in bridge.broker.ready] == ["m2"]
    assert await count(engine) == 1


async def test_closing_the_engine_stops_its_bridges_while_the_store_is_still_open(
    harness: EngineHarness,
) -> None:
    bridge = LocalBridge()
    engine = await bridged(harness, bridge)
    await engine.close()
    assert bridge.calls == ["open", "receive", "close"]
    assert engine.snapshot().bridges["local"].status == "is stopped"


async def test_a_stop_while_the_store_is_away_gives_the_messages_back(harness: EngineHarness) -> None:
    bridge = LocalBridge()
    engine = await bridged(harness, bridge)
    harness.store.away.add("accept")
    bridge.broker.publish("m1", mail())
    await asyncio.sleep(1)
    began = asyncio.get_running_loop().time()
    await engine.bridges.stop()
    assert asyncio.get_running_loop().time() - began < 2
    assert [key for key, _ in bridge.broker.ready] == ["m1"]


async def test_a_bridge_that_hangs_delays_the_stop_by_half_a_minute(harness: EngineHarness) -> None:
    bridge = LocalBridge()
    engine = await bridged(harness, bridge)
    bridge.hangs |= {"acknowledge", "close"}
    bridge.broker.publish("m1", mail())
    await asyncio.sleep(0.1)
    began = asyncio.get_running_loop().time()
    await engine.bridges.stop()
    assert asyncio.get_running_loop().time() - began <= 61


async def test_a_stopped_bridge_can_be_started_again(harness: EngineHarness) -> None:
    bridge = LocalBridge()
    engine = await bridged(harness, bridge)
    await engine.bridges.stop()
    bridge.broker.publish("m1", mail())
    waiting = asyncio.create_task(engine.bridges.wait())
    await asyncio.sleep(1)
    assert waiting.done()
    engine.bridges.start()
    await asyncio.sleep(1)
    assert bridge.broker.acknowledged == ["m1"]


async def test_two_processes_share_a_queue(harness: EngineHarness) -> None:
    broker = LocalBroker()
    engines = []
    for _ in range(2):
        engine = await harness.open(bridges={"local": LocalBridge(broker)}, working=False)
        engine.bridges.start()
        engines.append(engine)
    for number in range(100):
        broker.publish(f"m{number}", mail())
    await asyncio.sleep(1)
    assert await count(engines[0]) == 100
    assert len(broker.acknowledged) == 100


async def test_messages_beside_a_refused_one_are_prepared_once(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, prepared = Intake.prepare, 0

    async def counted(self: Intake, *args: Any, **fields: Any) -> Any:
        nonlocal prepared
        prepared += 1
        return await prepare(self, *args, **fields)

    monkeypatch.setattr(Intake, "prepare", counted)
    bridge = LocalBridge()
    engine = await bridged(harness, bridge)
    harness.store.connection.execute(
        "CREATE TEMP TRIGGER refuse BEFORE INSERT ON homing_notifications WHEN NEW.type = 'poison'"
        " BEGIN SELECT RAISE(ABORT, 'refused by a test'); END"
    )
    for number in range(20):
        bridge.broker.publish(f"m{number}", mail(type="poison" if number == 7 else "t"))
    await asyncio.sleep(1)
    assert await count(engine) == 19
    assert prepared == 20


async def test_a_message_that_the_store_refuses_is_rejected_by_name_and_the_others_are_stored(
    harness: EngineHarness,
) -> None:
    harness.store.connection.execute(
        "CREATE TEMP TRIGGER refuse BEFORE INSERT ON homing_notifications WHEN NEW.type = 'poison'"
        " BEGIN SELECT RAISE(ABORT, 'refused by a test'); END"
    )
    bridge = LocalBridge()
    for number in range(100):
        bridge.broker.publish(f"m{number}", mail(type="poison" if number == 50 else "order"))
    engine = await bridged(harness, bridge)
    assert await count(engine) == 99
    assert set(bridge.broker.quarantined) == {"m50"}
    assert "cannot store this data" in bridge.broker.quarantined["m50"]
    state = engine.snapshot().bridges["local"]
    assert (state.accepted, state.rejected, state.failures) == (99, 1, 0)
