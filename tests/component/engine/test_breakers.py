"""The circuit breaker at work: what opens it, what it holds back, and how a provider recovers."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from homing import BreakerPolicy, InvalidRequest, Outcome, Status
from homing.core.notifications import OutcomeKind
from homing.core.ports.providers import Delivery
from homing.core.routing.breaker import BREAKER_OFF, Phase
from homing.providers.local.scripted import ScriptedProvider
from homing.rehearsal.virtual_time import TASK_GROUP, VirtualLoop
from support.batch_provider import BatchProvider
from support.engine_harness import (
    EngineHarness,
    FailingProvider,
    K,
    TimedProvider,
    mail,
    phase,
    seconds,
    serving,
    status,
    steady,
    text,
)


async def test_five_consecutive_failures_open_it_and_hold_back_the_rest(harness: EngineHarness) -> None:
    provider = FailingProvider()
    engine = await harness.open({"mail": provider}, rules=steady())
    for _ in range(4):
        await mail(engine, priority="high")
    await seconds(5)
    assert await phase(harness) is Phase.CLOSED
    await mail(engine)
    await seconds(5)
    assert await phase(harness) is Phase.OPEN
    late = [await mail(engine) for _ in range(10)]
    await seconds(45)
    assert len(provider.times) == 5
    assert {await status(engine, id) for id in late} == {Status.PENDING}
    assert [(await engine.get(id)).attempt_count for id in late] == [0] * 10


async def test_a_success_in_between_restarts_the_count(harness: EngineHarness) -> None:
    provider = ScriptedProvider(script=[K.TRANSIENT] * 4 + [K.ACCEPTED] + [K.TRANSIENT] * 4)
    engine = await harness.open({"mail": provider}, rules=steady())
    for _ in range(9):
        await mail(engine)
        await seconds(0.1)
    await seconds(2)
    assert await phase(harness) is Phase.CLOSED


@pytest.mark.parametrize("kind", [K.BAD_CONTENT, K.BAD_RECIPIENT, K.DEAD_ADDRESS, K.OPTED_OUT, K.THROTTLED])
async def test_errors_of_recipients_never_open_it(harness: EngineHarness, kind: OutcomeKind) -> None:
    engine = await harness.open({"mail": ScriptedProvider(script=[kind] * 20)}, rules=steady())
    for n in range(20):
        await mail(engine, to=f"p{n}@example.org")
    await seconds(3)
    assert await phase(harness) is Phase.CLOSED


async def test_a_suspended_worker_blames_no_provider(harness: EngineHarness) -> None:
    """Suspended during its sends, a worker finds all their timeouts elapsed when it resumes."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    joined = TASK_GROUP.set("suspended")
    engine = await harness.open({"mail": TimedProvider(latency_ms=5_000)}, rules=steady(timeout_ms="10s"))
    TASK_GROUP.reset(joined)
    for _ in range(10):
        await mail(engine)
    await seconds(1)
    loop.freeze("suspended")
    await seconds(60)
    loop.thaw("suspended")
    await seconds(1)
    assert await phase(harness) is Phase.CLOSED


@pytest.mark.parametrize("kind", [K.PROVIDER_FAULT, K.AMBIGUOUS])
async def test_faults_and_timeouts_open_it_too(harness: EngineHarness, kind: OutcomeKind) -> None:
    engine = await harness.open({"mail": ScriptedProvider(usual=kind)}, rules=steady())
    for _ in range(5):
        await mail(engine)
    await seconds(3)
    assert await phase(harness) is Phase.OPEN


async def test_push_tolerates_more_failures(harness: EngineHarness) -> None:
    provider = FailingProvider()
    engine = await harness.open({"fcm": serving("fcm", provider, "push")}, rules=steady(max_attempts=100))
    await engine.send([{"deviceToken": f"t{n}"} for n in range(9)], channel="push", title="x")
    await seconds(3)
    assert await phase(harness, "fcm") is Phase.CLOSED
    await engine.send({"deviceToken": "t"}, channel="push", title="x")
    await seconds(3)
    assert await phase(harness, "fcm") is Phase.OPEN
    tried = len(provider.times)
    await seconds(110)
    assert len(provider.times) == tried
    await seconds(20)
    assert len(provider.times) == tried + 1


async def test_no_row_is_claimed_in_vain_while_it_is_open(harness: EngineHarness) -> None:
    provider = FailingProvider()
    engine = await harness.open({"mail": serving("mail", provider)}, rules=steady())
    for _ in range(5):
        await mail(engine)
    await seconds(3)
    for _ in range(5):
        await mail(engine)
    claims = len(harness.store.claims)
    tokens = {n.id: n.attempt_count for n in (await engine.list()).items}
    await seconds(50)
    assert all("standard.email" not in request.lanes for request in harness.store.claims[claims:])
    assert {n.id: n.attempt_count for n in (await engine.list()).items} == tokens


async def test_other_channels_continue_while_one_is_held_back(harness: EngineHarness) -> None:
    letters, texts = FailingProvider("letters"), TimedProvider("texts")
    engine = await harness.open(
        {"letters": serving("letters", letters), "texts": serving("texts", texts, "sms")}, rules=steady()
    )
    for _ in range(10):
        await mail(engine)
    await seconds(5)
    assert await phase(harness, "letters") is Phase.OPEN
    ids = [await text(engine) for _ in range(10)]
    await seconds(1)
    assert {await status(engine, id) for id in ids} == {Status.SENT}


@pytest.mark.source("002", "28", "245", "252", "266")
async def test_with_an_open_breaker_the_next_provider_is_used_without_waiting(harness: EngineHarness) -> None:
    first, second = FailingProvider("first"), TimedProvider("second")
    engine = await harness.open({"first": first, "second": second}, rules=steady())
    for _ in range(5):
        await mail(engine)
    await seconds(2)
    began = asyncio.get_running_loop().time()
    ids = [await mail(engine) for _ in range(10)]
    await seconds(2)
    assert {await status(engine, id) for id in ids} == {Status.SENT}
    assert all(at - began < 2 for at in second.times[-10:])
    assert {(await engine.get(id)).provider_names for id in ids} == {("second",)}


@pytest.mark.parametrize("options", [{"max_in_flight": 1}, {"max_in_flight": 3}])
async def test_a_substitute_with_little_capacity_still_takes_the_other_s_messages(
    harness: EngineHarness, options: dict[str, int]
) -> None:
    second = TimedProvider("second", latency_ms=100)
    engine = await harness.open(
        {"first": serving("first", ScriptedProvider()), "second": serving("second", second, **options)}
    )
    await engine.force_breaker("first", Phase.OPEN, who="ada")
    ids = [await mail(engine) for _ in range(10)]
    await seconds(10)
    assert {await status(engine, id) for id in ids} == {Status.SENT}
    assert second.busiest <= options["max_in_flight"]


async def test_a_provider_of_two_channels_blocks_neither_of_their_substitutes(harness: EngineHarness) -> None:
    busy, free = ScriptedProvider("busy", latency_ms=20_000), ScriptedProvider("free")
    engine = await harness.open(
        {
            "both": serving("both", ScriptedProvider(), "sms", "email"),
            "busy": serving("busy", busy, "sms", max_in_flight=1),
            "free": serving("free", free, "email"),
        }
    )
    await engine.force_breaker("both", Phase.OPEN, who="ada")
    for _ in range(5):
        await text(engine)
    await seconds(1)
    id = await mail(engine)
    await seconds(2)
    assert await status(engine, id) is Status.SENT


@pytest.mark.source("002", "198", "204")
async def test_a_good_health_check_ends_the_pause_early(harness: EngineHarness) -> None:
    provider = FailingProvider()
    engine = await harness.open({"mail": provider}, rules=steady(max_attempts=20))
    for _ in range(5):
        await mail(engine)
    await seconds(12)
    assert await phase(harness) is Phase.OPEN
    provider.repair()
    await seconds(35)
    assert await phase(harness) is Phase.CLOSED


@pytest.mark.usefixtures("poll_rarely")
async def test_a_good_health_check_wakes_a_worker_that_polls_rarely(harness: EngineHarness) -> None:
    provider = FailingProvider()
    engine = await harness.open({"mail": provider}, rules=steady(max_attempts=20))
    for _ in range(5):
        await mail(engine)
    await seconds(12)
    assert await phase(harness) is Phase.OPEN
    provider.repair()
    await seconds(35)
    assert await phase(harness) is Phase.CLOSED


async def test_a_health_check_that_raises_or_hangs_has_no_effect(harness: EngineHarness) -> None:
    class Sick(FailingProvider):
        async def check(self) -> bool:
            if len(self.times) % 2:
                raise OSError("no route to host")
            return await asyncio.Event().wait()

    provider = Sick()
    engine = await harness.open({"mail": provider}, rules=steady(max_attempts=1))
    ids = [await mail(engine) for _ in range(6)]
    await seconds(10)
    late = await mail(engine, expires_at=timedelta(seconds=30))
    await seconds(60)
    assert await status(engine, late) is Status.EXPIRED
    await seconds(120)
    assert Counter([await status(engine, id) for id in ids]) == Counter({Status.FAILED: 6})


async def test_a_provider_without_a_health_check_prevents_no_other_check(
    harness: EngineHarness, caplog: pytest.LogCaptureFixture
) -> None:
    class OnlySends:
        async def send(self, delivery: Delivery) -> Outcome:
            return Outcome(K.TRANSIENT)

    checked = FailingProvider()
    engine = await harness.open(
        {"only": serving("only", OnlySends(), "sms"), "checked": serving("checked", checked, "email")},
        rules=steady(max_attempts=20),
    )
    for _ in range(5):
        await text(engine)
        await mail(engine)
    await seconds(12)
    checked.repair()
    await seconds(35)
    only, other = await engine.providers()
    assert (only.breaker.phase, other.breaker.phase) == (Phase.OPEN, Phase.CLOSED)
    assert [(one.usable, one.problem) for one in await engine.check_providers()] == [
        (False, "it has no health check"),
        (True, ""),
    ]
    assert "the upkeep task health failed" not in caplog.text


async def test_forced_open_it_stays_open_until_it_is_returned_to_automatic(harness: EngineHarness) -> None:
    provider = TimedProvider()
    engine = await harness.open({"mail": provider})
    await engine.force_breaker("mail", Phase.OPEN, who="ada")
    id = await mail(engine)
    await seconds(300)
    assert await status(engine, id) is Status.PENDING
    state = (await harness.store.breakers())["mail"]
    assert (state.forced, state.forced_by) == (Phase.OPEN, "ada")
    await engine.force_breaker("mail", None, who="ada")
    await seconds(3)
    assert await status(engine, id) is Status.SENT


@pytest.mark.usefixtures("poll_rarely")
async def test_what_waits_is_sent_as_soon_as_this_process_releases_it(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": TimedProvider()})
    await engine.force_breaker("mail", Phase.OPEN, who="ada")
    id = await mail(engine)
    await seconds(300)
    await engine.force_breaker("mail", None, who="ada")
    await seconds(0.5)
    assert await status(engine, id) is Status.SENT


async def test_an_explanation_names_the_provider_that_stands_in_for_a_stopped_one(
    harness: EngineHarness,
) -> None:
    providers = {name: FailingProvider(name) for name in ("one", "two", "three")}
    engine = await harness.open(providers, rules=steady())
    id = await mail(engine)
    await seconds(1)
    assert " goes to one (then two at once" in (await engine.explain(id)).next_step
    await engine.force_breaker("one", Phase.OPEN, who="ada")
    told = (await engine.explain(id)).next_step
    assert told.endswith(
        "goes to two, because the breaker of one is open (then three at once, after 1 failure)"
    )
    await engine.force_breaker("three", Phase.OPEN, who="ada")
    told = (await engine.explain(id)).next_step
    assert told.endswith("goes to two, because the breaker of one is open")


async def test_what_is_due_after_it_reopens_is_not_held_back(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": FailingProvider()}, rules=steady())
    for _ in range(5):
        await mail(engine)
    await seconds(1)
    assert await phase(harness) is Phase.OPEN
    now, later = await mail(engine), await mail(engine, send_at=timedelta(hours=5))
    for held in ("held by the breaker of mail until 2", "held by the breaker of mail until an operator"):
        assert held in (await engine.explain(now)).next_step
        assert "held by" not in (await engine.explain(later)).next_step
        await engine.force_breaker("mail", Phase.OPEN, who="ada")


async def test_forced_closed_no_failure_opens_it(harness: EngineHarness) -> None:
    provider = FailingProvider()
    engine = await harness.open({"mail": provider}, rules=steady(max_attempts=2))
    await engine.force_breaker("MAIL", Phase.CLOSED, who="ada")
    ids = [await mail(engine) for _ in range(10)]
    await seconds(30)
    assert len(provider.times) == 20
    assert {await status(engine, id) for id in ids} == {Status.FAILED}


async def test_only_an_existing_provider_can_be_forced(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": ScriptedProvider()})
    with pytest.raises(InvalidRequest, match="'fax' is not configured; configured providers: mail"):
        await engine.force_breaker("fax", Phase.OPEN, who="ada")


async def test_all_workers_share_its_state(harness: EngineHarness) -> None:
    bad, good = FailingProvider("bad"), TimedProvider("good")
    good.up = False
    one = await harness.open({"mail": bad}, rules=steady())
    two = await harness.open({"mail": good}, rules=steady(), working=False)
    for _ in range(5):
        await mail(one)
    await seconds(3)
    await one.stop_worker()
    two.start_worker()
    await seconds(40)
    assert good.times == []
    await two.force_breaker("mail", Phase.CLOSED, who="ada")
    await seconds(20)
    assert len(good.times) == 5


async def test_a_recovered_provider_is_ramped_up(harness: EngineHarness) -> None:
    provider = FailingProvider()
    engine = await harness.open({"mail": serving("mail", provider)}, rules=steady(max_attempts=99))
    for _ in range(400):
        await mail(engine)
    await seconds(30)
    provider.usual = K.ACCEPTED
    await seconds(70)
    back = next(at for at in provider.times if at > 30)
    per_second = Counter(int(at - back) for at in provider.times if at > 30)
    assert per_second[0] <= 20
    assert per_second[1] <= 30
    assert per_second[10] > per_second[2]
    assert {n.status for n in (await engine.list(limit=1000)).items} == {Status.SENT}


@pytest.mark.parametrize("after", [5, 59], ids=["at the start", "at the end"])
async def test_single_runs_of_new_processes_deliver_while_a_provider_is_ramped_up(
    harness: EngineHarness, after: float
) -> None:
    provider = ScriptedProvider("mail")
    first = await harness.open({"mail": serving("mail", provider)}, working=False)
    await first.force_breaker("mail", None, who="ada")  # it starts closed, with a ramp
    for _ in range(3):
        await mail(first)
    await seconds(after)
    run = await harness.open({"mail": serving("mail", provider)}, working=False)
    assert 1 <= (await run.process()).succeeded <= 3


async def test_its_thresholds_can_be_set_per_provider(harness: EngineHarness) -> None:
    provider = FailingProvider()
    policy = BreakerPolicy(failures=2, open_ms=5_000)
    engine = await harness.open(
        {"mail": serving("mail", provider, breaker=policy)}, rules=steady(max_attempts=99)
    )
    for _ in range(2):
        await mail(engine)
    await seconds(2)
    assert await phase(harness) is Phase.OPEN
    await seconds(11)
    assert len(provider.times) >= 3


async def test_alerts_report_its_changes_and_that_no_provider_is_left(harness: EngineHarness) -> None:
    provider = FailingProvider()
    engine = await harness.open({"mail": serving("mail", provider)}, rules=steady(max_attempts=20))
    for _ in range(5):
        await mail(engine)
    await seconds(5)
    (changed,) = harness.alerts("BreakerChanged")
    assert (changed["provider"], changed["phase"]) == ("mail", "open")
    (left,) = harness.alerts("NoProviderLeft")
    assert left["channel"] == "email"
    provider.usual = K.ACCEPTED
    await seconds(70)
    assert [a["phase"] for a in harness.alerts("BreakerChanged")] == ["open", "closed"]


async def test_a_change_that_could_not_be_stored_is_shared_later(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": FailingProvider()}, rules=steady())
    harness.store.away.add("put_breaker")
    for _ in range(5):
        await mail(engine)
    await seconds(5)
    assert await phase(harness) is Phase.CLOSED
    harness.store.away.clear()
    await seconds(5)
    assert await phase(harness) is Phase.OPEN
    assert len(harness.alerts("BreakerChanged")) == 1


UNLISTED = Outcome(K.BAD_CONTENT, error_code="29999", error="something new", unlisted=True)


@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "many at once"])
async def test_the_breaker_and_the_alert_classify_an_unlisted_error_like_the_settlement(
    harness: EngineHarness, at_once: bool
) -> None:
    first = BatchProvider(usual=UNLISTED) if at_once else TimedProvider(usual=UNLISTED)
    engine = await harness.open({"first": first, "spare": TimedProvider()}, rules=steady())
    ids = [await mail(engine) for _ in range(5)]
    await seconds(5)
    assert {await status(engine, id) for id in ids} == {Status.SENT}
    assert await phase(harness, "first") is Phase.OPEN
    (alert,) = harness.alerts("ProviderFault")
    assert alert["provider"] == "first"


@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "many at once"])
async def test_an_unlisted_error_of_the_only_provider_does_not_count_against_it(
    harness: EngineHarness, at_once: bool
) -> None:
    only = BatchProvider(usual=UNLISTED) if at_once else TimedProvider(usual=UNLISTED)
    engine = await harness.open({"only": only}, rules=steady())
    ids = [await mail(engine) for _ in range(10)]
    await seconds(5)
    assert {await status(engine, id) for id in ids} == {Status.FAILED}
    assert await phase(harness, "only") is Phase.CLOSED
    assert harness.alerts("ProviderFault") == []


async def test_a_provider_on_hold_leaves_another_one_s_trial_to_the_notification(
    harness: EngineHarness,
) -> None:
    one, two = TimedProvider(usual=Outcome(K.THROTTLED, retry_after_ms=86_400_000)), FailingProvider()
    engine = await harness.open(
        {"one": one, "two": serving("two", two, breaker=BreakerPolicy(failures=1))},
        rules=steady(failover_after=1, max_age_ms="1d", max_attempts=50),
    )
    id = await mail(engine)
    await seconds(30)
    assert (await engine.get(id)).provider_names == ("one", "two")
    two.repair()
    await seconds(200)
    done = await engine.get(id)
    assert (done.status, done.provider_names) == (Status.SENT, ("one", "two", "two"))


@pytest.mark.parametrize(
    "first", [UNLISTED, Outcome(K.THROTTLED, retry_after_ms=86_400_000)], ids=["unlisted", "throttled"]
)
async def test_a_notification_on_hold_at_the_first_provider_waits_no_longer_than_the_second_s_breaker(
    harness: EngineHarness, first: Outcome
) -> None:
    one, two = TimedProvider(usual=first), TimedProvider()
    engine = await harness.open({"one": one, "two": two}, rules=steady(failover_after=1, max_age_ms="1d"))
    await engine.force_breaker("two", Phase.OPEN, who="ada")
    id = await mail(engine)
    await seconds(20)
    assert (await engine.get(id)).attempt_count == 1
    await engine.force_breaker("two", None, who="ada")
    await seconds(40)
    done = await engine.get(id)
    assert (done.status, done.provider_names) == (Status.SENT, ("one", "two"))


async def test_a_fault_of_a_provider_with_slots_per_host_raises_an_alert_too(harness: EngineHarness) -> None:
    hook = TimedProvider("hook", usual=K.PROVIDER_FAULT)
    engine = await harness.open({"hook": serving("hook", hook, "webhook", host_slots=64)})
    await engine.send("https://a.example/x", channel="webhook", body="Hello")
    await seconds(10)
    assert [alert["provider"] for alert in harness.alerts("ProviderFault")] == ["hook"]


async def test_pinned_notifications_return_to_their_own_hosts_with_their_provider(
    harness: EngineHarness,
) -> None:
    class Hook(TimedProvider):
        async def send(self, delivery: Delivery) -> Outcome:
            if "slow" in delivery.address:
                await asyncio.sleep(100)
            return await super().send(delivery)

    hook = Hook("hook")
    engine = await harness.open(
        {
            "hook": serving("hook", hook, "webhook", host_slots=64),
            "other": serving("other", TimedProvider("other"), "webhook", host_slots=64),
        }
    )
    await engine.force_breaker("hook", Phase.OPEN, who="ada")
    hosts = ["slow"] * 3 + [f"good{number}" for number in range(20)]
    ids = [
        (await engine.send(f"https://{host}.example/x", channel="webhook", provider="hook", body="Hello")).id
        for host in hosts
    ]
    await seconds(60)
    assert hook.sent == []
    await engine.force_breaker("hook", None, who="ada")
    await seconds(12)  # some wait for the next poll
    assert [await status(engine, id) for id in ids[3:]] == [Status.SENT] * 20
    outlets = engine.worker._capacity.in_flight.outlets
    assert outlets == {"hook@default/https://slow.example": 2}
    assert {len((await engine.history(id)).attempts) for id in ids[3:]} == {1}


# Off, held closed, idle ------------------------------------------------------------------------------------


async def test_without_a_breaker_an_outage_leaves_the_retries_on_their_schedule(
    harness: EngineHarness,
) -> None:
    provider = FailingProvider()
    listed = serving("mail", provider, breaker=BREAKER_OFF)
    engine = await harness.open({"mail": listed}, rules=steady(max_attempts=4))
    ids = [await mail(engine) for _ in range(20)]
    await seconds(31)
    assert {await status(engine, id) for id in ids} == {Status.FAILED}
    assert len(provider.times) == 80
    assert await phase(harness) is Phase.CLOSED
    assert harness.alerts("BreakerChanged") == []


async def test_a_breaker_held_closed_announces_nothing_while_the_provider_fails(
    harness: EngineHarness,
) -> None:
    provider = FailingProvider()
    engine = await harness.open({"mail": provider}, rules=steady(max_attempts=4))
    await engine.force_breaker("mail", "closed", who="ada")
    for _ in range(10):
        await mail(engine)
    await seconds(40)
    assert len(provider.times) == 40
    assert [alert["alert"] for alert in harness.alerts() if alert["alert"].startswith("Breaker")] == [
        "BreakerForced"
    ]
    assert await phase(harness) is Phase.CLOSED
    await engine.force_breaker("mail", None, who="ada")
    (view,) = await engine.providers()
    assert view.breaker.phase is Phase.CLOSED


async def test_a_breaker_that_nothing_tries_reads_half_open_after_its_pause(harness: EngineHarness) -> None:
    engine = await harness.open({"mail": FailingProvider()}, rules=steady(max_attempts=1))
    for _ in range(5):
        await mail(engine)
    await seconds(5)
    (view,) = await engine.providers()
    assert view.breaker.phase is Phase.OPEN
    assert view.breaker.until is not None
    await seconds(60)
    (view,) = await engine.providers()
    assert (view.breaker.phase, view.breaker.until) == (Phase.HALF_OPEN, None)
    assert engine.snapshot().breakers == {"mail": Phase.HALF_OPEN}


async def test_a_breaker_that_is_forced_for_a_time_returns_to_automatic_control(
    harness: EngineHarness,
) -> None:
    engine = await harness.open({"mail": ScriptedProvider()})
    await engine.force_breaker("mail", "open", who="ada", why="maintenance", lasting=timedelta(minutes=10))
    (held,) = await engine.providers()
    assert held.breaker.forced
    assert held.breaker.until is not None
    await mail(engine)
    await seconds(500)
    assert (await engine.queue_counts())["sent"] == 0
    await seconds(200)
    (free,) = await engine.providers()
    assert (free.breaker.forced, free.breaker.phase) == (False, Phase.CLOSED)
    assert (await engine.queue_counts())["sent"] == 1
    for lasting in (timedelta(0), timedelta(days=31)):
        with pytest.raises(InvalidRequest, match="lasting"):
            await engine.force_breaker("mail", "open", who="ada", lasting=lasting)
